//! Clients outside, and their own books: every find that was acknowledged to them, every credit that they were told. At the
//! end each must be in the ledger, once.

use crate::http_site::{Ask, Client, Site, token};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Players of one phone each; a thread plays for several.
const THREADS: usize = 6;
const PLAYERS_A_THREAD: usize = 5;
/// The pause between two requests of a thread.
const PAUSE: Duration = Duration::from_millis(4);

/// What clients know.
#[derive(Debug, Default)]
pub struct Books {
    pub found: BTreeSet<(String, String)>,
    pub credited: BTreeSet<(String, String)>,
    pub polls: u64,
    pub stale: u64,
    pub resets: u64,
    /// Polls that were not answered with 200 or 304.
    pub failed: Vec<String>,
    /// How long each poll took.
    pub took: Vec<Duration>,
    /// Finds that were answered with an error, and tried again with the same id.
    pub retried: u64,
}

/// Players at play, until stopped.
pub struct Load {
    books: Arc<Mutex<Books>>,
    stop: Arc<AtomicBool>,
    warm: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Lets players play hunt `h`, each at an instance of its own, as behind the shim.
    pub fn start(sites: &[Site], seed: u64) -> Self {
        let load = Self {
            books: Arc::default(),
            stop: Arc::default(),
            warm: Arc::default(),
            threads: Vec::new(),
        };
        let addresses: Vec<SocketAddr> = sites.iter().map(Site::public).collect();
        let mut load = load;
        for thread in 0..THREADS {
            let (books, stop, warm) = (load.books.clone(), load.stop.clone(), load.warm.clone());
            let address = addresses[thread % addresses.len()];
            let random = SmallRng::seed_from_u64(seed.wrapping_add(thread as u64));
            load.threads.push(std::thread::spawn(move || {
                play(address, thread, random, (&books, &stop, &warm));
            }));
        }
        crate::http_site::wait("all players to have polled", || {
            load.warm.load(SeqCst) == THREADS
        });
        load
    }

    /// How many finds were acknowledged and credits told by now.
    pub fn so_far(&self) -> (usize, usize) {
        let books = self.books.lock().unwrap();
        (books.found.len(), books.credited.len())
    }

    /// How many finds were answered with an error by now, and are tried again.
    pub fn retried(&self) -> u64 {
        self.books.lock().unwrap().retried
    }

    /// Waits until so many more finds are acknowledged and credits told.
    pub fn goes_on(&self, more: usize) {
        let (found, credited) = self.so_far();
        crate::http_site::wait("play to go on", || {
            let now = self.so_far();
            now.0 >= found + more && now.1 >= credited + more
        });
    }

    /// Ends the play and gives the books.
    pub fn stop(self) -> Books {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        std::mem::take(&mut self.books.lock().unwrap())
    }
}

fn play(
    address: SocketAddr,
    thread: usize,
    mut random: SmallRng,
    (books, stop, warm): (&Mutex<Books>, &AtomicBool, &AtomicUsize),
) {
    struct Player {
        name: String,
        token: String,
        cursor: Option<String>,
        /// Finds that are not acknowledged yet.
        open: VecDeque<String>,
        count: usize,
    }
    let mut client = Client::new(address);
    let mut players: Vec<Player> = (0..PLAYERS_A_THREAD)
        .map(|nth| {
            let name = format!("p{thread}-{nth}");
            Player {
                token: token(&name),
                name,
                cursor: None,
                open: VecDeque::new(),
                count: 0,
            }
        })
        .collect();
    let mut first = players.len();
    while !stop.load(SeqCst) || players.iter().any(|player| !player.open.is_empty()) {
        let nth = random.random_range(0..players.len());
        let at = if first > 0 { first - 1 } else { nth };
        let player = &mut players[at];
        let polls = first > 0 || (player.open.is_empty() && random.random_range(0..3) > 0);
        if polls {
            let path = match &player.cursor {
                Some(cursor) => format!("/treasure/h?since={cursor}"),
                None => "/treasure/h".to_owned(),
            };
            let began = Instant::now();
            let answer = client.try_send(&Ask::get(&path).bearer(&player.token));
            let took = began.elapsed();
            let mut books = books.lock().unwrap();
            books.polls += 1;
            books.took.push(took);
            match answer {
                Ok(answer) if answer.status == 200 => {
                    let body = answer.json();
                    player.cursor = body["cursor"].as_str().map(str::to_owned);
                    books.stale += u64::from(body["stale"] == true);
                    books.resets += u64::from(body["reset"] == true);
                    for find in body["finds"].as_array().into_iter().flatten() {
                        let id = find["id"].as_str().unwrap().to_owned();
                        books.credited.insert((player.name.clone(), id));
                    }
                }
                Ok(answer) => {
                    let what = format!("{}: {} {}", player.name, answer.status, answer.text());
                    books.failed.push(what);
                }
                Err(error) => books.failed.push(format!("{}: {error}", player.name)),
            }
            drop(books);
            if first > 0 {
                first -= 1;
                if first == 0 {
                    warm.fetch_add(1, SeqCst);
                }
            }
        } else {
            if player.open.is_empty() {
                player.count += 1;
                player
                    .open
                    .push_back(format!("{}-{}", player.name, player.count));
            }
            let id = player.open[0].clone();
            let body = json!({"treasure": "r", "id": id}).to_string();
            let ask = Ask::post("/treasure/h/finds", body).bearer(&player.token);
            let answer = client.try_send(&ask);
            let mut books = books.lock().unwrap();
            match answer {
                Ok(answer) if matches!(answer.status, 200 | 201) => {
                    player.open.pop_front();
                    books.found.insert((player.name.clone(), id));
                }
                Ok(answer) if answer.status == 503 => books.retried += 1,
                Ok(answer) => {
                    let what = format!("find {id}: {} {}", answer.status, answer.text());
                    books.failed.push(what);
                    player.open.pop_front();
                }
                Err(_) => books.retried += 1,
            }
        }
        std::thread::sleep(PAUSE);
    }
}

impl Books {
    /// Holds the ledger to the books: everything acknowledged is there, and nothing is there twice.
    #[track_caller]
    pub fn are_kept_by(&self, site: &Site) {
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut found: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut credited: BTreeMap<(String, String), u32> = BTreeMap::new();
        for row in site.export("h") {
            let text = |name: &str| row[name].as_str().map(str::to_owned);
            let number = text("player").unwrap();
            let of = match row["kind"].as_str().unwrap() {
                "wallet" => {
                    names.extend(text("name").map(|name| (number, name)));
                    continue;
                }
                "find" => &mut found,
                "credit" | "reinstate" => &mut credited,
                _ => continue,
            };
            let name = names.get(&number).cloned().unwrap_or(number);
            *of.entry((name, text("find").unwrap())).or_default() += 1;
        }
        let twice = |of: &BTreeMap<(String, String), u32>| -> Vec<Value> {
            let many = of.iter().filter(|(_, count)| **count != 1);
            many.map(|(of, count)| json!([of, count])).collect()
        };
        assert_eq!((twice(&found), twice(&credited)), (vec![], vec![]));
        let lost = |told: &BTreeSet<(String, String)>, is: &BTreeMap<(String, String), u32>| {
            let lost: Vec<_> = told.iter().filter(|it| !is.contains_key(it)).collect();
            format!("{} of {} lost: {lost:?}", lost.len(), told.len())
        };
        let none = |of: usize| format!("0 of {of} lost: []");
        assert_eq!(lost(&self.found, &found), none(self.found.len()), "finds");
        assert_eq!(
            lost(&self.credited, &credited),
            none(self.credited.len()),
            "credits"
        );
        site.verifies();
    }

    /// How long the slowest poll took of the fastest so many per mille.
    pub fn per_mille(&self, per_mille: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        let at = (took.len() * per_mille).div_ceil(1_000).saturating_sub(1);
        took.get(at).copied().unwrap_or_default()
    }

    /// Holds it to no poll having failed.
    #[track_caller]
    pub fn no_poll_failed(&self) {
        assert!(self.failed.is_empty(), "{:#?}", self.failed);
    }
}
