//! One state a second for all who look on. A viewer costs a connection and a place in a channel; the state is made once,
//! beside the event loop, and only while somebody looks.

use super::moments::{Moments, Tracked};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

/// The most pages that look on at a time; one more is answered 503. The operations listener has 64 connections, and scrapers
/// need some.
pub const VIEWERS_MAX: usize = 16;
/// The states that wait for a viewer who does not read; one more, and the viewer is dropped.
pub const BEHIND_MAX: usize = 8;
/// How often there is a state.
const PERIOD: Duration = Duration::from_secs(1);

/// What a process has gathered on its event loop: the rest is computed beside it, into the members of the state.
pub type Gathered = Box<dyn FnOnce() -> Map<String, Value> + Send>;

/// Who knows what there is to show.
pub trait Source: Send + Sync + 'static {
    /// What is to be shown now. It must not wait for longer than a part of a second.
    fn gather(&self) -> Pin<Box<dyn Future<Output = Gathered> + Send + '_>>;
}

/// See the module.
pub struct Live {
    source: Box<dyn Source>,
    moments: Mutex<Moments>,
    /// The latest state, and when it was made. Locked while one is made, so that there are never two.
    latest: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    viewers: Arc<Semaphore>,
    /// `None` once the process is stopping.
    sender: Mutex<Option<broadcast::Sender<Bytes>>>,
    began: Instant,
    period: Duration,
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event as it goes over the wire. JSON has no line breaks.
fn event(name: &str, json: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(json.len() + 32);
    event.extend_from_slice(b"event: ");
    event.extend_from_slice(name.as_bytes());
    event.extend_from_slice(b"\ndata: ");
    event.extend_from_slice(json);
    event.extend_from_slice(b"\n\n");
    event.into()
}

impl Live {
    /// Of a process that shows `source`, and keeps the moments of what is `tracked`.
    #[must_use]
    pub fn new(source: impl Source, tracked: Tracked) -> Arc<Self> {
        Self::with_period(source, tracked, PERIOD)
    }

    fn with_period(source: impl Source, tracked: Tracked, period: Duration) -> Arc<Self> {
        let began = Instant::now();
        Arc::new(Self {
            source: Box::new(source),
            moments: Mutex::new(Moments::new(tracked, began)),
            latest: tokio::sync::Mutex::default(),
            viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
            sender: Mutex::new(Some(broadcast::channel(BEHIND_MAX).0)),
            began,
            period,
        })
    }

    /// Keeps moments for ever, and sends states while somebody looks on.
    pub async fn keep(self: Arc<Self>) {
        let mut ticks =
            tokio::time::interval_at(tokio::time::Instant::now() + self.period, self.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            lock(&self.moments).look(Instant::now(), unix_ms());
            if self.viewers.available_permits() == VIEWERS_MAX {
                continue;
            }
            let mut latest = self.latest.lock().await;
            let made = self.make().await;
            if let Some(json) = &made
                && let Some(sender) = &*lock(&self.sender)
            {
                // Nobody there any more: nobody misses it.
                let _ = sender.send(event("state", json));
            }
            *latest = made.map(|json| (Instant::now(), json));
        }
    }

    /// The state as JSON, at most a second old. `None`: it could not be made.
    pub async fn state(&self) -> Option<Bytes> {
        let mut latest = self.latest.lock().await;
        match &*latest {
            Some((made, json)) if made.elapsed() < self.period => Some(json.clone()),
            _ => {
                let json = self.make().await?;
                *latest = Some((Instant::now(), json.clone()));
                Some(json)
            }
        }
    }

    async fn make(&self) -> Option<Bytes> {
        let gathered = self.source.gather().await;
        let (time_ms, up_s) = (unix_ms(), self.began.elapsed().as_secs());
        let moment = lock(&self.moments).kept().back().cloned();
        let viewers = VIEWERS_MAX - self.viewers.available_permits();
        let made = crate::blocking::spawn(move || {
            let mut state = gathered();
            state.insert("time_ms".into(), time_ms.into());
            state.insert("up_s".into(), up_s.into());
            state.insert("version".into(), env!("CARGO_PKG_VERSION").into());
            state.insert("viewers".into(), viewers.into());
            state.insert("moment".into(), json!(moment));
            serde_json::to_vec(&state)
        });
        made.await.ok()?.ok().map(Bytes::from)
    }

    /// The past, as the first event that a viewer gets.
    fn past(&self) -> Bytes {
        let moments = lock(&self.moments);
        let past = json!({ "kinds": moments.kinds(), "moments": moments.kept() });
        event("past", past.to_string().as_bytes())
    }

    /// A body of events for one more viewer, unless there are too many or the process is stopping. It ends with the process,
    /// or when its reader falls too far behind.
    pub fn look_on(self: &Arc<Self>) -> Option<Body> {
        let permit = self.viewers.clone().try_acquire_owned().ok()?;
        let receiver = lock(&self.sender).as_ref()?.subscribe();
        let viewer = Viewer {
            past: Some(self.past()),
            receiver,
            _permit: permit,
        };
        Some(Body::from_stream(stream::unfold(viewer, Viewer::next)))
    }

    /// Ends every viewer's events, so that nobody holds up the end of the process.
    pub fn end(&self) {
        lock(&self.sender).take();
    }
}

/// One who looks on.
struct Viewer {
    past: Option<Bytes>,
    receiver: broadcast::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl Viewer {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let event = match self.past.take() {
            Some(past) => past,
            // Too far behind, or the end: either way the page asks again.
            None => self.receiver.recv().await.ok()?,
        };
        Some((Ok(event), self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Buckets, Durations};
    use http_body_util::BodyExt;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    struct Counting(Arc<AtomicUsize>);

    impl Source for Counting {
        fn gather(&self) -> Pin<Box<dyn Future<Output = Gathered> + Send + '_>> {
            Box::pin(async {
                let made = self.0.fetch_add(1, SeqCst);
                let gathered: Gathered =
                    Box::new(move || Map::from_iter([("made".to_owned(), made.into())]));
                gathered
            })
        }
    }

    fn live() -> (Arc<Live>, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let tracked = Tracked {
            rates: Vec::new(),
            failed: Vec::new(),
            latency: Vec::new(),
            loop_lag: Durations::new(Buckets::of_ms(&[1.0])),
        };
        let period = Duration::from_millis(5);
        let live = Live::with_period(Counting(made.clone()), tracked, period);
        (live, made)
    }

    async fn text(body: &mut Body) -> Option<String> {
        let frame = body.frame().await?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn nothing_is_made_while_nobody_looks_and_one_state_serves_all_who_do() {
        let (live, made) = live();
        let keeping = tokio::spawn(live.clone().keep());
        while lock(&live.moments).kept().len() < 5 {
            tokio::task::yield_now().await;
        }
        assert_eq!(made.load(SeqCst), 0);
        let mut bodies = [live.look_on().unwrap(), live.look_on().unwrap()];
        for body in &mut bodies {
            assert!(
                text(body)
                    .await
                    .unwrap()
                    .starts_with("event: past\ndata: {")
            );
        }
        for expected in 0..3_u64 {
            let mut both = Vec::new();
            for body in &mut bodies {
                both.push(text(body).await.unwrap());
            }
            assert_eq!(both[0], both[1]);
            assert!(
                both[0].contains(&format!("\"made\":{expected}")),
                "{}",
                both[0]
            );
            assert!(both[0].contains("\"viewers\":2"));
        }
        drop(bodies);
        keeping.abort();
    }

    #[tokio::test]
    async fn viewers_are_bounded_and_one_who_does_not_read_is_dropped() {
        let (live, _) = live();
        let keeping = tokio::spawn(live.clone().keep());
        let mut bodies: Vec<Body> = (0..VIEWERS_MAX).map(|_| live.look_on().unwrap()).collect();
        assert!(live.look_on().is_none());
        bodies.truncate(1);
        let mut again = live.look_on().unwrap();
        text(&mut again).await.unwrap();
        // The other one reads nothing for longer than may wait for it.
        for _ in 0..=BEHIND_MAX {
            text(&mut again).await.unwrap();
        }
        let mut slow = bodies.remove(0);
        assert!(text(&mut slow).await.unwrap().starts_with("event: past"));
        assert_eq!(text(&mut slow).await, None);
        assert!(text(&mut again).await.is_some());
        keeping.abort();
    }

    #[tokio::test]
    async fn the_end_of_the_process_ends_the_events() {
        let (live, _) = live();
        let mut body = live.look_on().unwrap();
        text(&mut body).await.unwrap();
        live.end();
        assert_eq!(text(&mut body).await, None);
        assert!(live.look_on().is_none());
    }
}
