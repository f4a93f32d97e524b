//! The commands and their arguments.

use super::values;
use crate::game::ids::{HuntId, PlayerName};
use crate::ledger::ExportFormat;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// A real-time treasure-hunt game server: coins credited exactly once, within five minutes of a find.
#[derive(Debug, Parser)]
#[command(
    name = "trove",
    version,
    arg_required_else_help = false,
    max_term_width = 100
)]
#[command(
    after_help = "Exit status: 0 done; 1 the work ran and the answer is no; 2 wrong usage or settings; \
    3 something it depends on is out of reach."
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the server.
    Serve(ServeArgs),
    /// Run the shim in front of servers, or switch a running one to another group of them.
    Shim(ShimArgs),
    /// Sign player tokens, one a line.
    Token(TokenArgs),
    /// Manage hunts through a server.
    Hunt(HuntArgs),
    /// Grant coins to a player, or take them back, through a server.
    Adjust(AdjustArgs),
    /// Credit, through a server, what expired because the store was out of reach.
    Reinstate(ReinstateArgs),
    /// Write a hunt's wallets and ledger to standard output.
    Export(ExportArgs),
    /// Prove from the ledger that every coin is accounted for; print the sums; status 1 if they do not add up.
    Verify(VerifyArgs),
    /// Look at a store on Redis, or accept one whose identity changed.
    #[command(subcommand)]
    Store(StoreCommand),
    /// What follows from the objectives in the settings.
    #[command(subcommand)]
    Sla(SlaCommand),
    /// Print the default settings with their explanations.
    Config,
    /// Print the OpenAPI document of the public listener.
    Openapi,
    /// Run the game core under a simulated clock, check the invariants and print the counts.
    Simulate(SimulateArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// A settings file; `trove config` prints one
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Where players are served [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: Option<String>,
    /// Where operators find metrics [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) ops_listen: Option<String>,
    /// The store: embedded:DIR, redis://HOST or redis+sentinel://HOST,HOST/MASTER [default: embedded:./trove-data]
    #[arg(long, value_name = "URL")]
    pub(super) store: Option<String>,
    /// This instance's name in every answer [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub(super) instance_id: Option<String>,
    /// Make a demo hunt of real places with simulated players, and print what to try
    #[arg(long)]
    pub(super) demo: bool,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = false)]
pub(super) struct ShimArgs {
    #[command(subcommand)]
    pub(super) command: Option<ShimCommand>,
    /// A settings file; `trove config` prints one
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Where players are served [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: Option<String>,
    /// Where operators find metrics [default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) ops_listen: Option<String>,
    /// A group of servers to forward to; the first one named is live
    #[arg(long = "upstream", value_name = "NAME=HOST:PORT,HOST:PORT")]
    pub(super) upstreams: Vec<String>,
    /// This shim's name in its own answers [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub(super) instance_id: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum ShimCommand {
    /// Make another group live, if all of its servers answer that they are healthy; else status 1.
    Switch(ShimSwitchArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ShimSwitchArgs {
    /// The group
    pub(super) group: String,
    /// The shim's operations listener
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9091")]
    pub(super) ops: String,
    #[command(flatten)]
    pub(super) store: StoreArg,
}

/// The store that a command reads or whose keys it uses.
#[derive(Debug, clap::Args)]
pub(super) struct StoreArg {
    /// The store: embedded:DIR, or its directory, or redis://HOST [default: ./trove-data]
    #[arg(long, value_name = "URL", value_parser = values::store_url)]
    pub(super) store: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The key is TROVE_TOKEN_KEY, the first of auth.token_keys_file, or the one that a server has \
    made in its store's directory."
)]
pub(super) struct TokenArgs {
    /// The players
    #[arg(
        value_name = "PLAYER",
        required_unless_present = "count",
        conflicts_with = "count"
    )]
    pub(super) players: Vec<PlayerName>,
    /// Sign for so many players, P1 to PN
    #[arg(long, value_name = "N", requires = "prefix", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(super) count: Option<u64>,
    /// What their names begin with
    #[arg(long, value_name = "P", requires = "count")]
    pub(super) prefix: Option<String>,
    /// How long the tokens are valid: a number with s, m, h or d; a year at most
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = values::seconds)]
    pub(super) ttl: u64,
    #[command(flatten)]
    pub(super) store: StoreArg,
}

/// The server that a command goes to.
#[derive(Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(super) server: String,
    /// Where the server keeps its admin key, if TROVE_ADMIN_KEY is not set [default: ./trove-data]
    #[arg(long, value_name = "URL", value_parser = values::store_url)]
    pub(super) store: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub(super) struct HuntArgs {
    #[command(subcommand)]
    pub(super) command: HuntCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum HuntCommand {
    /// Create a hunt from a document, or replace its document.
    Put {
        /// The hunt document, JSON; - for standard input
        file: PathBuf,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List every hunt with its sums.
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print a hunt's public catalogue.
    Show {
        /// The hunt
        id: HuntId,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take finds from now on.
    Open {
        /// The hunt
        id: HuntId,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take no more finds; polls go on.
    Close {
        /// The hunt
        id: HuntId,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// End a closed hunt in which nothing is pending.
    Archive {
        /// The hunt
        id: HuntId,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct AdjustArgs {
    /// The hunt
    pub(super) hunt: HuntId,
    /// The player
    pub(super) player: PlayerName,
    /// The coins: positive to grant, negative to take back
    #[arg(allow_negative_numbers = true, value_parser = values::coins)]
    pub(super) coins: i64,
    /// Why; it goes into the ledger
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    /// The idempotency key: the same adjustment sent again with it is made once
    #[arg(long)]
    pub(super) key: String,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReinstateArgs {
    /// The hunt
    pub(super) hunt: HuntId,
    /// Finds whose window ended at this time or later: milliseconds since the epoch, or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::millis)]
    pub(super) from: u64,
    /// Finds whose window ended at this time or before
    #[arg(long, value_name = "TIME", value_parser = values::millis)]
    pub(super) to: u64,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The hunt
    pub(super) hunt: HuntId,
    /// jsonl: one object a line; csv: with a line of names first
    #[arg(long, value_name = "FORMAT", default_value = "jsonl", value_parser = values::format)]
    pub(super) format: ExportFormat,
    #[command(flatten)]
    pub(super) store: StoreArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "A store that a server is using is asked through that server.")]
pub(super) struct VerifyArgs {
    /// The hunt; every hunt if none is named
    pub(super) hunt: Option<HuntId>,
    #[command(flatten)]
    pub(super) store: StoreArg,
}

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Print a store's identity, schema version, partitions and epoch.
    Info(StoreArg),
    /// Take what the server holds as the store from now on: after a server came back empty, or was replaced on purpose.
    Accept(StoreArg),
}

#[derive(Debug, Subcommand)]
pub(super) enum SlaCommand {
    /// Print recording and alerting rules for Prometheus.
    Rules {
        /// A settings file; `trove config` prints one
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct SimulateArgs {
    /// Hours to simulate
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u64).range(1..=8_784))]
    pub(super) hours: u64,
    /// Players, each polling every 1.2 s and finding every 30 s
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(super) players: u64,
    /// Everything random follows from it: the same seed gives the same counts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads to use; the counts do not depend on it [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub(super) threads: Option<u64>,
}
