//! Answers that the connection layer gave by itself, before anybody behind it knew what was asked, or because nobody there
//! answered.

use crate::front::Refusal;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The counters, one a code of [`Refusal`].
#[derive(Debug)]
pub struct FrontAnswers([Counter; Refusal::ALL.len()]);

impl FrontAnswers {
    /// All at 0, in a registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let family: Family<[(&'static str, &'static str); 1], Counter> = Family::default();
        registry.register(
            "trove_front_answers",
            "Answers that the connection layer gave by itself, by their code: 400, 408, 413 … are their clients' fault; internal, answer_timeout, no_answer and too_many_connections are not, and count as failed polls where nobody knows what was asked",
            family.clone(),
        );
        Self(Refusal::ALL.map(|why| family.get_or_create_owned(&[("code", why.describe().1)])))
    }

    /// Counts one.
    pub fn count(&self, why: Refusal) {
        self.0[why as usize].inc();
    }
}
