//! What an audit came to, as JSON.

use crate::game::audit::Sums;
use crate::store::HuntAudit;
use serde::{Deserialize, Serialize};

/// The verdict on a store, or on one hunt of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Whether every hunt adds up.
    pub holds: bool,
    /// Each hunt's.
    pub hunts: Vec<HuntVerdict>,
}

/// The verdict on a hunt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HuntVerdict {
    /// The hunt.
    pub hunt: String,
    /// Whether it adds up.
    pub holds: bool,
    /// The last entry of the store's feed that the verdict covers.
    pub feed_position: u64,
    /// Wallets walked.
    pub wallets: u64,
    /// Ledger entries walked.
    pub entries: u64,
    /// What they come to.
    pub sums: SumsReport,
    /// What does not add up, the first of it.
    pub discrepancies: Vec<String>,
    /// How much does not add up.
    pub discrepancy_count: u64,
}

/// A ledger's sums in coins. One beyond the range of 64 bits, which only a broken ledger has, is shown as the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumsReport {
    /// Of every find and grant ever recorded.
    pub recorded: u64,
    /// In wallets.
    pub credited: u64,
    /// Of finds that ran out.
    pub expired: u64,
    /// Of finds that wait for a poll.
    pub pending: u64,
    /// Taken back.
    pub revoked: u64,
}

impl From<&Sums> for SumsReport {
    fn from(sums: &Sums) -> Self {
        let narrow = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        Self {
            recorded: narrow(sums.recorded),
            credited: narrow(sums.credited),
            expired: narrow(sums.expired),
            pending: narrow(sums.pending),
            revoked: narrow(sums.revoked),
        }
    }
}

impl From<Vec<HuntAudit>> for VerifyReport {
    fn from(audits: Vec<HuntAudit>) -> Self {
        Self {
            holds: audits.iter().all(HuntAudit::holds),
            hunts: audits.into_iter().map(HuntVerdict::from).collect(),
        }
    }
}

impl From<HuntAudit> for HuntVerdict {
    fn from(audit: HuntAudit) -> Self {
        Self {
            holds: audit.holds(),
            hunt: audit.hunt.to_string(),
            feed_position: audit.feed_position,
            wallets: audit.wallets,
            entries: audit.entries,
            sums: SumsReport::from(&audit.sums),
            discrepancies: audit.discrepancies,
            discrepancy_count: audit.discrepancy_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::ids::HuntId;

    fn audit(recorded: u128, discrepancies: Vec<String>) -> HuntAudit {
        HuntAudit {
            hunt: HuntId::new("h").unwrap(),
            feed_position: 7,
            wallets: 1,
            entries: 2,
            sums: Sums {
                recorded,
                credited: 5,
                ..Sums::default()
            },
            discrepancy_count: discrepancies.len() as u64,
            discrepancies,
        }
    }

    #[test]
    fn a_report_holds_when_every_hunt_does() {
        assert!(VerifyReport::from(vec![audit(5, vec![])]).holds);
        assert!(VerifyReport::from(vec![]).holds);
        let broken = VerifyReport::from(vec![audit(5, vec![]), audit(5, vec!["x".into()])]);
        assert!(!broken.holds && broken.hunts[0].holds && !broken.hunts[1].holds);
        assert!(!VerifyReport::from(vec![audit(6, vec![])]).holds);
        let huge = VerifyReport::from(vec![audit(u128::MAX, vec!["x".into()])]);
        assert_eq!(huge.hunts[0].sums.recorded, u64::MAX);
    }

    #[test]
    fn its_json_is_what_the_running_server_answers() {
        let json = serde_json::to_string(&VerifyReport::from(vec![audit(5, vec![])])).unwrap();
        assert_eq!(
            json,
            r#"{"holds":true,"hunts":[{"hunt":"h","holds":true,"feed_position":7,"wallets":1,"entries":2,"sums":{"recorded":5,"credited":5,"expired":0,"pending":0,"revoked":0},"discrepancies":[],"discrepancy_count":0}]}"#
        );
        assert!(serde_json::from_str::<VerifyReport>(&json).unwrap().holds);
    }
}
