//! Programs that others wrote, against the server: curl, wrk and k6. One that is not installed is left out, and said.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Site, hunt_h, token, trove};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn installed(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        println!("{program} is not installed: what it would show was not shown");
    }
    there
}

/// Runs curl; status, head and body.
fn curl(args: &[&str]) -> (u16, String, String) {
    let output = Command::new("curl")
        .args(["-sS", "-i", "--max-time", "60", "--noproxy", "*"])
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    // The last head is the answer's; before it there may be 100 Continue.
    let heads = text.match_indices("HTTP/1.").map(|(at, _)| at);
    let text = &text[heads.last().unwrap()..];
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn json_of((status, _, body): (u16, String, String), expected: u16) -> Value {
    assert_eq!(status, expected, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn curl_finds_polls_and_uploads_in_every_way_it_knows() {
    if !installed("curl") {
        return;
    }
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    let admin = format!("Authorization: Bearer {ADMIN_KEY}");
    let player = format!("Authorization: Bearer {}", token("ann"));
    let file = site.dir().join("hunt.json");
    let small = hunt_h().to_string();
    // Past a megabyte curl waits to be told to go on.
    let padded = format!("{small}{}", " ".repeat(3 << 20));
    fs::write(&file, &padded).unwrap();
    let (path, at_path) = (file.to_str().unwrap(), format!("@{}", file.display()));
    let hunt = site.url("/hunts/h");
    json_of(curl(&["-H", &admin, "-T", path, &hunt]), 201);
    for way in [
        &["-X", "PUT", "--data-binary", &at_path][..],
        &[
            "-X",
            "PUT",
            "--data-binary",
            &at_path,
            "-H",
            "Expect: 100-continue",
        ],
        &["-T", path, "-H", "Transfer-Encoding: chunked"],
        &["-T", path, "-H", "Expect:"],
        &["-T", path, "--http1.0"],
    ] {
        json_of(curl(&[&["-H", &admin], way, &[&hunt]].concat()), 200);
    }
    let (status, _, body) = curl(&["-H", "Authorization: Bearer x", "-T", path, &hunt]);
    assert_eq!(
        (status, body.contains("admin_key_needed")),
        (403, true),
        "{body}"
    );
    fs::write(&file, " ".repeat((8 << 20) + 1)).unwrap();
    assert_eq!(curl(&["-H", &admin, "-T", path, &hunt]).0, 413);
    json_of(
        curl(&["-H", &admin, "-X", "POST", &site.url("/hunts/h/open")]),
        200,
    );

    let (poll, finds) = (site.url("/treasure/h"), site.url("/treasure/h/finds"));
    let find = json!({"treasure": "r", "id": "one"}).to_string();
    assert_eq!(
        json_of(curl(&["-H", &player, "-d", &find, &finds]), 201)["coins"],
        3
    );
    let old = curl(&["--http1.0", "-H", &player, "-d", &find, &finds]);
    assert_eq!(json_of(old, 200)["duplicate"], true);
    let (status, head, body) = curl(&["-I", "-H", &player, &poll]);
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("trove-next-poll-ms"), "{head}");
    let polled = json_of(curl(&["--http1.0", "-H", &player, &poll]), 200);
    assert_eq!(
        (&polled["balance"], &polled["credited"]),
        (&json!(3), &json!(3))
    );
    let etag = format!("If-None-Match: W/{}", polled["cursor"]);
    assert_eq!(curl(&["-H", &player, "-H", &etag, &poll]).0, 304);
    let (status, _, body) = curl(&["--compressed", &hunt]);
    assert_eq!(status, 200);
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap()["treasures"][1]["id"],
        "b"
    );

    let lines: String = (0..2_000)
        .map(|n| {
            format!(
                "{}\n",
                json!({"id": n.to_string(), "player": "bob", "coins": 1})
            )
        })
        .collect();
    fs::write(&file, lines).unwrap();
    let bulk = site.url("/hunts/h/finds");
    let first = json_of(curl(&["-H", &admin, "--data-binary", &at_path, &bulk]), 200);
    assert_eq!(
        (&first["recorded"], &first["refused"]),
        (&json!(1_000), &json!(1_000)),
        "a wallet takes a thousand"
    );
    let again = json_of(
        curl(&[
            "-H",
            &admin,
            "-X",
            "POST",
            "-T",
            path,
            "-H",
            "Transfer-Encoding: chunked",
            &bulk,
        ]),
        200,
    );
    assert_eq!(again["duplicates"], 1_000);
    site.verifies();
}

/// Tokens of players `p1` to `p10000`, made by the command.
fn ten_thousand_tokens(site: &Site) -> PathBuf {
    let args = ["token", "--count", "10000", "--prefix", "p"];
    let output = trove(&site.env, &args).output().unwrap();
    assert_eq!(
        output.stdout.iter().filter(|b| **b == b'\n').count(),
        10_000
    );
    let file = site.dir().join("tokens");
    fs::write(&file, output.stdout).unwrap();
    file
}

/// A thousand coins for each of ten players in a hundred, so that some polls collect.
fn some_finds(site: &Site) {
    let finds: Vec<Value> = (1..=1_000)
        .map(|n| json!({"id": "one", "player": format!("p{}", n * 10), "coins": 1_000}))
        .collect();
    let ask = http_site::Ask::post("/hunts/h/finds", json!(finds).to_string());
    assert_eq!(site.manage(ask).is(200)["recorded"], 1_000);
}

#[test]
fn wrk_polls_as_ten_thousand_players_without_an_error() {
    if !installed("wrk") {
        return;
    }
    let site = Site::start();
    site.open_h();
    let tokens = ten_thousand_tokens(&site);
    some_finds(&site);
    let script = site.dir().join("polls.lua");
    let lua = format!(
        "local tokens = {{}}\nfor line in io.lines('{}') do tokens[#tokens + 1] = 'Bearer ' .. line end\n\
        local n = 0\n\
        request = function() n = n % #tokens + 1; return wrk.format('GET', '/treasure/h', {{Authorization = tokens[n]}}) end\n\
        local wrong = 0\nresponse = function(status) if status ~= 200 then wrong = wrong + 1; wrk.thread:stop() end end\n\
        done = function(summary) local e = summary.errors\n\
        io.write(string.format('errors=%d requests=%d\\n', e.connect + e.read + e.write + e.status + e.timeout, summary.requests)) end\n",
        tokens.display()
    );
    fs::write(&script, lua).unwrap();
    let output = Command::new("wrk")
        .args([
            "-t1",
            "-c32",
            "-d1s",
            "--timeout",
            "30s",
            "-s",
            script.to_str().unwrap(),
            &site.url("/"),
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("errors=0 "),
        "{text}"
    );
    println!("{}", text.lines().last().unwrap());
    site.verifies();
}

/// k6 where `./test` puts it, or on the path.
fn k6() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/k6");
    let program = if ours.exists() { ours } else { "k6".into() };
    installed(program.to_str().unwrap()).then_some(program)
}

#[test]
fn k6_finds_and_polls_as_ten_thousand_players_without_an_error() {
    let Some(k6) = k6() else { return };
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let tokens = ten_thousand_tokens(&site);
    let script = site.dir().join("play.js");
    let js = format!(
        "import http from 'k6/http';\nimport {{ check }} from 'k6';\nimport exec from 'k6/execution';\n\
        const tokens = open('{}').trim().split('\\n');\n\
        export const options = {{ vus: 10, iterations: 600, thresholds: {{ checks: ['rate==1'], http_req_failed: ['rate==0'] }} }};\n\
        export default function () {{\n\
          const n = exec.scenario.iterationInTest;\n\
          const headers = {{ Authorization: 'Bearer ' + tokens[n * 16 % tokens.length] }};\n\
          const find = http.post('{url}/finds', JSON.stringify({{ treasure: 'r', id: 'k' + n }}), {{ headers }});\n\
          const poll = http.get('{url}', {{ headers }});\n\
          check(find, {{ 'found': r => r.status === 201 && r.json('coins') === 3 }});\n\
          check(poll, {{ 'collected': r => r.status === 200 && r.json('finds').some(f => f.id === 'k' + n) }});\n\
        }}\n",
        tokens.display(),
        url = site.url("/treasure/h"),
    );
    fs::write(&script, js).unwrap();
    let output: Output = Command::new(k6)
        .args([
            "run",
            "--quiet",
            "--no-usage-report",
            "--address",
            "127.0.0.1:0",
        ])
        .arg(&script)
        .env("HOME", site.dir())
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listed = site.manage(http_site::Ask::get("/hunts")).is(200);
    assert_eq!(
        (
            &listed["hunts"][0]["credited"],
            &listed["hunts"][0]["pending"]
        ),
        (&json!(1_800), &json!(0))
    );
    site.verifies();
}
