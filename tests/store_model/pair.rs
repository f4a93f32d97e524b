//! A store and the model beside it, and what keeps the two together: time, restarts, the sweeper, the comparison.

use super::store_disk::Disk;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trove::game::coins::COINS_MAX;
use trove::game::entry::Entry;
use trove::game::hunt::{Hunt, HuntSpec, LifeStep, Treasure};
use trove::game::ids::{HuntId, PlayerId, TreasureId};
use trove::game::model::{Model, Player};
use trove::game::rules::{Circumstances, Limits};
use trove::store::Store;
use trove::store::clock::ManualTime;
use trove::store::embedded::{EmbeddedStore, Options};

pub(crate) const START: u64 = 1_800_000_000_000;
pub(crate) const WINDOW_MS: u64 = 60_000;
pub(crate) const LIMITS: Limits = Limits {
    pending_finds_max: 12,
    find_id_ttl_ms: 200_000,
};

/// What the test knows of a name.
#[derive(Debug, Default)]
pub(crate) struct Person {
    pub(crate) number: Option<PlayerId>,
    pub(crate) erased_at: Option<u64>,
}

pub(crate) struct Pair {
    pub(crate) random: Pcg64Mcg,
    pub(crate) disk: Disk,
    pub(crate) time: Arc<ManualTime>,
    pub(crate) store: Option<EmbeddedStore>,
    pub(crate) models: Vec<Model>,
    pub(crate) people: Vec<Person>,
    pub(crate) erased: Vec<PlayerId>,
    pub(crate) histories: HashMap<(usize, PlayerId), Vec<Entry>>,
    pub(crate) counts: HashMap<&'static str, u64>,
}

pub(crate) fn spec(random: &mut Pcg64Mcg, id: &str) -> HuntSpec {
    let treasures = (0..random.random_range(6..14)).map(|n| Treasure {
        id: TreasureId::new(&format!("t{n}")).unwrap(),
        name: None,
        coins: match n {
            0 => 0,
            1 => COINS_MAX / 2_000,
            _ => random.random_range(1..100),
        },
        place: None,
        repeatable: n % 2 == 0,
    });
    HuntSpec {
        id: HuntId::new(id).unwrap(),
        name: "H".into(),
        window_ms: WINDOW_MS,
        opens_at: None,
        closes_at: None,
        treasures: treasures.collect(),
    }
}

impl Pair {
    pub(crate) async fn new(seed: u64) -> Self {
        let mut pair = Self {
            random: Pcg64Mcg::seed_from_u64(seed),
            disk: Disk::default(),
            time: Arc::new(ManualTime::new(START)),
            store: None,
            models: Vec::new(),
            people: (0..6).map(|_| Person::default()).collect(),
            erased: Vec::new(),
            histories: HashMap::new(),
            counts: HashMap::new(),
        };
        pair.start();
        for id in ["h0", "h1"] {
            let spec = spec(&mut pair.random, id);
            let (hunt, _) = pair.store().put_hunt(spec).await.unwrap().unwrap();
            pair.models.push(Model::new(Hunt::clone(&hunt), LIMITS));
        }
        for at in 0..2 {
            let opened = pair.store().step_hunt(&pair.hunt_id(at), LifeStep::Open);
            pair.models[at].hunt = Hunt::clone(&*opened.await.unwrap().unwrap());
        }
        pair
    }

    pub(crate) fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().unwrap()
    }

    pub(crate) fn start(&mut self) {
        let disk = self.disk.clone();
        let options = Options {
            limits: LIMITS,
            time: self.time.clone(),
            on_fatal: Box::new(|reason| panic!("{reason}")),
            ..Options::new(std::path::Path::new("/nonexistent"))
        };
        let store = EmbeddedStore::open_backend(options, move || disk.clone());
        self.store = Some(store.unwrap());
    }

    pub(crate) fn now(&self) -> u64 {
        self.store().now()
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.random.random_range(0..n)
    }

    pub(crate) fn hunt_id(&self, hunt: usize) -> HuntId {
        self.models[hunt].hunt.spec.id.clone()
    }

    pub(crate) fn some_player(&mut self) -> PlayerId {
        let known: Vec<PlayerId> = self.people.iter().filter_map(|p| p.number).collect();
        if !self.erased.is_empty() && (known.is_empty() || self.below(20) == 0) {
            let at = self.below(self.erased.len());
            return self.erased[at];
        }
        match known.len() {
            0 => PlayerId(7),
            n => known[self.below(n)],
        }
    }

    pub(crate) fn agree<R: std::fmt::Debug>(
        &mut self,
        hunt: usize,
        player: PlayerId,
        what: &str,
        answer: &str,
        operation: impl Fn(&mut Player, Circumstances<'_>, &mut Vec<Entry>) -> R,
    ) {
        let now = self.now();
        let mut said = Vec::new();
        for swept in [false, true] {
            let mut model = self.models[hunt].clone();
            let mut new = Vec::new();
            if swept {
                new = model
                    .with(player, now, |player, at, out| {
                        player.expire(now, at.outages, out);
                    })
                    .1;
            }
            let (result, entries) = model.with(player, now, &operation);
            new.extend(entries);
            let said_now = format!("{result:?}");
            if said_now == answer {
                self.models[hunt] = model;
                self.histories
                    .entry((hunt, player))
                    .or_default()
                    .extend(new);
                return;
            }
            said.push(said_now);
        }
        panic!(
            "{what}\nthe store: {answer}\nthe model: {}\nor: {}",
            said[0], said[1]
        );
    }

    pub(crate) async fn pass_time(&mut self) {
        // What is due is swept at this time, by the store and in the model, or at the next by both.
        let now = self.now();
        let due = |player: &Player| (1..now).contains(&player.wallet.due_at);
        if self
            .models
            .iter()
            .any(|model| model.players.values().any(due))
        {
            self.settle().await;
        }
        let ms = match self.below(6) {
            0 => 1,
            1 => WINDOW_MS,
            2 => WINDOW_MS + 1,
            3 => self.random.random_range(0..3 * WINDOW_MS),
            _ => self.random.random_range(0..10_000),
        };
        self.time.advance(ms);
    }

    pub(crate) fn outage(&mut self, from: u64, to: u64) {
        for model in &mut self.models {
            model.outages.record(from, to);
        }
    }

    pub(crate) async fn restart(&mut self, away_ms: u64) {
        let from = self.now();
        self.store.take().unwrap().stop().await.unwrap();
        // Stopping sweeps what is due.
        self.sweep_models(from);
        self.time.advance(away_ms);
        self.start();
        self.outage(from, self.now());
    }

    pub(crate) async fn step_clock(&mut self) {
        let (from, ms) = (self.now(), self.random.random_range(5_001..WINDOW_MS));
        self.settle().await;
        self.time.set_wall(from + ms);
        let began = Instant::now();
        while self.now() < from + ms {
            assert!(began.elapsed() < Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.outage(from, from + ms);
    }

    pub(crate) fn sweep_models(&mut self, now: u64) {
        for (hunt, model) in self.models.iter_mut().enumerate() {
            let players: Vec<PlayerId> = model.players.keys().copied().collect();
            for player in players {
                let (_, entries) = model.with(player, now, |player, at, out| {
                    player.expire(now, at.outages, out);
                });
                self.histories
                    .entry((hunt, player))
                    .or_default()
                    .extend(entries);
            }
        }
    }

    pub(crate) async fn settle(&mut self) {
        if self.below(30) > 0 {
            return self.restart(0).await;
        }
        self.sweep_models(self.now());
        for hunt in 0..self.models.len() {
            for (player, model) in &self.models[hunt].players {
                let began = Instant::now();
                let id = self.hunt_id(hunt);
                while self.store().wallet(&id, *player).await.unwrap() != model.wallet {
                    assert!(
                        began.elapsed() < Duration::from_secs(60),
                        "{player} is not swept"
                    );
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    pub(crate) async fn compare(&mut self) {
        self.settle().await;
        let stored: HashMap<HuntId, _> = self
            .store()
            .hunts()
            .await
            .unwrap()
            .into_iter()
            .map(|(hunt, totals)| (hunt.spec.id.clone(), (hunt, totals)))
            .collect();
        assert_eq!(stored.len(), self.models.len());
        for (at, model) in self.models.iter().enumerate() {
            let (hunt, totals) = &stored[&model.hunt.spec.id];
            assert_eq!(**hunt, model.hunt);
            assert_eq!(*totals, model.totals);
            for (player, each) in &model.players {
                let id = &model.hunt.spec.id;
                assert_eq!(self.store().wallet(id, *player).await.unwrap(), each.wallet);
                let history = self.store().history(id, *player, u64::MAX, usize::MAX);
                let mut history = history.await.unwrap();
                history.reverse();
                let known = self.histories.get(&(at, *player));
                let known = known.map_or(&[][..], Vec::as_slice);
                for (stored, modelled) in history.iter().zip(known) {
                    assert_eq!(stored, modelled, "{player} in {id}");
                }
                assert_eq!(history.len(), known.len(), "{player} in {id}");
            }
        }
        for audit in self.store().verify(None).await.unwrap() {
            assert!(audit.holds(), "{audit:#?}");
        }
    }
}
