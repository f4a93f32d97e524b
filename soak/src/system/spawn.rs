//! Starts processes that cannot outlive the harness.
//!
//! The kernel kills each of them when the *thread* that started it ends, however the harness ends (`PR_SET_PDEATHSIG`, set
//! by `setpriv`, which then becomes the program). So one thread starts them all, and lives as long as the process.
//! Each is the head of a process group of its own: Ctrl-C on the terminal reaches the harness alone, which ends them in order.

use crate::case::Priority;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

/// What starts a program before any other, as the generator's own thread is.
const REAL_TIME: [&str; 3] = ["chrt", "--rr", "1"];

type Job = (Command, SyncSender<io::Result<Child>>);

/// A command that dies with the harness once [`spawn`] has started it.
pub(super) fn command(program: &OsStr, priority: Priority) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    if priority == Priority::RealTime && may_be_real_time().is_ok() {
        command.args(REAL_TIME);
    }
    command.arg(program).process_group(0).stdin(Stdio::null());
    // The settings of whoever runs the harness are not those of the run.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TROVE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Whether processes may be scheduled in real time here, and why not.
pub(super) fn may_be_real_time() -> &'static Result<(), String> {
    static MAY: OnceLock<Result<(), String>> = OnceLock::new();
    MAY.get_or_init(|| {
        let [chrt, args @ ..] = REAL_TIME;
        let tried = Command::new(chrt).args(args).arg("true").output();
        let tried = tried.map_err(|error| format!("{chrt}: {error}"))?;
        if tried.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&tried.stderr).trim().to_owned())
    })
}

/// Starts it on the thread that lives as long as the harness.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in jobs {
                // Whoever asked waits for it.
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, started) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes has ended");
    spawner.send((command, answer)).map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}
