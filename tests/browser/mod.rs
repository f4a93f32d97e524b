//! A real Chromium without a window, driven through its driver: sessions, scripts, keys, what its console said, pictures.

#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::http_site::{Ask, Client, PATIENCE, wait};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use tempfile::TempDir;

/// Whether the programs are there; says so if not. `./test` installs them.
pub(crate) fn is_installed() -> bool {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        let command = command.arg("--version").stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok()
    };
    let both = runs("chromium") && runs("chromedriver");
    if !both {
        println!("chromium and chromedriver are not installed: nothing was tested");
    }
    both
}

/// See the module. The driver and the browser end with it.
pub(crate) struct Browser {
    driver: Child,
    client: Client,
    session: String,
    _profile: TempDir,
}

/// The driver answers only those who call it by this machine's name.
fn own(ask: Ask) -> Ask {
    ask.with("Host", "localhost")
}

/// What the window is like.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) dark: bool,
}

pub(crate) const LIGHT: Window = Window {
    width: 1280,
    height: 900,
    dark: false,
};

impl Browser {
    pub(crate) fn start(window: Window) -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(driver.stdout.take().unwrap());
        let (sender, ports) = mpsc::channel();
        // Read to its end, so that the driver never waits for its reader.
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let port = line.split("successfully on port ").nth(1);
                if let Some(Ok(port)) = port.map(|port| port.trim_end_matches('.').parse()) {
                    let _ = sender.send(port);
                }
            }
        });
        let port: u16 = ports.recv_timeout(PATIENCE).expect("the driver's port");
        let mut client = Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let profile = tempfile::tempdir().unwrap();
        let mut args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-default-browser-check",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ]
        .map(str::to_owned)
        .to_vec();
        args.push(format!("--user-data-dir={}", profile.path().display()));
        args.push(format!("--window-size={},{}", window.width, window.height));
        if window.dark {
            args.push("--blink-settings=preferredColorScheme=0".into());
        }
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let answer = client.send(own(Ask::post("/session", wanted.to_string())));
        let session = answer.is(200)["value"]["sessionId"]
            .as_str()
            .unwrap()
            .to_owned();
        let mut browser = Self {
            driver,
            client,
            session,
            _profile: profile,
        };
        if window.width < 500 {
            // A window has a least width; a phone's is narrower.
            browser.chrome(
                "Emulation.setDeviceMetricsOverride",
                json!({"width": window.width, "height": window.height, "deviceScaleFactor": 2, "mobile": true}),
            );
        }
        if window.dark {
            browser.chrome(
                "Emulation.setEmulatedMedia",
                json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]}),
            );
        }
        browser
    }

    fn ask(&mut self, method: &str, path: &str, body: Option<Value>) -> Value {
        let mut ask = own(Ask::new(
            method,
            &format!("/session/{}{path}", self.session),
        ));
        if let Some(body) = body {
            ask = ask.body(body.to_string());
        }
        self.client.send(ask).is(200)["value"].take()
    }

    /// A command of Chromium's own.
    pub(crate) fn chrome(&mut self, command: &str, params: Value) -> Value {
        let body = json!({"cmd": command, "params": params});
        self.ask("POST", "/goog/cdp/execute", Some(body))
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.ask("POST", "/url", Some(json!({ "url": url })));
    }

    /// The value of a function body.
    pub(crate) fn run(&mut self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.ask("POST", "/execute/sync", Some(body))
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression});");
        wait(what, || self.run(&script) == true);
    }

    /// Types into whatever has the focus.
    pub(crate) fn keys(&mut self, keys: &[char]) {
        let actions: Vec<Value> = keys
            .iter()
            .flat_map(|key| {
                ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}))
            })
            .collect();
        let body = json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]});
        self.ask("POST", "/actions", Some(body));
    }

    /// What the console said since it was asked last, warnings and errors.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", Some(json!({"type": "browser"})));
        let entries = log.as_array().cloned().unwrap_or_default();
        let bad = entries
            .iter()
            .filter(|entry| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING")));
        bad.map(|entry| entry["message"].to_string()).collect()
    }

    /// A picture of the whole page, beside what the tests are built into.
    pub(crate) fn picture(&mut self, name: &str) -> PathBuf {
        use base64::Engine as _;
        let shot = self.chrome(
            "Page.captureScreenshot",
            json!({"format": "png", "captureBeyondViewport": true}),
        );
        let data = shot["data"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data)
            .unwrap();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops");
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{name}.png"));
        std::fs::write(&path, bytes).unwrap();
        println!("{}", path.display());
        path
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; the driver is ended then.
        let path = format!("/session/{}", self.session);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.client.send(own(Ask::new("DELETE", &path)))
        }));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
