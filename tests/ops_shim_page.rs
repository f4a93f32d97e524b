//! The page for operators of a shim, in a real Chromium: its figures are those of `/metrics`, and it switches upstreams with
//! the admin key, which it does not keep.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod browser;
#[allow(
    unused_imports,
    reason = "its client drives the browser, its site is another's"
)]
mod http_site;
mod shim_site;

use browser::{Browser, LIGHT, Window};
use serde_json::{Value, json};
use shim_site::{ADMIN_KEY, Process, Shim, start, tokens, trove};
use std::net::SocketAddr;
use std::path::Path;

/// A server with an open hunt.
fn serve(dir: &Path, name: &str) -> (Process, SocketAddr) {
    let store = format!("embedded:{}", dir.join(name).display());
    let listen = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"];
    let args = [
        &["serve", "--store", &store, "--instance-id", name],
        &listen[..],
    ]
    .concat();
    let (process, public, _) = start(trove(&args));
    let hunt = dir.join("hunt.json");
    std::fs::write(
        &hunt,
        r#"{"id":"h","name":"h","treasures":[{"id":"t","coins":5}]}"#,
    )
    .unwrap();
    let server = format!("http://{public}");
    for args in [
        ["hunt", "put", hunt.to_str().unwrap(), "--server", &server],
        ["hunt", "open", "h", "--server", &server],
    ] {
        assert!(trove(&args).output().unwrap().status.success());
    }
    (process, public)
}

const SWITCH: &str = "[...document.querySelectorAll('#upstreams button')].find((b) => b.textContent.startsWith('Switch to green'))";

#[test]
fn the_shim_s_page_shows_its_metrics_and_switches_with_a_key_that_it_does_not_keep() {
    if !browser::is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let servers = ["a", "b"].map(|name| serve(dir.path(), name));
    let [blue, green] = [servers[0].1, servers[1].1];
    let shim = Shim::start(&[format!("blue={blue}"), format!("green={green}")]);
    shim.until_usable(blue, true);
    shim.until_usable(green, true);
    let token = tokens(&["one".to_owned()]).remove(0);
    let mut client = shim.connect();
    for _ in 0..5 {
        client.send(
            format!("POST /heartbeat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n")
                .as_bytes(),
        );
        assert_eq!(client.reply().status, 204);
        client.send(
            format!("GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n")
                .as_bytes(),
        );
        assert_eq!(client.reply().status, 200);
    }
    let mut browser = Browser::start(LIGHT);
    browser.open(&format!("http://{}/ops", shim.ops));
    browser.until("some states", "document.body.dataset.shown > 2");
    browser.until(
        "the player to be counted",
        "[...document.querySelectorAll('[data-series]')].some((node) => node.dataset.series === 'trove_shim_players_online' && node.dataset.value === '1')",
    );
    let shown = browser.run(
        "return [...document.querySelectorAll('[data-series]')].map((node) => [node.dataset.series, node.dataset.value]);",
    );
    let mut compared = 0;
    for entry in shown.as_array().unwrap() {
        let name = entry[0].as_str().unwrap();
        if ["trove_process_", "trove_runtime_", "trove_event_loop_"]
            .iter()
            .any(|p| name.starts_with(p))
        {
            continue;
        }
        let value: f64 = entry[1]
            .as_str()
            .unwrap_or_else(|| panic!("{name}"))
            .parse()
            .unwrap();
        assert!((value - shim.metric(name)).abs() < f64::EPSILON, "{name}");
        compared += 1;
    }
    assert!(compared >= 10, "{shown}");
    let of = |series: &str| {
        let entries = shown.as_array().unwrap().iter();
        let mut of_it = entries.filter(|entry| entry[0] == series);
        of_it.next().map(|entry| entry[1].clone())
    };
    assert_eq!(of("trove_shim_heartbeats_total"), Some(json!("5")));
    assert_eq!(of("trove_shim_players_online"), Some(json!("1")));
    browser.picture("shim");

    // By keyboard alone: the button, a wrong key, then the right one.
    const ENTER: char = '\u{e007}';
    let mut try_key = |key: &str| -> Value {
        browser.run(&format!(
            "document.getElementById('switch-said').textContent = ''; {SWITCH}.focus();"
        ));
        browser.keys(&[ENTER]);
        browser.until("the dialog", "document.getElementById('switch').open");
        let focused = browser.run("return document.activeElement.id;");
        assert_eq!(focused, "switch-key");
        browser.keys(&key.chars().chain([ENTER]).collect::<Vec<_>>());
        browser.until(
            "an answer",
            "/live\\.$|Not switched/.test(document.getElementById('switch-said').textContent)",
        );
        assert_eq!(
            browser.run("return document.getElementById('switch-key').value;"),
            ""
        );
        browser.run("return document.getElementById('switch-said').textContent;")
    };
    assert_eq!(
        try_key("a-key-that-is-none-at-all"),
        "Not switched: this is not an admin key"
    );
    assert_eq!(try_key(ADMIN_KEY), "green is live.");
    browser.until("the page to show it", &format!("{SWITCH}.hidden"));
    let kept = browser.run(
        "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, document.documentElement.outerHTML]);",
    );
    assert!(!kept.as_str().unwrap().contains(ADMIN_KEY));
    // The refusal of the wrong key is an answer of the server, and the console's only word.
    let complaints = browser.complaints();
    assert!(
        complaints.len() == 1 && complaints[0].contains("403"),
        "{complaints:?}"
    );

    let mut narrow = Browser::start(Window {
        width: 390,
        height: 844,
        dark: true,
    });
    narrow.open(&format!("http://{}/ops", shim.ops));
    narrow.until("some states", "document.body.dataset.shown > 2");
    let wide = narrow.run("return document.documentElement.scrollWidth - innerWidth;");
    assert!(wide.as_i64().unwrap() <= 0, "{wide} too wide");
    narrow.picture("shim-narrow-dark");
    assert_eq!(narrow.complaints(), Vec::<String>::new());
}
