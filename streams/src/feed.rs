//! A feed: one Redis stream whose ids are a time and a counter (see [`EntryId`]), read as an event log from a position on or
//! as a window of time.

use redis::{ParsingError, ToRedisArgs, Value};

use crate::Commands;
use crate::EntryId;
use crate::connection::Batch;
use crate::continuity::{Continuity, Evidence, judge};
use crate::error::{Error, ErrorCode};

/// An entry of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: EntryId,
    /// Its fields and their values, in the order in which they were written.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// The value of the first field named `name`.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields
            .iter()
            .find(|(field, _)| field == name.as_bytes())
            .map(|(_, value)| value.as_slice())
    }
}

/// What the server says of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many entries it holds.
    pub length: u64,
    /// The first id that it holds.
    pub first: Option<EntryId>,
    /// The last id that was ever given out; it survives trimming.
    pub last: EntryId,
}

/// How exactly [`trim`] keeps to its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Every entry below the bound goes. Costs time for each of them, during which the server does nothing else.
    Exact,
    /// Only whole nodes of the stream (100 entries by default) go, and about `entries_max` entries at most, so that one
    /// trim stays short.
    Nodes {
        /// The bound of one trim.
        entries_max: u32,
    },
}

/// Appends one entry with the id `id`, which must be above the last. Returns nothing: the id is the caller's.
///
/// In a store with several writers entries are appended by scripts, which compute the id from the last one in the server
/// (see [`EntryId::following`]). This is for feeds with one writer, for tests and examples.
///
/// An id that is not above the last one is the server error `ERR`, and nothing is appended.
pub async fn append<C, F, V>(
    connection: &C,
    key: &str,
    id: EntryId,
    fields: &[(F, V)],
) -> Result<(), Error>
where
    C: Commands,
    F: ToRedisArgs,
    V: ToRedisArgs,
{
    let mut cmd = redis::cmd("XADD");
    cmd.arg(key).arg(id);
    for (field, value) in fields {
        cmd.arg(field).arg(value);
    }
    connection.query(&cmd).await.map(drop)
}

/// Up to `count` entries after `position`, which itself is not among them, in order. For a window of time start at
/// `EntryId::new(from_ms, 0)`.
pub async fn read_after<C: Commands>(
    connection: &C,
    key: &str,
    position: EntryId,
    count: usize,
) -> Result<Vec<Entry>, Error> {
    match position.successor() {
        Some(from) => read_range(connection, key, from, EntryId::MAX, count).await,
        None => Ok(Vec::new()),
    }
}

/// Up to `count` entries from `from` to `to`, both included, in order. Empty if there is no such feed.
pub async fn read_range<C: Commands>(
    connection: &C,
    key: &str,
    from: EntryId,
    to: EntryId,
    count: usize,
) -> Result<Vec<Entry>, Error> {
    let mut cmd = redis::cmd("XRANGE");
    cmd.arg(key).arg(from).arg(to).arg("COUNT").arg(count);
    let value = connection.query(&cmd).await?;
    parse_entries(value).map_err(|error| Error::unexpected("XRANGE", error))
}

/// Up to `count` entries before `position`, which itself is not among them, and not before `from`: the last of them first.
/// Empty if there is no such feed.
pub async fn read_back<C: Commands>(
    connection: &C,
    key: &str,
    position: EntryId,
    from: EntryId,
    count: usize,
) -> Result<Vec<Entry>, Error> {
    let mut cmd = redis::cmd("XREVRANGE");
    cmd.arg(key)
        .arg(format!("({position}"))
        .arg(from)
        .arg("COUNT")
        .arg(count);
    let value = connection.query(&cmd).await?;
    parse_entries(value).map_err(|error| Error::unexpected("XREVRANGE", error))
}

/// How far the feed reaches; `None` if there is none.
pub async fn extent<C: Commands>(connection: &C, key: &str) -> Result<Option<Extent>, Error> {
    let mut replies = connection.batch(Batch::new().cmd(xinfo(key))).await?;
    read_extent(replies.next())
}

/// The last id that the feed gave out; [`EntryId::ZERO`] if there is no feed.
pub async fn last_id<C: Commands>(connection: &C, key: &str) -> Result<EntryId, Error> {
    Ok(extent(connection, key)
        .await?
        .map_or(EntryId::ZERO, |extent| extent.last))
}

/// Whether the feed still goes on from `position`, which its caller has read up to. To be asked when a link is new: a
/// server that lost the end of its feed sends nothing that would show it, until it has caught up.
///
/// A feed that was made anew, grew beyond the position's counter and was trimmed beyond it is not told from one that was
/// only trimmed; that is what the store's identity and epoch are for.
pub async fn continuity<C: Commands>(
    connection: &C,
    key: &str,
    position: EntryId,
) -> Result<Continuity, Error> {
    let mut all = continuities(connection, &[(key, position)]).await?;
    Ok(all.pop().expect("one answer for one question"))
}

/// [`continuity`] of several feeds in one round trip.
pub async fn continuities<C: Commands>(
    connection: &C,
    feeds: &[(&str, EntryId)],
) -> Result<Vec<Continuity>, Error> {
    let mut batch = Batch::new();
    for (key, position) in feeds {
        let mut find = redis::cmd("XRANGE");
        find.arg(key)
            .arg(position)
            .arg(position)
            .arg("COUNT")
            .arg(1);
        batch = batch.cmd(xinfo(key)).cmd(find);
    }
    let mut replies = connection.batch(batch).await?;
    feeds
        .iter()
        .map(|(_, position)| {
            let extent = read_extent(replies.next())?;
            let found = replies.next().ok_or_else(|| no_reply("XRANGE"))??;
            let found = parse_entries(found).map_err(|error| Error::unexpected("XRANGE", error))?;
            let evidence = extent.map(|extent| Evidence {
                last: extent.last,
                first: extent.first,
                position_found: !found.is_empty(),
            });
            Ok(judge(*position, evidence))
        })
        .collect()
}

/// Where a trim stops that should remove what is below `before`, so that it removes nothing that one of `readers`, given by
/// the last id each has read, has yet to read. The bound itself stays.
pub fn trim_bound(before: EntryId, readers: &[EntryId]) -> EntryId {
    readers
        .iter()
        .filter_map(|position| position.successor())
        .fold(before, EntryId::min)
}

/// Removes the entries below `before`, but none that one of `readers` has yet to read (see [`trim_bound`]). Returns how many
/// were removed.
///
/// With [`Precision::Nodes`] call it again while it removes something.
pub async fn trim<C: Commands>(
    connection: &C,
    key: &str,
    before: EntryId,
    readers: &[EntryId],
    precision: Precision,
) -> Result<u64, Error> {
    let mut cmd = redis::cmd("XTRIM");
    cmd.arg(key).arg("MINID");
    let bound = trim_bound(before, readers);
    match precision {
        Precision::Exact => cmd.arg("=").arg(bound),
        // LIMIT 0 would mean no limit.
        Precision::Nodes { entries_max } => {
            cmd.arg("~").arg(bound).arg("LIMIT").arg(entries_max.max(1))
        }
    };
    let trimmed = connection.query(&cmd).await?;
    redis::from_redis_value(trimmed).map_err(|error| Error::unexpected("XTRIM", error))
}

fn xinfo(key: &str) -> redis::Cmd {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("STREAM").arg(key);
    cmd
}

fn no_reply(command: &'static str) -> Error {
    Error::unexpected(command, "no reply")
}

fn read_extent(reply: Option<Result<Value, crate::ServerError>>) -> Result<Option<Extent>, Error> {
    let value = match reply.ok_or_else(|| no_reply("XINFO STREAM"))? {
        Ok(value) => value,
        Err(error) if error.code == ErrorCode::Err && error.message.contains("no such key") => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    parse_extent(value)
        .map(Some)
        .map_err(|error| Error::unexpected("XINFO STREAM", error))
}

fn parse_extent(value: Value) -> Result<Extent, ParsingError> {
    let Value::Array(items) = value else {
        return Err("not a list of names and values".into());
    };
    let mut extent = Extent {
        length: 0,
        first: None,
        last: EntryId::ZERO,
    };
    let mut items = items.into_iter();
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        match bytes(name)?.as_slice() {
            b"length" => extent.length = redis::from_redis_value(value)?,
            b"last-generated-id" => extent.last = parse_id(value)?,
            b"first-entry" if value != Value::Nil => extent.first = Some(parse_entry(value)?.id),
            _ => {}
        }
    }
    Ok(extent)
}

/// Reads the reply to `XRANGE`.
pub(crate) fn parse_entries(value: Value) -> Result<Vec<Entry>, ParsingError> {
    match value {
        Value::Array(items) => items.into_iter().map(parse_entry).collect(),
        Value::Nil => Ok(Vec::new()),
        _ => Err("not a list of entries".into()),
    }
}

/// A stream's key and what was read of it.
pub(crate) type StreamEntries = (Vec<u8>, Vec<Entry>);

/// Reads the reply to `XREAD`: for each stream that has something its name and entries.
pub(crate) fn parse_streams(value: Value) -> Result<Vec<StreamEntries>, ParsingError> {
    let streams = match value {
        Value::Array(streams) => streams,
        Value::Nil => return Ok(Vec::new()),
        _ => return Err("not a list of streams".into()),
    };
    streams
        .into_iter()
        .map(|stream| {
            let [key, entries] = pair(stream, "not a stream's name and entries")?;
            Ok((bytes(key)?, parse_entries(entries)?))
        })
        .collect()
}

fn parse_entry(value: Value) -> Result<Entry, ParsingError> {
    let [id, fields] = pair(value, "not an entry's id and fields")?;
    let id = parse_id(id)?;
    let items = match fields {
        Value::Array(items) => items,
        // An entry that was deleted while it was read.
        Value::Nil => Vec::new(),
        _ => return Err("not a list of fields and values".into()),
    };
    let mut fields = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(field), Some(value)) = (items.next(), items.next()) {
        fields.push((bytes(field)?, bytes(value)?));
    }
    Ok(Entry { id, fields })
}

fn parse_id(value: Value) -> Result<EntryId, ParsingError> {
    EntryId::try_from(bytes(value)?.as_slice()).map_err(|error| error.to_string().into())
}

fn pair(value: Value, otherwise: &'static str) -> Result<[Value; 2], ParsingError> {
    match value {
        Value::Array(items) => items.try_into().map_err(|_| otherwise.into()),
        _ => Err(otherwise.into()),
    }
}

fn bytes(value: Value) -> Result<Vec<u8>, ParsingError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        _ => Err("not a string".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_stops_before_what_its_slowest_reader_has_yet_to_read() {
        let id = EntryId::new;
        assert_eq!(trim_bound(id(100, 10), &[]), id(100, 10));
        assert_eq!(
            trim_bound(id(100, 10), &[id(200, 20), id(300, 30)]),
            id(100, 10)
        );
        assert_eq!(
            trim_bound(id(100, 10), &[id(200, 20), id(50, 5)]),
            id(50, 6)
        );
        assert_eq!(trim_bound(id(100, 10), &[EntryId::ZERO]), id(0, 1));
    }
}
