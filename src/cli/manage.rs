//! Commands that manage, through a server.

use super::args::{AdjustArgs, HuntArgs, HuntCommand, ReinstateArgs, ServerArgs};
use super::client::{Client, block_on};
use super::failure::{Exit, Failure};
use crate::auth::{self, Secrets};
use crate::config;
use crate::game::ids::HuntId;
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::io::{Read, Write};
use std::path::Path;

/// The largest hunt document that is read, in bytes; a server takes less.
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// A client with the admin key.
fn admin(args: ServerArgs) -> Result<Client, Failure> {
    let settings = super::settings(args.store)?;
    let secrets = Secrets::from_env(config::environment());
    let key =
        auth::admin_key(&settings, &secrets).map_err(|error| Failure::new(Exit::Usage, error))?;
    Client::tcp(&args.server, Some(key))
}

/// What a server says of a hunt that was changed.
#[derive(Deserialize)]
struct HuntAnswer {
    id: String,
    state: String,
    treasures: u64,
}

fn read<T: DeserializeOwned>(client: &Client, answer: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(answer).map_err(|error| {
        Failure::new(
            Exit::Unreachable,
            format_args!(
                "{} gave an answer that is none ({error}); is it a Trove server of this version?",
                client.name()
            ),
        )
    })
}

/// `trove hunt …`
pub(super) fn hunt(args: HuntArgs, out: &mut impl Write) -> Result<(), Failure> {
    match args.command {
        HuntCommand::Put { file, server } => put(&file, server, out),
        HuntCommand::List { server } => list(server, out),
        HuntCommand::Show { id, server } => {
            let client = Client::tcp(&server.server, None)?;
            let answer = block_on(client.ask(Method::GET, &format!("/hunts/{id}"), None))?;
            out.write_all(&answer)?;
            Ok(writeln!(out)?)
        }
        HuntCommand::Open { id, server } => step(&id, "open", server, out),
        HuntCommand::Close { id, server } => step(&id, "close", server, out),
        HuntCommand::Archive { id, server } => step(&id, "archive", server, out),
    }
}

fn put(file: &Path, server: ServerArgs, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Named {
        id: HuntId,
    }
    let document = read_document(file).map_err(|error| {
        Failure::new(
            Exit::Usage,
            format_args!("cannot read {}: {error}", file.display()),
        )
    })?;
    let named: Named = serde_json::from_slice(&document).map_err(|error| {
        Failure::new(
            Exit::Usage,
            format_args!("{} is no hunt document: {error}", file.display()),
        )
    })?;
    let client = admin(server)?;
    let path = format!("/hunts/{}", named.id);
    let answer = block_on(client.ask(Method::PUT, &path, Some(document)))?;
    say(&read(&client, &answer)?, out)
}

fn read_document(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file)?
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
    };
    if read? as u64 > DOCUMENT_BYTES_MAX {
        return Err(std::io::Error::other("it is larger than 64 MiB"));
    }
    Ok(bytes)
}

fn step(id: &HuntId, step: &str, server: ServerArgs, out: &mut impl Write) -> Result<(), Failure> {
    let client = admin(server)?;
    let path = format!("/hunts/{id}/{step}");
    let answer = block_on(client.ask(Method::POST, &path, None))?;
    say(&read(&client, &answer)?, out)
}

fn say(hunt: &HuntAnswer, out: &mut impl Write) -> Result<(), Failure> {
    let HuntAnswer {
        id,
        state,
        treasures,
    } = hunt;
    let s = if *treasures == 1 { "" } else { "s" };
    Ok(writeln!(out, "{id} is {state}, {treasures} treasure{s}")?)
}

fn list(server: ServerArgs, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Answer {
        hunts: Vec<Listed>,
    }
    #[derive(Deserialize)]
    struct Listed {
        id: String,
        name: String,
        state: String,
        treasures: u64,
        recorded: u64,
        credited: u64,
        expired: u64,
        pending: u64,
        revoked: u64,
    }
    let client = admin(server)?;
    let answer = block_on(client.ask(Method::GET, "/hunts", None))?;
    let answer: Answer = read(&client, &answer)?;
    let names = [
        "HUNT",
        "STATE",
        "TREASURES",
        "RECORDED",
        "CREDITED",
        "EXPIRED",
        "PENDING",
        "REVOKED",
        "NAME",
    ];
    let mut rows = vec![names.map(str::to_owned)];
    rows.extend(answer.hunts.into_iter().map(|hunt| {
        [
            hunt.id,
            hunt.state,
            hunt.treasures.to_string(),
            hunt.recorded.to_string(),
            hunt.credited.to_string(),
            hunt.expired.to_string(),
            hunt.pending.to_string(),
            hunt.revoked.to_string(),
            hunt.name,
        ]
    }));
    table(&rows, out)
}

/// Prints rows in columns: the first two and the last to the left, figures to the right.
fn table<const N: usize>(rows: &[[String; N]], out: &mut impl Write) -> Result<(), Failure> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            match column {
                _ if column + 1 == N => writeln!(out, "{cell}")?,
                0 | 1 => write!(out, "{cell:<width$}  ")?,
                _ => write!(out, "{cell:>width$}  ")?,
            }
        }
    }
    Ok(())
}

/// `trove adjust`
pub(super) fn adjust(args: AdjustArgs, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Answer {
        coins: i64,
        balance: u64,
        duplicate: bool,
    }
    let client = admin(args.server)?;
    let path = format!("/hunts/{}/players/{}/adjust", args.hunt, args.player);
    let body = json!({"coins": args.coins, "reason": args.reason, "key": args.key});
    let answer = client.ask(Method::POST, &path, Some(body.to_string().into_bytes()));
    let answer = block_on(answer)?;
    let Answer {
        coins,
        balance,
        duplicate,
    } = read(&client, &answer)?;
    let again = if duplicate { ", made before" } else { "" };
    Ok(writeln!(
        out,
        "{} {coins:+} coins{again}: balance {balance}",
        args.player
    )?)
}

/// `trove reinstate`
pub(super) fn reinstate(args: ReinstateArgs, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Answer {
        finds: u64,
        coins: u64,
        refused: u64,
    }
    if args.to < args.from {
        return Err(Failure::new(Exit::Usage, "--to must not be before --from"));
    }
    let client = admin(args.server)?;
    let path = format!("/hunts/{}/reinstate", args.hunt);
    let body = json!({"from": args.from, "to": args.to});
    let answer = client.ask(Method::POST, &path, Some(body.to_string().into_bytes()));
    let answer = block_on(answer)?;
    let Answer {
        finds,
        coins,
        refused,
    } = read(&client, &answer)?;
    writeln!(out, "reinstated {finds} finds, {coins} coins")?;
    if refused > 0 {
        writeln!(
            out,
            "left {refused} finds: the balance would be out of range"
        )?;
    }
    Ok(())
}
