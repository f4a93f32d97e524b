//! What the server's end knows of the tags of its link, and the answers that calls have left for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::frame::{self, Frame, FrameError, Refused, Tag};

/// What a link shares with the calls that it has under way.
pub(super) struct Calls {
    places: Mutex<Places>,
    /// Told when there is room for answers again.
    pub(super) room: Notify,
    output_bytes_max: usize,
}

#[derive(Default)]
pub(super) struct Places {
    all: Vec<Place>,
    /// Calls that wait for room.
    waiting: usize,
    /// Answers of calls.
    out: Vec<u8>,
    link: Option<Waker>,
}

#[derive(Default)]
struct Place {
    serial: u32,
    /// The request of this serial has not had its last word.
    is_open: bool,
    /// Stops its call.
    call: Option<AbortHandle>,
}

impl Calls {
    pub(super) fn new(output_bytes_max: u32) -> Arc<Calls> {
        Arc::new(Calls {
            places: Mutex::default(),
            room: Notify::new(),
            output_bytes_max: output_bytes_max as usize,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until answers may be left. While any call waits, its link reads no more requests.
    pub(super) async fn until_room(&self) {
        let mut waiting = None;
        loop {
            let notified = self.room.notified();
            let is_full = self.lock().out.len() >= self.output_bytes_max;
            if !is_full {
                return;
            }
            waiting.get_or_insert_with(|| Waiting::begin(self));
            notified.await;
        }
    }

    /// Has the last word on a tag, which `write` writes, unless it has been had.
    pub(super) fn settle(&self, tag: Tag, write: impl FnOnce(&mut Vec<u8>)) {
        let mut places = self.lock();
        if !places.close(tag) {
            return;
        }
        write(&mut places.out);
        let link = places.link.take();
        drop(places);
        if let Some(link) = link {
            link.wake();
        }
    }
}

/// A call that waits for room, counted until it is dropped.
struct Waiting<'a>(&'a Calls);

impl<'a> Waiting<'a> {
    fn begin(calls: &'a Calls) -> Self {
        calls.lock().waiting += 1;
        Waiting(calls)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut places = self.0.lock();
        places.waiting -= 1;
        let link = if places.waiting == 0 {
            places.link.take()
        } else {
            None
        };
        drop(places);
        if let Some(link) = link {
            link.wake();
        }
    }
}

impl Places {
    /// Whether calls wait for room.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting > 0
    }

    /// Whom to wake for an answer.
    pub(super) fn visit(&mut self, link: &Waker) {
        if self
            .link
            .as_ref()
            .is_none_or(|known| !known.will_wake(link))
        {
            self.link = Some(link.clone());
        }
    }

    /// Takes a tag for a new request.
    ///
    /// # Errors
    /// Its place is out of bounds or taken, or its serial is not the next.
    pub(super) fn open(&mut self, tag: Tag, requests_max: u32) -> Result<(), FrameError> {
        if tag.place >= requests_max {
            return Err(FrameError::WrongTag);
        }
        let index = tag.place as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, Place::default);
        }
        let place = &mut self.all[index];
        if place.is_open || tag.serial != place.serial.wrapping_add(1) {
            return Err(FrameError::WrongTag);
        }
        place.serial = tag.serial;
        place.is_open = true;
        Ok(())
    }

    /// Ends a request's stay. False if it has ended.
    pub(super) fn close(&mut self, tag: Tag) -> bool {
        match self.all.get_mut(tag.place as usize) {
            Some(place) if place.is_open && place.serial == tag.serial => {
                place.is_open = false;
                place.call = None;
                true
            }
            _ => false,
        }
    }

    /// Remembers how to stop a request's call, if it has not ended.
    pub(super) fn has_call(&mut self, tag: Tag, call: AbortHandle) {
        if let Some(place) = self.all.get_mut(tag.place as usize)
            && place.is_open
            && place.serial == tag.serial
        {
            place.call = Some(call);
        }
    }

    /// Cancels a request, and gives what stops its call. If its answer has crossed the cancelling, that was the last word.
    ///
    /// # Errors
    /// There never was such a request, or it is long over.
    pub(super) fn cancel(&mut self, tag: Tag) -> Result<Option<AbortHandle>, FrameError> {
        let known = self.all.get_mut(tag.place as usize);
        let place = known
            .filter(|place| place.serial == tag.serial)
            .ok_or(FrameError::WrongTag)?;
        let call = place.call.take();
        if self.close(tag) {
            frame::push(&mut self.out, &Frame::Cancelled(tag));
        }
        Ok(call)
    }

    /// Refuses a request.
    pub(super) fn refuse(&mut self, why: Refused, tag: Tag) {
        if self.close(tag) {
            frame::push(&mut self.out, &Frame::Refused(why, tag));
        }
    }

    /// Moves what calls have left behind `output`.
    pub(super) fn take_output(&mut self, output: &mut Vec<u8>) {
        if output.is_empty() {
            std::mem::swap(&mut self.out, output);
        } else {
            output.append(&mut self.out);
        }
    }

    /// Ends everything: nobody waits for the answers. Gives what stops the calls.
    pub(super) fn close_all(&mut self) -> Vec<AbortHandle> {
        let all = std::mem::take(&mut self.all);
        all.into_iter().filter_map(|place| place.call).collect()
    }
}
