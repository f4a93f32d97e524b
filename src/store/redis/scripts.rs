//! The scripts in `lua/`, put together and with their clock.

use super::options::Time;
use trove_streams::{Clock, Script, ScriptError};

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("../../../lua/", $file))
    };
}

/// Every script. Those of a partition begin with `prelude.lua`; those that change a wallet go on with `ledger.lua`.
pub(super) struct Scripts {
    pub(super) record: Script,
    pub(super) settle: Script,
    pub(super) adjust: Script,
    pub(super) reinstate: Script,
    pub(super) revoke: Script,
    pub(super) wallet: Script,
    pub(super) history: Script,
    pub(super) open: Script,
    pub(super) erase_begin: Script,
    pub(super) erase_end: Script,
    pub(super) freeze: Script,
    pub(super) thaw: Script,
    pub(super) lend: Script,
    pub(super) forget: Script,
    pub(super) hunt_lock: Script,
    pub(super) hunt_commit: Script,
    pub(super) hunt_unlock: Script,
    pub(super) init: Script,
    pub(super) raise_epoch: Script,
    pub(super) partition_epoch: Script,
    pub(super) outage: Script,
    pub(super) replay: Script,
    pub(super) replay_name: Script,
    pub(super) replay_erased: Script,
    pub(super) alive: Script,
    pub(super) lease: Script,
}

impl Scripts {
    /// The scripts, taking their time from the server or from a test.
    ///
    /// # Errors
    /// When a script's file is not named or written as it must be.
    pub(super) fn new(time: &Time) -> Result<Self, ScriptError> {
        let clock = match time {
            Time::Server => Clock::Server,
            Time::Manual { key, .. } => Clock::Key(key.clone()),
            Time::ManualBeside { name, .. } => Clock::Beside(name.clone()),
        };
        let alone = |file: &str, source: &'static str| Script::new(file, source);
        let timed = |file: &str, source: String| Script::new(file, source)?.with_clock(&clock);
        let partition =
            |file: &str, source: &str| timed(file, format!("{}{source}", lua!("prelude.lua")));
        let ledger = |file: &str, source: &str| {
            timed(
                file,
                format!("{}{}{source}", lua!("prelude.lua"), lua!("ledger.lua")),
            )
        };
        Ok(Self {
            record: ledger("record-7.lua", lua!("record-7.lua"))?,
            settle: ledger("settle-5.lua", lua!("settle-5.lua"))?,
            adjust: ledger("adjust-4.lua", lua!("adjust-4.lua"))?,
            reinstate: ledger("reinstate-3.lua", lua!("reinstate-3.lua"))?,
            revoke: ledger("revoke-4.lua", lua!("revoke-4.lua"))?,
            replay: ledger("replay-6.lua", lua!("replay-6.lua"))?,
            replay_name: partition("replay-name-5.lua", lua!("replay-name-5.lua"))?,
            replay_erased: partition("replay-erased-4.lua", lua!("replay-erased-4.lua"))?,
            wallet: partition("wallet-2.lua", lua!("wallet-2.lua"))?,
            history: partition("history-3.lua", lua!("history-3.lua"))?,
            open: partition("open-5.lua", lua!("open-5.lua"))?,
            erase_begin: partition("erase-begin-3.lua", lua!("erase-begin-3.lua"))?,
            erase_end: partition("erase-end-5.lua", lua!("erase-end-5.lua"))?,
            freeze: partition("freeze-2.lua", lua!("freeze-2.lua"))?,
            thaw: partition("thaw-2.lua", lua!("thaw-2.lua"))?,
            lend: partition("lend-1.lua", lua!("lend-1.lua"))?,
            forget: partition("forget-2.lua", lua!("forget-2.lua"))?,
            hunt_lock: timed("hunt-lock-1.lua", lua!("hunt-lock-1.lua").into())?,
            hunt_commit: alone("hunt-commit-2.lua", lua!("hunt-commit-2.lua"))?,
            hunt_unlock: alone("hunt-unlock-1.lua", lua!("hunt-unlock-1.lua"))?,
            init: timed("init-1.lua", lua!("init-1.lua").into())?,
            raise_epoch: timed("raise-epoch-1.lua", lua!("raise-epoch-1.lua").into())?,
            partition_epoch: alone("partition-epoch-1.lua", lua!("partition-epoch-1.lua"))?,
            outage: alone("outage-1.lua", lua!("outage-1.lua"))?,
            alive: timed("alive-1.lua", lua!("alive-1.lua").into())?,
            lease: alone("lease-1.lua", lua!("lease-1.lua"))?,
        })
    }

    /// What a new server is given before the link to it is used.
    pub(super) fn preload(&self) -> Vec<Script> {
        [
            &self.record,
            &self.settle,
            &self.adjust,
            &self.wallet,
            &self.history,
            &self.open,
            &self.alive,
            &self.lease,
        ]
        .map(Script::clone)
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_put_together_with_the_servers_clock_and_with_a_tests() {
        Scripts::new(&Time::Server).unwrap();
        let time = std::sync::Arc::new(crate::store::clock::ManualTime::new(1));
        let manual = Scripts::new(&Time::Manual {
            key: "now".into(),
            time,
        })
        .unwrap();
        assert!(manual.record.source().contains("redis.call('GET', 'now')"));
        assert_eq!((manual.record.keys(), manual.settle.keys()), (7, 5));
    }

    #[test]
    fn every_script_says_what_it_takes_and_gives() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/lua");
        let mut scripts = 0;
        for file in std::fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if !name.ends_with(".lua") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let header: String = source
                .lines()
                .take_while(|line| line.starts_with("--"))
                .collect();
            assert!(
                header.contains("KEYS") && header.contains("ARGV"),
                "{path:?}"
            );
            if ["prelude.lua", "ledger.lua"].contains(&&*name) {
                continue;
            }
            assert!(header.contains("Reply"), "{path:?}");
            let appends = source.contains("'XADD'") || source.contains("commit(");
            assert_eq!(appends, header.contains("Appends"), "{path:?}");
            scripts += 1;
        }
        assert_eq!(scripts, 26);
    }
}
