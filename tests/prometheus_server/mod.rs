//! A Prometheus of a test's own, that scrapes every second.

use crate::http_site::{Ask, Client, wait};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Whether the programs are there; says so if not. `./test` installs them.
pub(crate) fn is_installed() -> bool {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        let command = command.arg("--version").stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok()
    };
    let both = runs("prometheus") && runs("promtool");
    if !both {
        println!("prometheus and promtool are not installed: nothing was tested");
    }
    both
}

/// See the module. Ended when dropped.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _dir: TempDir,
}

impl Prometheus {
    /// One that scrapes each target as a job of its own and evaluates `rules`.
    pub(crate) fn start(targets: &[(&str, SocketAddr)], rules: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = String::from(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n",
        );
        for (job, target) in targets {
            config +=
                &format!("  - job_name: {job}\n    static_configs: [{{targets: ['{target}']}}]\n");
        }
        std::fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        std::fs::write(dir.path().join("rules.yml"), rules).unwrap();
        // The port was free a moment ago; if somebody else was faster, it ends, and another one is tried.
        for _ in 0..5 {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let mut child = Command::new("prometheus")
                .arg("--config.file=prometheus.yml")
                .arg("--storage.tsdb.path=data")
                .arg(format!("--web.listen-address={address}"))
                .args(args)
                .current_dir(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut ended = false;
            wait("Prometheus to be ready", || {
                ended = child.try_wait().unwrap().is_some();
                ended
                    || Client::new(address)
                        .try_send(&Ask::get("/-/ready"))
                        .is_ok_and(|answer| answer.status == 200)
            });
            if !ended {
                return Self {
                    child,
                    address,
                    _dir: dir,
                };
            }
        }
        panic!("Prometheus did not start");
    }

    fn ask(&self, path: &str) -> Value {
        let answer = Client::new(self.address).send(Ask::get(path)).is(200);
        answer["data"].clone()
    }

    /// The value of the only series that an expression gives now.
    pub(crate) fn value(&self, expression: &str) -> Option<f64> {
        let mut query = String::new();
        for byte in expression.bytes() {
            query += &format!("%{byte:02x}");
        }
        let data = self.ask(&format!("/api/v1/query?query={query}"));
        match &data["result"].as_array().unwrap()[..] {
            [one] => one["value"][1].as_str().unwrap().parse().ok(),
            _ => None,
        }
    }

    /// Alerts that fire now.
    pub(crate) fn firing(&self) -> Vec<Value> {
        let data = self.ask("/api/v1/alerts");
        let alerts = data["alerts"].as_array().unwrap().iter();
        alerts
            .filter(|alert| alert["state"] == "firing")
            .cloned()
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
