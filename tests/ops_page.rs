//! The page for operators of a server, in a real Chromium: its figures are those of `/metrics`, nothing fails in the console,
//! and it says when it has lost its server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod browser;
mod http_site;

use browser::{Browser, LIGHT, Window};
use http_site::{Ask, Site, series, wait};
use serde_json::{Value, json};

/// What the page shows of `/metrics`: series and the whole value.
const SHOWN: &str = "return [...document.querySelectorAll('[data-series]')]
    .map((node) => [node.dataset.series, node.dataset.value, node.checkVisibility()]);";

fn scrape(site: &Site) -> String {
    site.ops().send(Ask::get("/metrics")).text()
}

/// How many figures of the page were compared with a scrape, and those that differ. What a scrape itself moves is not.
fn differences(shown: &Value, text: &str) -> (usize, Vec<String>) {
    let unsteady = [
        "trove_process_",
        "trove_runtime_",
        "trove_event_loop_",
        "trove_beside_",
    ];
    let (mut compared, mut differ) = (0, Vec::new());
    for entry in shown.as_array().unwrap() {
        let name = entry[0].as_str().unwrap();
        assert_eq!(entry[2], true, "{name} is to be seen");
        if unsteady.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let value = entry[1]
            .as_str()
            .unwrap_or_else(|| panic!("{name} has no value"));
        let value: Option<f64> = value.parse().ok();
        let scraped = text.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix(' ')?;
            rest.parse::<f64>().ok()
        });
        compared += 1;
        if value.is_none() || value != scraped {
            differ.push(format!("{name}: {value:?} and {scraped:?}"));
        }
    }
    (compared, differ)
}

/// A server with something to show: hunts, finds, polls of several outcomes.
fn busy_site() -> Site {
    // So that some requests are slow: every one that takes a tenth of a second.
    let site = Site::with(&[("sla.slow_ms", "100")]);
    site.open_h();
    site.open_hunt(
        &json!({"id": "harbour-night", "name": "Harbour night", "treasures": [
        {"id": "crane", "name": "The old crane", "coins": 50}]}),
    );
    site.manage(Ask::new("PUT", "/hunts/draft").body(
        json!({"id": "draft", "name": "<b>Not & open</b>", "treasures": [{"id": "t", "coins": 1}]})
            .to_string(),
    ))
    .is(201);
    let mut one = site.player("one");
    for n in 0..12 {
        one.finds("r", &format!("id-{n}"));
    }
    one.poll();
    one.finds("r", "pending");
    let mut two = site.player("two");
    two.find(&json!({"treasure": "a"})).is(201);
    for _ in 0..50 {
        two.poll();
    }
    assert_eq!(two.find(&json!({"treasure": "none"})).status, 404);
    site
}

#[test]
fn the_figures_of_the_page_are_those_of_the_metrics_and_nothing_fails_in_the_console() {
    if !browser::is_installed() {
        return;
    }
    let site = busy_site();
    let mut browser = Browser::start(LIGHT);
    browser.open(&format!("http://{}/ops", site.ops().address));
    browser.until("two states", "document.body.dataset.shown > 2");
    // The store keeps house now and then, and a page is up to a second behind: at some moment they are the same.
    let (mut text, mut compared) = (String::new(), 0);
    wait("the page to show what the metrics say", || {
        let shown = browser.run(SHOWN);
        text = scrape(&site);
        let (figures, differ) = differences(&shown, &text);
        if !differ.is_empty() {
            println!("{differ:?}");
        }
        compared = figures;
        differ.is_empty()
    });
    println!("compared {compared} figures");
    assert!(compared >= 25, "only {compared} figures on the page");
    assert_eq!(series(&text, "trove_credits_total"), 13);
    // What people read is the same.
    let read = browser
        .run("return document.querySelector('[data-series=\"trove_credits_total\"]').textContent;");
    assert_eq!(read, "13");
    let coins = browser.run(
        "return [...document.querySelectorAll('[data-series]')].find((n) => n.dataset.series === 'trove_coins{hunt=\"h\",state=\"pending\"}').textContent;",
    );
    assert_eq!(coins, "3");
    // A name is text, whatever it is.
    assert_eq!(
        browser.run("return document.querySelectorAll('#hunts b').length;"),
        0
    );
    let hunts = browser.run("return document.getElementById('hunts').textContent;");
    assert!(
        hunts.as_str().unwrap().contains("<b>Not & open</b>"),
        "{hunts}"
    );
    let finds = browser.run("return document.querySelectorAll('#finds tbody tr').length;");
    assert_eq!(finds, 10);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_page_says_that_it_has_lost_its_server_and_goes_on_when_it_is_back() {
    if !browser::is_installed() {
        return;
    }
    let mut site = Site::stopped(&[]);
    // It must come back where it was.
    let listen = free_address();
    site.start_with_ops_on(&listen);
    let mut browser = Browser::start(LIGHT);
    browser.open(&format!("http://{listen}/ops"));
    browser.until("a state", "document.body.dataset.shown > 0");
    assert_eq!(
        browser.run("return document.getElementById('lost').hidden;"),
        true
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
    site.kill();
    browser.until("the banner", "!document.getElementById('lost').hidden");
    let says = browser.run("return document.getElementById('lost').textContent;");
    assert!(
        says.as_str()
            .unwrap()
            .starts_with("No connection to this process since"),
        "{says}"
    );
    let link = browser.run("return document.getElementById('link').textContent;");
    assert_eq!(link, "Connection lost");
    let verdict = browser.run("return document.getElementById('verdict').textContent;");
    assert_eq!(verdict, "Not known now", "an old verdict is none");
    assert_eq!(browser.run(FAINT), json!([]), "old figures are legible");
    browser.picture("lost");
    site.start_with_ops_on(&listen);
    browser.until(
        "the page to be live again",
        "document.getElementById('lost').hidden",
    );
    let link = browser.run("return document.getElementById('link').textContent;");
    assert_eq!(link, "Live");
    // A server that drains ends the events, and is not held up by who looks on.
    assert!(site.stop().success());
    browser.until(
        "the banner again",
        "!document.getElementById('lost').hidden",
    );
}

/// An address that was free a moment ago.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The text of what is seen whose contrast with what is behind it is below 4.5 to 1 (3 to 1 where it is large).
const FAINT: &str = r"
    const channels = (colour) => {
        const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
        return { rgb: [r, g, b], a };
    };
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const { rgb, a } = channels(getComputedStyle(at).backgroundColor);
            if (a === 1) return rgb;
        }
        return [255, 255, 255];
    };
    const light = (rgb) => {
        const [r, g, b] = rgb.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const faint = [];
    for (const node of document.querySelectorAll('body *')) {
        const own = [...node.childNodes].filter((child) => child.nodeType === 3 && child.textContent.trim() !== '');
        if (own.length === 0 || !node.checkVisibility()) continue;
        const style = getComputedStyle(node);
        const [a, b] = [light(channels(style.color).rgb), light(behind(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) faint.push(`${node.tagName} ${own[0].textContent.trim()} ${ratio.toFixed(2)}`);
    }
    return faint;
";

#[test]
fn the_page_is_legible_in_light_and_dark_and_fits_a_phone() {
    if !browser::is_installed() {
        return;
    }
    let site = busy_site();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut players: Vec<_> = (0..20).map(|n| site.player(&format!("p{n}"))).collect();
            let mut n = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for player in &mut players {
                    player.poll();
                }
                players[0].finds("r", &format!("more-{n}"));
                n += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        // Whatever fails, the players stop.
        let outcome = std::panic::catch_unwind(|| {
            for (name, window) in [
                ("light", LIGHT),
                (
                    "dark",
                    Window {
                        dark: true,
                        ..LIGHT
                    },
                ),
                (
                    "narrow",
                    Window {
                        width: 390,
                        height: 844,
                        dark: false,
                    },
                ),
                (
                    "narrow-dark",
                    Window {
                        width: 390,
                        height: 844,
                        dark: true,
                    },
                ),
            ] {
                let mut browser = Browser::start(window);
                browser.open(&format!("http://{}/ops", site.ops().address));
                browser.until("some states", "document.body.dataset.shown > 4");
                let is_dark =
                    browser.run("return matchMedia('(prefers-color-scheme: dark)').matches;");
                assert_eq!(is_dark, window.dark, "{name}");
                assert_eq!(browser.run(FAINT), json!([]), "{name}");
                // Tables scroll in themselves; the page never sideways.
                let wide = browser.run("return document.documentElement.scrollWidth - innerWidth;");
                assert!(wide.as_i64().unwrap() <= 0, "{name}: {wide} too wide");
                browser.picture(name);
                assert_eq!(browser.complaints(), Vec::<String>::new(), "{name}");
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.unwrap();
    });
}

#[test]
fn the_page_is_used_by_keyboard() {
    if !browser::is_installed() {
        return;
    }
    let site = busy_site();
    let mut browser = Browser::start(LIGHT);
    browser.open(&format!("http://{}/ops", site.ops().address));
    browser.until("some states", "document.body.dataset.shown > 3");
    const TAB: char = '\u{e004}';
    const LEFT: char = '\u{e012}';
    let mut seen = Vec::new();
    for _ in 0..6 {
        browser.keys(&[TAB]);
        seen.push(browser.run("return document.activeElement.tagName;"));
    }
    assert_eq!(seen[0], "A", "the way past the head comes first");
    assert!(seen.contains(&Value::from("CANVAS")), "{seen:?}");
    browser.run("document.querySelector('canvas').focus();");
    browser.keys(&[LEFT]);
    let read = browser.run("return document.querySelector('.legend .when').textContent;");
    assert_ne!(read, "");
    let label = browser.run("return document.activeElement.getAttribute('aria-label');");
    assert!(
        label.as_str().unwrap().contains(read.as_str().unwrap()),
        "{label}"
    );
}

#[test]
fn the_page_comes_with_a_policy_that_lets_it_ask_nobody_else() {
    let site = Site::start();
    for (path, kind) in [
        ("/ops", "text/html; charset=utf-8"),
        ("/ops/page.css", "text/css; charset=utf-8"),
        ("/ops/page.js", "text/javascript; charset=utf-8"),
        ("/ops/plot.js", "text/javascript; charset=utf-8"),
        ("/ops/state", "application/json"),
    ] {
        let answer = site.ops().send(Ask::get(path));
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.field("content-type"), Some(kind));
        let policy = answer.field("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.field("x-content-type-options"), Some("nosniff"));
        let text = answer.text();
        let is_own = |url: &&str| url.starts_with("http://www.w3.org/2000/svg");
        let others: Vec<&str> = text
            .match_indices("http")
            .map(|(at, _)| &text[at..])
            .filter(|url| url.starts_with("http://") || url.starts_with("https://"))
            .filter(|url| !is_own(url))
            .collect();
        assert!(others.is_empty(), "{path} names {others:.40?}");
    }
}

#[test]
fn the_state_as_json_has_what_the_page_shows() {
    let site = busy_site();
    wait("a moment", || {
        !site.ops().send(Ask::get("/ops/state")).is(200)["moment"].is_null()
    });
    let state = site.ops().send(Ask::get("/ops/state")).is(200);
    assert_eq!(state["role"], "serve");
    assert_eq!(state["instance"], "site-1");
    assert_eq!(state["samples"]["trove_credits_total"], 13.0);
    assert_eq!(state["store"]["health"], "up");
    assert_eq!(state["sla"]["role"], "serve");
    let hunts = state["hunts"].as_array().unwrap();
    let ids: Vec<&str> = hunts
        .iter()
        .map(|hunt| hunt["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["h", "harbour-night", "draft"], "open ones come first");
    assert_eq!(
        (&hunts[0]["recorded"], &hunts[0]["pending"]),
        (&json!(44), &json!(3))
    );
    let finds = state["finds"].as_array().unwrap();
    assert_eq!(finds.len(), 14);
    assert_eq!(
        (&finds[0]["treasure"], &finds[0]["coins"]),
        (&json!("a"), &json!(5))
    );
    // Names of players are in one map, and not here.
    assert!(!state.to_string().contains("\"one\""));
}
