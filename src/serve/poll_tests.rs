//! What cannot be brought about from outside: polls between whose steps others act.

use super::super::app::App;
use super::super::catalogue::LiveHunt;
use super::*;
use crate::auth::{Keys, Secrets};
use crate::config::Settings;
use crate::game::document::HuntDocument;
use crate::game::hunt::LifeStep;
use crate::game::ids::{FindId, PlayerId, PlayerName, TreasureId};
use crate::game::rules::{NewFind, What};
use crate::game::wallet::Wallet;
use crate::store::Opening;
use crate::store::clock::{ManualTime, SystemTimeSource, TimeSource};
use crate::store::embedded::{EmbeddedStore, Options};
use http_body_util::BodyExt;

/// An application on a store with one hunt, and a player in it.
struct World {
    app: Arc<App>,
    live: Arc<LiveHunt>,
    caller: Caller,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::at(Arc::new(SystemTimeSource::default())).await
    }

    async fn at(time: Arc<dyn TimeSource>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            time,
            ..Options::new(dir.path())
        };
        let store = Arc::new(EmbeddedStore::open(options).unwrap());
        let document =
            r#"{"id":"h","name":"H","treasures":[{"id":"r","coins":3,"repeatable":true}]}"#;
        let document: HuntDocument = serde_json::from_str(document).unwrap();
        let spec = document.validate().unwrap();
        let mut settings = Settings::default();
        settings.poll.credit_wait_ms = 10_000;
        let secrets = Secrets {
            token_key: Some("k".repeat(32)),
            admin_key: Some("k".repeat(32)),
        };
        let (keys, _) = Keys::load(&settings, &secrets, None).unwrap();
        let app = App::new(store, settings, keys, HeaderValue::from_static("i"));
        let id = spec.id.clone();
        app.store.put_hunt(spec).await.unwrap().unwrap();
        let hunt = app.store.step_hunt(&id, LifeStep::Open).await.unwrap();
        app.take_hunt(hunt.unwrap());
        let live = app.hunt("h").unwrap();
        let name = PlayerName::new("ann").unwrap();
        let player = open(&app, &name).await;
        Self {
            app,
            live,
            caller: Caller { name, player },
            _dir: dir,
        }
    }

    fn key(&self) -> Key {
        Key {
            hunt: self.live.hunt.number,
            player: self.caller.player,
        }
    }

    async fn find(&self, id: &str) {
        let new = NewFind {
            what: What::Treasure(TreasureId::new("r").unwrap()),
            id: Some(FindId::new(id).unwrap()),
            found_at: None,
        };
        let record = self
            .app
            .store
            .record(&self.live.hunt.spec.id, vec![(self.caller.player, new)]);
        assert!(record.await.unwrap().outcomes[0].is_ok());
    }

    async fn collect(&self, id: &str) {
        self.find(id).await;
        let credit = self
            .app
            .store
            .credit(&self.live.hunt.spec.id, self.key().player);
        assert_eq!(credit.await.unwrap().entries.len(), 1);
    }

    async fn wallet(&self) -> Wallet {
        self.app
            .store
            .wallet(&self.live.hunt.spec.id, self.caller.player)
            .await
            .unwrap()
    }

    /// What a poll shows that names `seq` and has looked at `wallet`.
    async fn shown(&self, seq: u64, wallet: Wallet) -> serde_json::Value {
        let ask = Ask {
            since: Some(Cursor {
                epoch: self.app.store.epoch(),
                seq,
            }),
            matched: None,
            wait: None,
            collect: true,
        };
        let mut seen = Sighting::sure(wallet, self.app.epoch());
        let answer = answer(
            &self.app,
            &self.live,
            &self.caller,
            self.key(),
            &ask,
            &mut seen,
        );
        let response = answer.await.ok().unwrap().response;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }
}

async fn open(app: &App, name: &PlayerName) -> PlayerId {
    let opening = Opening {
        name: name.clone(),
        issued_at: Some(app.store.now()),
        known: None,
    };
    app.store.open_players(vec![opening]).await.unwrap()[0].unwrap()
}

#[tokio::test]
async fn what_another_poll_credits_after_this_one_looked_is_shown_all_the_same() {
    let world = World::new().await;
    world.find("one").await;
    let looked_at = world.wallet().await;
    // Another poll of the player credits, and is done before this one's credit begins.
    world
        .app
        .store
        .credit(&world.live.hunt.spec.id, world.caller.player)
        .await
        .unwrap();
    let poll = world.shown(looked_at.seq, looked_at).await;
    assert_eq!(poll["balance"], 3);
    assert_eq!(poll["finds"][0]["id"], "one", "{poll}");
    // The same, with a find that this poll does collect.
    world.find("two").await;
    let looked_at = world.wallet().await;
    world
        .app
        .store
        .credit(&world.live.hunt.spec.id, world.caller.player)
        .await
        .unwrap();
    world.find("three").await;
    let poll = world.shown(looked_at.seq, looked_at).await;
    assert_eq!(
        (
            poll["balance"].as_u64(),
            poll["finds"].as_array().unwrap().len()
        ),
        (Some(9), 2),
        "{poll}"
    );
}

#[tokio::test]
async fn a_reset_shows_the_last_window_whole_and_little_of_what_was_before() {
    let time = Arc::new(ManualTime::new(1_800_000_000_000));
    let world = World::at(time.clone()).await;
    let reset = async || {
        let poll = world.shown(9_999, world.wallet().await).await;
        assert_eq!(poll["reset"], true, "{poll}");
        let ids = poll["finds"].as_array().unwrap().iter();
        let ids = ids.map(|find| find["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    for n in 0..30 {
        world.collect(&format!("old{n}")).await;
    }
    // Past the hunt's window of five minutes.
    time.advance(300_001);
    let ids = reset().await;
    assert_eq!(ids, ["old26", "old27", "old28", "old29"]);
    let new: Vec<String> = (0..10).map(|n| format!("new{n}")).collect();
    for id in &new {
        world.collect(id).await;
    }
    let ids = reset().await;
    assert!(ids.ends_with(&new), "{ids:?}");
    assert!(ids.len() < 10 + 30, "{ids:?}");
    // All of one window, however many pages it takes.
    time.advance(300_001);
    let many: Vec<String> = (0..50).map(|n| format!("many{n}")).collect();
    for id in &many {
        world.collect(id).await;
    }
    assert!(reset().await.ends_with(&many));
}
