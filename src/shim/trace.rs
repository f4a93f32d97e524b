//! The trace of a request that is forwarded (W3C Trace Context): its client's, or one that begins here.
//!
//! A client that names no trace gets one, so that what the shim says of a slow request and what its instance says of it are
//! found by one number. It is made when the request leaves, not when it turns out slow: by then the instance has answered,
//! and logged it under a number of its own. So every such request pays for it, on links too, and it costs three draws of a
//! small generator and 70 bytes: no allocation, no system call.

use crate::front::{Head, TraceParent};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::cell::RefCell;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// `traceparent: 00-…-…-00` and CRLF.
pub(super) const TRACE_LINE_BYTES: usize = 70;

thread_local! {
    /// Makes the ids of traces, which shall be unlike each other and need not be secret: the thread's usual generator costs
    /// several times as much.
    static TRACE_IDS: RefCell<Pcg64Mcg> = RefCell::new(Pcg64Mcg::seed_from_u64(rand::random()));
}

/// What a head says of its trace: the one well-formed `traceparent` that it may have, and whether it has any.
pub(super) fn of_head(head: &Head<'_>) -> (Option<TraceParent>, bool) {
    let is_alone = || head.fields().filter(|(name, _)| is_trace(name)).count() == 1;
    let has_any = head.traceparent().is_some();
    (head.trace().filter(|_| is_alone()), has_any)
}

/// Whether a field names a trace.
pub(super) fn is_trace(name: &str) -> bool {
    name.eq_ignore_ascii_case(TRACEPARENT.as_str())
}

/// A trace that begins here. Neither of its numbers is 0. One in `every` is to be recorded by all whom it passes, 0 for
/// none: those behind the shim follow its choice.
pub(super) fn begin(every: u64) -> TraceParent {
    let [high, low, span, chance] =
        TRACE_IDS.with_borrow_mut(|ids| [(); 4].map(|()| ids.next_u64()));
    let trace = u128::from(high.max(1)) << 64 | u128::from(low);
    TraceParent {
        trace: trace.to_be_bytes(),
        span: span.max(1).to_be_bytes(),
        is_sampled: (u128::from(chance) * u128::from(every)) >> 64 == 0 && every > 0,
        is_own: true,
    }
}

/// The line of a head that names a trace.
pub(super) fn line(trace: &TraceParent) -> [u8; TRACE_LINE_BYTES] {
    let mut line = *b"traceparent: 00-00000000000000000000000000000000-0000000000000000-00\r\n";
    let (words, _) = trace.trace.as_chunks::<4>();
    let (more, _) = trace.span.as_chunks::<4>();
    let places = [16, 24, 32, 40, 49, 57];
    for (from, word) in places.into_iter().zip(words.iter().chain(more)) {
        let digits = hex(u32::from_be_bytes(*word).into());
        line[from..from + 8].copy_from_slice(&digits);
    }
    line[67] += u8::from(trace.is_sampled);
    line
}

/// The eight digits of a number of 32 bits, all at once: one byte of a word for each.
fn hex(number: u64) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let spread = (number << 16 | number) & 0x0000_ffff_0000_ffff;
    let spread = (spread << 8 | spread) & 0x00ff_00ff_00ff_00ff;
    let digits = (spread << 4 | spread) & (ONES * 0x0f);
    // 1 in each byte that is 10 or more.
    let letters = ((digits + ONES * 6) >> 4) & ONES;
    (digits + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

/// Leaves one well-formed `traceparent` among the fields, the client's or a new one, and gives it.
pub(super) fn settle(fields: &mut HeaderMap, every: u64) -> TraceParent {
    let mut given = fields.get_all(&TRACEPARENT).iter();
    let first = given.next();
    if given.next().is_none()
        && let Some(trace) = first.and_then(|value| TraceParent::parse(value.as_bytes()))
    {
        return trace;
    }
    let trace = begin(every);
    let line = line(&trace);
    let value = &line[TRACEPARENT.as_str().len() + 2..TRACE_LINE_BYTES - 2];
    if let Ok(value) = HeaderValue::from_bytes(value) {
        fields.insert(TRACEPARENT, value);
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(line: &[u8]) -> &[u8] {
        let value = line.strip_prefix(b"traceparent: ").unwrap();
        value.strip_suffix(b"\r\n").unwrap()
    }

    #[test]
    fn a_trace_that_begins_here_is_written_as_it_is_read_and_no_two_are_alike() {
        let traces: Vec<_> = (0..100).map(|_| begin(2)).collect();
        for trace in &traces {
            let line = line(trace);
            let read = TraceParent::parse(value_of(&line));
            let told = TraceParent {
                is_own: false,
                ..*trace
            };
            assert_eq!(read, Some(told), "{}", line.escape_ascii());
        }
        let is_new = |n: usize| {
            let before = &traces[..n];
            let now = traces[n];
            before
                .iter()
                .all(|one| one.trace != now.trace && one.span != now.span)
        };
        assert!((1..traces.len()).all(is_new));
    }

    #[test]
    fn one_in_so_many_traces_is_to_be_recorded() {
        let recorded = |every| (0..1_000).filter(|_| begin(every).is_sampled).count();
        assert_eq!([recorded(0), recorded(1)], [0, 1_000]);
        // 100 expected; none or half in a thousand happens never.
        assert!((1..500).contains(&recorded(10)));
    }

    #[test]
    fn a_number_has_the_digits_that_the_standard_library_gives_it() {
        for number in [0, 1, 0x9abc_def0, 0x0123_4567, 0xffff_ffff, 0xa000_0009] {
            assert_eq!(hex(number), *format!("{number:08x}").as_bytes());
        }
    }

    #[test]
    fn a_well_formed_traceparent_passes_and_any_other_is_made_anew() {
        let settled = |given: &[&str]| {
            let mut fields = HeaderMap::new();
            for value in given {
                fields.append(TRACEPARENT, value.parse().unwrap());
            }
            let trace = settle(&mut fields, 0);
            let left: Vec<_> = fields.get_all(TRACEPARENT).iter().cloned().collect();
            assert_eq!(left.len(), 1, "{given:?}");
            let read = TraceParent::parse(left[0].as_bytes()).unwrap();
            assert_eq!((read.trace, read.span), (trace.trace, trace.span));
            (left[0].clone(), trace.is_own)
        };
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(settled(&[good]), (good.parse().unwrap(), false));
        let future = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what";
        assert_eq!(settled(&[future]), (future.parse().unwrap(), false));
        for wrong in [
            &[][..],
            &[""],
            &["00-00000000000000000000000000000000-00f067aa0ba902b7-01"],
            &["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
            &["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
            &[good, good],
        ] {
            let (made, is_own) = settled(wrong);
            assert!(is_own && made != good, "{made:?}");
        }
    }
}
