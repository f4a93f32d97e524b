//! Requests as bytes: what does not change is prepared once, the user's token and cursor go in between.

use crate::books::ids;
use crate::case::Kind;
use crate::checker::Cursor;
use crate::checker::finds::Find;

/// A treasure of the hunt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Treasure {
    /// Its id.
    pub id: String,
    /// Its coins.
    pub coins: u64,
    /// Whether it can be found more than once.
    pub repeatable: bool,
}

/// How a poll names its cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Not at all.
    None,
    /// `?since=`.
    Since(Cursor),
    /// `If-None-Match`.
    IfNoneMatch(Cursor),
}

/// The prepared pieces.
#[derive(Debug)]
pub struct Requests {
    hunt: String,
    host: String,
    poll: Vec<u8>,
    heartbeat: Vec<u8>,
    heartbeat_end: Vec<u8>,
    history: Vec<u8>,
    catalogue: Vec<u8>,
    treasures: Vec<Treasure>,
    /// Before the player's name, and after it, if it is to be there.
    template: Option<(String, Option<String>)>,
}

/// Entries of a page of history.
const HISTORY_LIMIT: u32 = 200;

const AUTHORIZATION: &[u8] = b"Authorization: Bearer ";

impl Requests {
    /// For a hunt at a host. `template`: the path of polls at another server, with `{player}`; empty for Trove's own.
    #[must_use]
    pub fn new(
        host: &str,
        hunt: &str,
        treasures: Vec<Treasure>,
        template: &str,
        heartbeat_bytes: u32,
    ) -> Self {
        let head = |line: &str| format!("{line} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
        Self {
            hunt: hunt.to_owned(),
            host: host.to_owned(),
            poll: head(&format!("GET /treasure/{hunt}")),
            heartbeat: head("POST /heartbeat"),
            heartbeat_end: heartbeat_end(heartbeat_bytes),
            history: head(&format!(
                "GET /treasure/{hunt}/history?limit={HISTORY_LIMIT}"
            )),
            catalogue: [head(&format!("GET /hunts/{hunt}")), b"\r\n".to_vec()].concat(),
            treasures,
            template: (!template.is_empty()).then(|| match template.split_once("{player}") {
                Some((before, after)) => (before.to_owned(), Some(after.to_owned())),
                None => (template.to_owned(), None),
            }),
        }
    }

    /// The treasures that finds may be of.
    #[must_use]
    pub fn treasures(&self) -> &[Treasure] {
        &self.treasures
    }

    /// Appends a request without a body of its own: a poll, a heartbeat, a look at history or catalogue.
    pub fn write(&self, out: &mut Vec<u8>, kind: Kind, (user, token): (u32, &str), named: Named) {
        match kind {
            Kind::Poll => self.write_poll(out, user, token, named),
            Kind::Heartbeat => {
                out.extend_from_slice(&self.heartbeat);
                authorize(out, token);
                out.extend_from_slice(&self.heartbeat_end);
            }
            Kind::History => {
                out.extend_from_slice(&self.history);
                authorize(out, token);
                out.extend_from_slice(b"\r\n");
            }
            Kind::Catalogue => out.extend_from_slice(&self.catalogue),
            Kind::Find | Kind::BulkFind => {}
        }
    }

    fn write_poll(&self, out: &mut Vec<u8>, user: u32, token: &str, named: Named) {
        if let Some((before, after)) = &self.template {
            out.extend_from_slice(b"GET ");
            out.extend_from_slice(before.as_bytes());
            if let Some(after) = after {
                out.extend_from_slice(ids::player_name(user).as_bytes());
                out.extend_from_slice(after.as_bytes());
            }
            out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
            out.extend_from_slice(self.host.as_bytes());
            out.extend_from_slice(b"\r\n");
        } else if let Named::Since(cursor) = named {
            out.extend_from_slice(b"GET /treasure/");
            out.extend_from_slice(self.hunt.as_bytes());
            out.extend_from_slice(b"?since=");
            write_cursor(out, cursor);
            out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
            out.extend_from_slice(self.host.as_bytes());
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(&self.poll);
        }
        if let Named::IfNoneMatch(cursor) = named {
            out.extend_from_slice(b"If-None-Match: W/\"");
            write_cursor(out, cursor);
            out.extend_from_slice(b"\"\r\n");
        }
        if !token.is_empty() {
            authorize(out, token);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Appends a find. Of every second one the id is in the body, of the others in `Idempotency-Key`; one of a once-only
    /// treasure has none.
    pub fn write_find(&self, out: &mut Vec<u8>, token: &str, find: Find) {
        let treasure = find
            .treasure
            .and_then(|index| self.treasures.get(usize::from(index)))
            .map_or("", |treasure| treasure.id.as_str());
        let once = find.number & ids::ONCE != 0;
        let mut body = format!("{{\"treasure\":\"{treasure}\"");
        let mut key = String::new();
        if !once {
            let id = ids::find_id(find.number);
            if find.number.is_multiple_of(2) {
                body.push_str(",\"id\":\"");
                body.push_str(&id);
                body.push('"');
            }
            // The shim may send a write again only with a key.
            key = format!("Idempotency-Key: {id}\r\n");
        }
        body.push('}');
        out.extend_from_slice(
            format!(
                "POST /treasure/{} HTTP/1.1\r\nHost: {}\r\n",
                self.hunt_finds(),
                self.host
            )
            .as_bytes(),
        );
        authorize(out, token);
        out.extend_from_slice(
            format!(
                "{key}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
    }

    fn hunt_finds(&self) -> String {
        format!("{}/finds", self.hunt)
    }

    /// Appends finds in bulk, as an array or as lines.
    pub fn write_bulk(
        &self,
        out: &mut Vec<u8>,
        admin_key: &str,
        finds: &[(u32, Find)],
        as_lines: bool,
    ) {
        let mut body = Vec::with_capacity(finds.len() * 64);
        let (begin, between, end): (&[u8], &[u8], &[u8]) = if as_lines {
            (b"", b"\n", b"\n")
        } else {
            (b"[", b",", b"]")
        };
        body.extend_from_slice(begin);
        for (nth, (user, find)) in finds.iter().enumerate() {
            if nth > 0 {
                body.extend_from_slice(between);
            }
            let id = ids::find_id(find.number);
            let player = ids::player_name(*user);
            let treasure = find
                .treasure
                .and_then(|index| self.treasures.get(usize::from(index)));
            let what = treasure.map_or_else(
                || format!("\"coins\":{}", find.coins),
                |treasure| format!("\"treasure\":\"{}\"", treasure.id),
            );
            body.extend_from_slice(
                format!("{{\"id\":\"{id}\",\"player\":\"{player}\",{what}}}").as_bytes(),
            );
        }
        body.extend_from_slice(end);
        let media_type = if as_lines {
            "application/x-ndjson"
        } else {
            "application/json"
        };
        out.extend_from_slice(
            format!(
                "POST /hunts/{} HTTP/1.1\r\nHost: {}\r\n",
                self.hunt_finds(),
                self.host
            )
            .as_bytes(),
        );
        authorize(out, admin_key);
        out.extend_from_slice(
            format!(
                "Content-Type: {media_type}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        );
        out.extend_from_slice(&body);
    }
}

fn authorize(out: &mut Vec<u8>, token: &str) {
    out.extend_from_slice(AUTHORIZATION);
    out.extend_from_slice(token.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_cursor(out: &mut Vec<u8>, cursor: Cursor) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(cursor.epoch).as_bytes());
    out.push(b'.');
    out.extend_from_slice(digits.format(cursor.seq).as_bytes());
}

/// Length, and a body of this size: what a phone says of itself.
fn heartbeat_end(bytes: u32) -> Vec<u8> {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    let (begin, end) = ("{\"type\":\"heartbeat\",\"pad\":\"", "\"}");
    let body = match bytes.checked_sub(begin.len() + end.len()) {
        Some(pad) => format!("{begin}{}{end}", "x".repeat(pad)),
        None if bytes >= 2 => format!("{{{}}}", " ".repeat(bytes - 2)),
        None => String::new(),
    };
    format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(template: &str) -> Requests {
        let treasure = |id: &str, repeatable| Treasure {
            id: id.to_owned(),
            coins: 5,
            repeatable,
        };
        Requests::new(
            "h:80",
            "hunt",
            vec![treasure("drop", true), treasure("once-0", false)],
            template,
            96,
        )
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_heartbeat_is_of_its_size() {
        for bytes in [0, 2, 3, 40, 96, 1_000] {
            let end = String::from_utf8(heartbeat_end(bytes)).unwrap();
            let (fields, body) = end.split_once("\r\n\r\n").unwrap();
            assert_eq!(body.len(), usize::try_from(bytes).unwrap());
            assert!(fields.ends_with(&format!(": {bytes}")), "{fields}");
        }
    }

    #[test]
    fn a_poll_names_its_cursor_in_either_way() {
        let (requests, cursor) = (requests(""), Cursor { epoch: 7, seq: 3 });
        let poll = |named| text(|out| requests.write(out, Kind::Poll, (1, "T"), named));
        assert_eq!(
            poll(Named::None),
            "GET /treasure/hunt HTTP/1.1\r\nHost: h:80\r\nAuthorization: Bearer T\r\n\r\n"
        );
        assert!(
            poll(Named::Since(cursor)).starts_with("GET /treasure/hunt?since=7.3 HTTP/1.1\r\n")
        );
        assert!(poll(Named::IfNoneMatch(cursor)).contains("\r\nIf-None-Match: W/\"7.3\"\r\n"));
    }

    #[test]
    fn another_servers_path_has_the_player_in_it() {
        let poll = text(|out| {
            requests("/wallet/{player}?x=1").write(out, Kind::Poll, (12, ""), Named::None)
        });
        assert_eq!(poll, "GET /wallet/u12?x=1 HTTP/1.1\r\nHost: h:80\r\n\r\n");
        let poll = text(|out| requests("/constant").write(out, Kind::Poll, (12, "T"), Named::None));
        assert!(poll.starts_with("GET /constant HTTP/1.1\r\n"));
    }

    #[test]
    fn finds_carry_their_id_and_a_once_only_one_none() {
        let requests = requests("");
        let find = |number, treasure| {
            text(|out| {
                let find = Find {
                    number,
                    treasure: Some(treasure),
                    coins: 5,
                };
                requests.write_find(out, "T", find);
            })
        };
        assert!(find(4, 0).ends_with("{\"treasure\":\"drop\",\"id\":\"f4\"}"));
        assert!(find(5, 0).contains("\r\nIdempotency-Key: f5\r\n"));
        assert!(find(5, 0).ends_with("{\"treasure\":\"drop\"}"));
        assert!(!find(ids::ONCE, 1).contains("Idempotency-Key"));
    }

    #[test]
    fn bulk_finds_are_an_array_or_lines() {
        let finds = [
            (
                1,
                Find {
                    number: 8,
                    treasure: None,
                    coins: 3,
                },
            ),
            (
                2,
                Find {
                    number: 9,
                    treasure: Some(0),
                    coins: 5,
                },
            ),
        ];
        let bulk = |as_lines| {
            let request = text(|out| requests("").write_bulk(out, "K", &finds, as_lines));
            request.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        let (one, two) = (
            "{\"id\":\"f8\",\"player\":\"u1\",\"coins\":3}",
            "{\"id\":\"f9\",\"player\":\"u2\",\"treasure\":\"drop\"}",
        );
        assert_eq!(bulk(false), format!("[{one},{two}]"));
        assert_eq!(bulk(true), format!("{one}\n{two}\n"));
    }
}
