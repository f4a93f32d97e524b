//! The demo: a hunt of real places, and simulated players who find and poll over HTTP like anybody else.

use super::app::App;
use crate::game::document::{HuntDocument, TreasureDocument};
use crate::game::hunt::{HuntState, LifeStep};
use crate::game::ids::{HuntId, PlayerName};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The demo's hunt.
pub const HUNT: &str = "demo";
/// Simulated players.
const PLAYERS: usize = 250;
/// Each finds something about this often.
const FIND_INTERVAL: Duration = Duration::from_secs(15);
/// Life of the simulated players' tokens, in seconds.
const TOKEN_TTL_S: u64 = 24 * 3_600;
/// A treasure in so many can be found again and again, so that the demo does not run out.
const REPEATABLE_EVERY: usize = 4;

/// The places, see `data/README.md`.
const PLACES: &str = include_str!("../../data/demo_places.json");

#[derive(Deserialize)]
struct Place {
    id: String,
    name: String,
    lat: f64,
    lon: f64,
}

/// The demo's players, on a thread of their own.
pub struct Players {
    stop: watch::Sender<bool>,
    token: String,
    treasure: String,
}

fn places() -> Result<Vec<Place>, String> {
    serde_json::from_str(PLACES).map_err(|error| error.to_string())
}

fn document(places: &[Place]) -> HuntDocument {
    let treasure = |(nth, place): (usize, &Place)| TreasureDocument {
        id: place.id.clone(),
        name: Some(place.name.clone()),
        coins: 5 + (nth as u64 * 7) % 46,
        lat: Some(place.lat),
        lon: Some(place.lon),
        repeatable: nth % REPEATABLE_EVERY == 0,
        supply: None,
        prizes: None,
        code: None,
        radius_m: None,
    };
    HuntDocument {
        id: HUNT.into(),
        name: "Airports of the world".into(),
        window_ms: None,
        opens_at: None,
        closes_at: None,
        treasures: places.iter().enumerate().map(treasure).collect(),
    }
}

/// Makes the hunt if it is not there, and lets the players loose.
///
/// # Errors
/// Why the hunt cannot be made, in words.
pub async fn start(app: &Arc<App>, public: SocketAddr) -> Result<Players, String> {
    let places = places()?;
    let id = HuntId::new(HUNT).map_err(|error| error.to_string())?;
    if app.hunt(HUNT).is_err() {
        let spec = document(&places)
            .validate()
            .map_err(|errors| format!("{errors:?}"))?;
        let made = app
            .store
            .put_hunt(spec)
            .await
            .map_err(|error| error.to_string())?;
        app.take_hunt(made.map_err(|error| error.to_string())?.0);
    }
    let live = app.hunt(HUNT).map_err(|problem| problem.detail)?;
    if live.hunt.state(app.store.now()) != HuntState::Open {
        let opened = app
            .store
            .step_hunt(&id, LifeStep::Open)
            .await
            .map_err(|error| error.to_string())?;
        app.take_hunt(opened.map_err(|error| error.to_string())?);
    }
    let sign = |name: &str| PlayerName::new(name).map(|player| app.sign(&player, TOKEN_TTL_S).0);
    let token = sign("you").map_err(|error| error.to_string())?;
    let tokens: Result<Vec<String>, _> =
        (1..=PLAYERS).map(|n| sign(&format!("demo-{n}"))).collect();
    let tokens = tokens.map_err(|error| error.to_string())?;
    let treasures: Arc<[(String, bool)]> = places
        .iter()
        .enumerate()
        .map(|(nth, place)| (place.id.clone(), nth % REPEATABLE_EVERY == 0))
        .collect();
    let treasure = places
        .first()
        .map_or_else(String::new, |place| place.id.clone());
    let (stop, stopped) = watch::channel(false);
    std::thread::Builder::new()
        .name("trove-demo".into())
        .spawn(move || play(reachable(public), tokens, &treasures, stopped))
        .map_err(|error| error.to_string())?;
    Ok(Players {
        stop,
        token,
        treasure,
    })
}

/// An address that can be connected to, for one that is listened on.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    address
}

impl Players {
    /// Lets the players go home.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Says on standard output where to look, in commands to paste.
    pub fn announce(&self, public: SocketAddr, ops: SocketAddr) {
        let (public, ops, token, treasure) = (
            reachable(public),
            reachable(ops),
            &self.token,
            &self.treasure,
        );
        println!(
            "
Trove is running a demo: {PLAYERS} simulated players hunt for treasures at airports of the world.
Watch it: http://{ops}/ops

You can play too. In another terminal:

  TOKEN={token}

  # what is there to find
  curl -s 'http://{public}/hunts/{HUNT}?fields=id,name,coins' | head -c 400; echo
  # find a treasure, then poll: the coins are yours
  curl -s -X POST -H \"Authorization: Bearer $TOKEN\" -d '{{\"treasure\":\"{treasure}\",\"id\":\"my-first-find\"}}' http://{public}/treasure/{HUNT}/finds; echo
  curl -s -H \"Authorization: Bearer $TOKEN\" http://{public}/treasure/{HUNT}; echo
  # every entry of your wallet
  curl -s -H \"Authorization: Bearer $TOKEN\" http://{public}/treasure/{HUNT}/history; echo
  # the metrics
  curl -s http://{ops}/metrics | grep trove_coins

Stop it with Ctrl-C. Everything is kept for the next start.
"
        );
    }
}

fn play(
    server: SocketAddr,
    tokens: Vec<String>,
    treasures: &Arc<[(String, bool)]>,
    mut stop: watch::Receiver<bool>,
) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return;
    };
    runtime.block_on(async move {
        for (nth, token) in tokens.into_iter().enumerate() {
            tokio::spawn(one_player(server, token, treasures.clone(), nth as u64));
        }
        let _ = stop.wait_for(|stop| *stop).await;
    });
}

/// Plays until the runtime ends, connecting again whenever the connection is lost.
async fn one_player(
    server: SocketAddr,
    token: String,
    treasures: Arc<[(String, bool)]>,
    seed: u64,
) {
    let mut random = SmallRng::seed_from_u64(seed);
    loop {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..2_000))).await;
        if let Ok(connection) = connect(server).await {
            let _ = visit(connection, &token, &treasures, &mut random).await;
        }
    }
}

async fn connect(
    server: SocketAddr,
) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(server).await?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Polls as often as it is asked to, and finds now and then, over one connection.
async fn visit(
    mut connection: SendRequest<Full<Bytes>>,
    token: &str,
    treasures: &[(String, bool)],
    random: &mut SmallRng,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let bearer = format!("Bearer {token}");
    let request = |method: Method, path: String, body: String| {
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "trove")
            .header(header::AUTHORIZATION, &bearer)
            .body(Full::new(Bytes::from(body)))
    };
    let mut finds = random.random::<u32>();
    loop {
        let answer = connection
            .send_request(request(
                Method::GET,
                format!("/treasure/{HUNT}"),
                String::new(),
            )?)
            .await?;
        let wait_ms = answer
            .headers()
            .get("trove-next-poll-ms")
            .and_then(|ms| ms.to_str().ok()?.parse().ok());
        answer.into_body().collect().await?;
        let wait = Duration::from_millis(wait_ms.unwrap_or(1_200));
        if random.random_bool((wait.as_secs_f64() / FIND_INTERVAL.as_secs_f64()).min(1.0)) {
            let (treasure, repeatable) = &treasures[random.random_range(0..treasures.len())];
            finds = finds.wrapping_add(1);
            let body = if *repeatable {
                format!("{{\"treasure\":\"{treasure}\",\"id\":\"{finds:x}\"}}")
            } else {
                format!("{{\"treasure\":\"{treasure}\"}}")
            };
            let answer = connection
                .send_request(request(
                    Method::POST,
                    format!("/treasure/{HUNT}/finds"),
                    body,
                )?)
                .await?;
            answer.into_body().collect().await?;
        }
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_document_is_a_good_one() {
        let spec = document(&places().unwrap()).validate().unwrap();
        assert_eq!(spec.treasures.len(), 300);
    }
}
