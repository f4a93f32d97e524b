//! A whole hunt in memory: the rules with nothing else around them. Stores are compared with it, and the simulation
//! runs on it.

use super::Millis;
use super::entry::{Adjustment, Change, Entry, ExpiryReason, Find, Totals};
use super::hunt::Hunt;
use super::ids::PlayerId;
use super::rules::{
    self, AdjustDecision, AdjustRefusal, Circumstances, Decision, Identity, Limits, NewFind,
    Refusal,
};
use super::wallet::{Outages, Wallet};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the model knows of one player in its hunt.
#[derive(Debug, Clone, Default)]
pub struct Player {
    /// The wallet.
    pub wallet: Wallet,
    pending: Vec<Find>,
    remembered: HashMap<Identity, Entry>,
    adjustments: HashMap<String, Entry>,
    lost_to_outage: BTreeMap<u64, Find>,
}

impl Player {
    /// Records a find, or says why not. New entries are appended to `out`.
    ///
    /// # Errors
    /// See [`rules::decide`].
    pub fn record(
        &mut self,
        at: Circumstances<'_>,
        new: &NewFind,
        out: &mut Vec<Entry>,
    ) -> Result<Decision, Refusal> {
        let identity = rules::identify(at.hunt, new, at.now)?;
        let prior = self.remembered.get(&identity);
        let decision = rules::decide(at, &mut self.wallet, new, &identity, prior)?;
        if let Decision::Recorded(made, expired) = &decision {
            self.remembered.insert(identity, made.clone());
            match (&made.change, expired) {
                (Change::Find(find), None) => self.pending.push(find.clone()),
                (_, Some(expired)) => self.note_outage(expired),
                _ => {}
            }
            out.push(made.clone());
            out.extend(expired.clone());
        }
        Ok(decision)
    }

    fn note_outage(&mut self, entry: &Entry) {
        if let Change::Expire(find, ExpiryReason::StoreOutage) = &entry.change {
            self.lost_to_outage.insert(find.seq, find.clone());
        }
    }

    /// A poll. New entries are appended to `out`.
    #[inline]
    pub fn collect(&mut self, now: Millis, outages: &Outages, out: &mut Vec<Entry>) {
        if self.wallet.pending_finds > 0 {
            self.wallet.collect(&mut self.pending, now, outages, out);
            out.iter().for_each(|entry| self.note_outage(entry));
        }
    }

    /// The sweeper's visit. New entries are appended to `out`.
    pub fn expire(&mut self, now: Millis, outages: &Outages, out: &mut Vec<Entry>) {
        if self.wallet.due_at != 0 && self.wallet.due_at < now {
            self.wallet.expire(&mut self.pending, now, outages, out);
            out.iter().for_each(|entry| self.note_outage(entry));
        }
    }

    /// Grants or revokes.
    ///
    /// # Errors
    /// See [`rules::decide_adjustment`].
    pub fn adjust(
        &mut self,
        at: Circumstances<'_>,
        new: Adjustment,
    ) -> Result<AdjustDecision, AdjustRefusal> {
        let key = new.key.clone();
        let decision =
            rules::decide_adjustment(at, &mut self.wallet, new, self.adjustments.get(&key))?;
        if let AdjustDecision::Recorded(entry) = &decision {
            self.adjustments.insert(key, entry.clone());
        }
        Ok(decision)
    }

    /// Reinstates what was lost to an outage and ran out within `from..=to`.
    pub fn reinstate(&mut self, from: Millis, to: Millis, now: Millis, out: &mut Vec<Entry>) {
        let wallet = &mut self.wallet;
        self.lost_to_outage.retain(|_, find| {
            if !(from..=to).contains(&find.expires_at) {
                return true;
            }
            match wallet.reinstate(find.clone(), now) {
                Ok(entry) => out.push(entry),
                Err(_) => return true,
            }
            false
        });
    }

    /// Revokes what is pending, as erasure does.
    pub fn revoke_pending(&mut self, now: Millis, out: &mut Vec<Entry>) {
        self.wallet.revoke_pending(&mut self.pending, now, out);
    }
}

/// A hunt, its players and its sums.
#[derive(Debug, Clone)]
pub struct Model {
    /// The hunt.
    pub hunt: Hunt,
    /// The numbers of the treasures that were found.
    pub found: BTreeSet<u32>,
    /// Outages on record.
    pub outages: Outages,
    /// The sums of all entries.
    pub totals: Totals,
    /// The rules' limits.
    pub limits: Limits,
    /// The players.
    pub players: HashMap<PlayerId, Player>,
}

impl Model {
    /// A hunt without players.
    #[must_use]
    pub fn new(hunt: Hunt, limits: Limits) -> Self {
        Self {
            hunt,
            found: BTreeSet::new(),
            outages: Outages::default(),
            totals: Totals::default(),
            limits,
            players: HashMap::new(),
        }
    }

    /// Runs one player's operation with the circumstances of `now`, and adds the entries it appends to the totals.
    ///
    /// # Panics
    /// When an entry does not fit the totals: the rules are wrong then, and a test should say so.
    pub fn with<R>(
        &mut self,
        player: PlayerId,
        now: Millis,
        operation: impl FnOnce(&mut Player, Circumstances<'_>, &mut Vec<Entry>) -> R,
    ) -> (R, Vec<Entry>) {
        let Self {
            hunt,
            found,
            outages,
            totals,
            limits,
            players,
        } = self;
        let mut out = Vec::new();
        let at = Circumstances {
            hunt,
            totals,
            outages,
            limits: *limits,
            now,
        };
        let result = operation(players.entry(player).or_default(), at, &mut out);
        for entry in &out {
            totals
                .apply(&entry.change)
                .expect("an entry of the rules fits the totals");
            if let Change::Find(Find {
                treasure: Some(id), ..
            }) = &entry.change
                && let Some((_, number)) = hunt.treasure(id)
            {
                found.insert(number);
            }
        }
        (result, out)
    }
}
