//! The model and the stores beside it, and the order of what happens to them.

use crate::redis_server::{PATIENCE, Server};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use trove::game::hunt::{Hunt, HuntSpec, HuntState, LifeStep, Treasure};
use trove::game::ids::{HuntId, PlayerId, PlayerName, TreasureId};
use trove::game::model::Model;
use trove::game::rules::{Limits, NewFind};
use trove::store::clock::ManualTime;
use trove::store::embedded::{EmbeddedStore, Options as EmbeddedOptions};
use trove::store::redis::{Options, RedisStore, Time};
use trove::store::{Opening, Store};
use trove_streams::redis::{self, Commands};

pub(crate) const START: u64 = 1_800_000_000_000;
pub(crate) const WINDOW_MS: u64 = 300_000;
pub(crate) const LIMITS: Limits = Limits {
    pending_finds_max: 6,
    find_id_ttl_ms: 900_000,
};

/// A store beside the model, and the numbers under which it knows the players.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) store: Box<dyn Store>,
    pub(crate) numbers: Vec<PlayerId>,
}

pub(crate) struct Bench {
    pub(crate) random: SmallRng,
    pub(crate) connection: redis::Connection,
    pub(crate) time: Arc<ManualTime>,
    pub(crate) now: u64,
    pub(crate) model: Model,
    pub(crate) erased: Vec<bool>,
    pub(crate) finds: u64,
    pub(crate) sent: Vec<Vec<NewFind>>,
    pub(crate) sides: Vec<Side>,
    /// Whether stores expire by themselves, which the test then waits for.
    pub(crate) sweeping: bool,
    pub(crate) rich: bool,
    pub(crate) counts: [u64; 8],
    pub(crate) _server: Server,
    pub(crate) _dir: tempfile::TempDir,
}

pub(crate) fn spec(coins: u64, window_ms: u64) -> HuntSpec {
    let treasure = |n: u64| Treasure {
        id: TreasureId::new(&format!("t{n}")).unwrap(),
        name: None,
        coins: if n == 3 { 0 } else { coins + n },
        place: None,
        repeatable: n % 3 == 2,
    };
    HuntSpec {
        id: HuntId::new("h").unwrap(),
        name: "Hunt".into(),
        window_ms,
        opens_at: None,
        closes_at: None,
        treasures: (0..12).map(treasure).collect(),
    }
}

impl Bench {
    pub(crate) async fn new(
        seed: u64,
        players: usize,
        partitions: u16,
        sweeping: bool,
        rich: bool,
    ) -> Self {
        let server = Server::start();
        let mut connection = server.connection();
        let () = connection.set("now", START).unwrap();
        let time = Arc::new(ManualTime::new(START));
        let hour = Duration::from_secs(3_600);
        let sweep_interval = if sweeping {
            Duration::from_millis(20)
        } else {
            hour
        };
        let options = Options {
            partitions,
            limits: LIMITS,
            response_timeout: Duration::from_secs(20),
            connect_wait: PATIENCE,
            sweep_interval,
            forget_interval: if sweeping {
                Duration::from_millis(500)
            } else {
                hour
            },
            time: Time::Manual {
                key: "now".into(),
                time: time.clone(),
            },
            ..Options::default()
        };
        let redis = RedisStore::connect(&server.url(), options).await.unwrap();
        let mut stores: Vec<(&'static str, Box<dyn Store>)> = vec![("redis", Box::new(redis))];
        let dir = tempfile::tempdir().unwrap();
        if sweeping {
            let options = EmbeddedOptions {
                limits: LIMITS,
                time: time.clone(),
                min_free_bytes: 0,
                on_fatal: Box::new(|reason| panic!("{reason}")),
                ..EmbeddedOptions::new(dir.path())
            };
            let memory = ::redb::backends::InMemoryBackend::new;
            stores.push((
                "embedded",
                Box::new(EmbeddedStore::open_backend(options, memory).unwrap()),
            ));
        }
        let mut sides = Vec::new();
        for (name, store) in stores {
            store.put_hunt(spec(10, WINDOW_MS)).await.unwrap().unwrap();
            store
                .step_hunt(&HuntId::new("h").unwrap(), LifeStep::Open)
                .await
                .unwrap()
                .unwrap();
            let openings = (0..players).map(|n| Opening {
                name: PlayerName::new(&format!("player-{n}")).unwrap(),
                issued_at: Some(START),
                known: None,
            });
            let opened = store.open_players(openings.collect()).await.unwrap();
            sides.push(Side {
                name,
                store,
                numbers: opened.into_iter().map(Result::unwrap).collect(),
            });
        }
        let mut hunt = Hunt::new(1, spec(10, WINDOW_MS));
        hunt.step(LifeStep::Open, START, 0).unwrap();
        Self {
            random: SmallRng::seed_from_u64(seed),
            connection,
            time,
            now: START,
            model: Model::new(hunt, LIMITS),
            erased: vec![false; players],
            finds: 0,
            sent: vec![Vec::new(); players],
            sides,
            sweeping,
            rich,
            counts: [0; 8],
            _server: server,
            _dir: dir,
        }
    }

    pub(crate) fn hunt(&self) -> HuntId {
        self.model.hunt.spec.id.clone()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.random_range(0..bound)
    }

    /// Random operations, then something that happens to all, by turns.
    pub(crate) async fn round(&mut self, nth: usize) {
        let players = self.erased.len() as u64;
        for _ in 0..players {
            let player = usize::try_from(self.below(players)).unwrap();
            match self.below(20) {
                0..8 => {
                    let new = self.new_find(player);
                    self.record(vec![(player, new)]).await;
                }
                8..10 => {
                    let mut finds = Vec::new();
                    for _ in 0..self.below(12) {
                        // Where the hunt's coins run out, the order of two partitions' finds within a batch is open.
                        let other = usize::try_from(self.below(players)).unwrap();
                        let player = if self.rich { player } else { other };
                        finds.push((player, self.new_find(player)));
                    }
                    self.record(finds).await;
                }
                10..17 => self.credit(player).await,
                _ => self.adjust(player).await,
            }
        }
        let (short, long) = (
            self.below(60_000),
            WINDOW_MS / 2 + self.below(2 * WINDOW_MS),
        );
        if self.model.hunt.state(self.now) != HuntState::Open {
            // A hunt that stays closed shows little.
            self.change_hunt().await;
        }
        match nth % 6 {
            0 => self.change_hunt().await,
            1 => self.step(6_000 + long).await,
            2 => self.reinstate().await,
            3 => {
                let player = usize::try_from(self.below(players)).unwrap();
                self.erase(player).await;
            }
            4 => self.advance(long).await,
            _ => {}
        }
        self.advance(short).await;
    }
}
