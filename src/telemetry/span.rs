//! Which requests are traced, and what is told of one (OpenTelemetry's spans).

use super::Answered;
use crate::front::TraceParent;
use crate::sla::Parts;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The waits for the store that are told of one request.
pub const CHILDREN_MAX: usize = 16;

/// Who a request is.
#[derive(Debug, Clone, Copy)]
pub struct Ident {
    /// The trace: its client's, or one of its own. In hexadecimal digits it is the request's id.
    pub trace: [u8; 16],
    /// The client's span.
    pub parent: Option<[u8; 8]>,
    /// The number of its own span, if others have been told of it.
    pub span: Option<[u8; 8]>,
    /// Whether it is to be traced.
    pub is_traced: bool,
}

impl Ident {
    /// A client that records its part of the trace has the rest recorded too; of the others' requests it is one in `every`,
    /// 0 for none.
    #[must_use]
    pub fn new(parent: Option<TraceParent>, can_trace: bool, every: u64) -> Self {
        let by_chance = || every > 0 && rand::random_range(0..every) == 0;
        match parent {
            Some(parent) => Self {
                trace: parent.trace,
                parent: (!parent.is_own).then_some(parent.span),
                span: parent.is_own.then_some(parent.span),
                is_traced: can_trace && parent.is_sampled,
            },
            None => Self {
                trace: rand::random(),
                parent: None,
                span: None,
                is_traced: can_trace && by_chance(),
            },
        }
    }
}

impl fmt::Display for Ident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trace
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A part of a request: a wait for the store.
#[derive(Debug, Clone, Copy)]
pub struct Child {
    /// What was asked of it.
    pub name: &'static str,
    /// When it began.
    pub began: Instant,
    /// How long it took.
    pub took: Duration,
}

/// One request, with wall-clock times in nanoseconds since the epoch.
#[derive(Debug, Clone)]
pub struct Span {
    /// See [`Ident`].
    pub trace: [u8; 16],
    /// A number of its own.
    pub id: [u8; 8],
    /// See [`Ident`].
    pub parent: Option<[u8; 8]>,
    /// The route.
    pub route: &'static str,
    /// The status.
    pub status: u16,
    /// From when to when.
    pub time_ns: (u64, u64),
    /// What it waited for.
    pub parts: Parts,
    /// Name, number and time of each wait for the store.
    pub children: Vec<(&'static str, [u8; 8], (u64, u64))>,
}

fn ns(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

impl Span {
    /// Of a request that has been answered now.
    #[must_use]
    pub fn new(ident: &Ident, answered: &Answered<'_>) -> Self {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ns);
        let since = |began: Instant| now_ns.saturating_sub(ns(began.elapsed()));
        let children = answered.children.iter().take(CHILDREN_MAX).map(|child| {
            let from = since(child.began);
            (child.name, rand::random(), (from, from + ns(child.took)))
        });
        Self {
            trace: ident.trace,
            id: ident.span.unwrap_or_else(rand::random),
            parent: ident.parent,
            route: answered.route,
            status: answered.status,
            time_ns: (since(answered.began), now_ns),
            parts: answered.parts,
            children: children.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_records_has_it_recorded_and_of_the_others_one_in_so_many() {
        let parent = |is_sampled| TraceParent {
            trace: [7; 16],
            span: [9; 8],
            is_sampled,
            is_own: false,
        };
        let sampled = Ident::new(Some(parent(true)), true, 0);
        assert!(sampled.is_traced && sampled.trace == [7; 16] && sampled.parent == Some([9; 8]));
        assert_eq!(sampled.to_string(), "07".repeat(16));
        assert!(!Ident::new(Some(parent(false)), true, 1).is_traced);
        assert!(!Ident::new(Some(parent(true)), false, 1).is_traced);
        let begun = Ident::new(
            Some(TraceParent {
                is_own: true,
                ..parent(true)
            }),
            true,
            0,
        );
        assert!(begun.is_traced && begun.parent.is_none() && begun.span == Some([9; 8]));
        let own = |every| {
            (0..1_000)
                .filter(|_| Ident::new(None, true, every).is_traced)
                .count()
        };
        assert_eq!([own(0), own(1)], [0, 1_000]);
        assert!((1..500).contains(&own(10)));
        assert_ne!(
            Ident::new(None, false, 1).trace,
            Ident::new(None, false, 1).trace
        );
    }
}
