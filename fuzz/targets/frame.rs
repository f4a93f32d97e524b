//! Frames of links: whatever the bytes, a frame that is read is written again byte for byte, and no part of it reads as a
//! whole. A request's head and an answer's fields are held to the front's rules, as both ends do.
#![no_main]

use std::time::Instant;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trove_fuzz::front::{FieldLines, Head, Limits, Origin, field_slots, whole_request};
use trove_fuzz::link::FrameError;
use trove_fuzz::link::frame::{self, Frame, LENGTH_BYTES, RequestFrame};

const FRAME_BYTES_MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let limits = Limits::default();
    let mut rest = input;
    loop {
        let (frame, taken) = match frame::split(rest, FRAME_BYTES_MAX) {
            Ok(Some(found)) => found,
            Ok(None) => return assert!(rest.len() < LENGTH_BYTES + FRAME_BYTES_MAX),
            Err(FrameError::TooLong(bytes)) => return assert!(bytes > FRAME_BYTES_MAX),
            Err(error) => return assert_eq!(error, FrameError::Malformed(0)),
        };
        assert_eq!(taken, LENGTH_BYTES + frame.len());
        for cut in [0, LENGTH_BYTES, taken / 2, taken - 1] {
            let part = frame::split(&rest[..cut], FRAME_BYTES_MAX);
            assert_eq!(part, Ok(None), "whole at {cut} of {taken}");
        }
        if let Ok(parsed) = frame::parse(frame) {
            let mut again = Vec::new();
            frame::push(&mut again, &parsed);
            match parsed {
                // It may have more to say to later versions.
                Frame::Hello(_) => assert!(frame.starts_with(&again[LENGTH_BYTES..])),
                _ => assert_eq!(again, rest[..taken], "{parsed:?}"),
            }
            match parsed {
                Frame::Request(request) => read_request(&request, &limits),
                Frame::Answer(answer) => {
                    assert!((200..=599).contains(&answer.status));
                    let lines = FieldLines::check(answer.fields);
                    assert!(lines.is_none_or(|lines| lines.as_bytes() == answer.fields));
                }
                _ => {}
            }
        }
        rest = &rest[taken..];
    }
});

fn read_request(request: &RequestFrame<'_>, limits: &Limits) {
    let origin = Origin {
        peer: request.client,
        arrived: Instant::now(),
    };
    let mut slots = field_slots();
    if let Ok(Some(head)) = Head::parse(request.head, &mut slots, limits, origin)
        && head.bytes() == request.head.len()
    {
        let body = Bytes::copy_from_slice(request.body);
        let _ = whole_request(&head, request.head, body);
    }
}
