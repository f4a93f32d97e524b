//! Which key a command is about.

use redis::{Arg, Cmd};

/// The first key of `cmd`; `None` for a command that is about no key, such as `TIME`. Knows the commands that a store
/// sends; of any other, the key is taken to be the first argument.
pub(crate) fn key_of(cmd: &Cmd) -> Option<&[u8]> {
    let mut args = cmd.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        _ => &[],
    });
    let name = args.next()?.to_ascii_uppercase();
    match name.as_slice() {
        b"TIME" | b"PING" | b"INFO" | b"SCRIPT" | b"CLIENT" | b"CONFIG" | b"CLUSTER" | b"WAIT"
        | b"WAITAOF" | b"ROLE" | b"ASKING" => None,
        b"EVAL" | b"EVALSHA" => match args.nth(1)? {
            b"0" => None,
            _ => args.next(),
        },
        b"XINFO" | b"MEMORY" | b"OBJECT" | b"XGROUP" => args.nth(1),
        b"XREAD" => args
            .find(|arg| arg.eq_ignore_ascii_case(b"STREAMS"))
            .and_then(|_| args.next()),
        _ => args.next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(words: &str) -> Option<String> {
        let mut cmd = Cmd::new();
        for word in words.split(' ') {
            cmd.arg(word);
        }
        key_of(&cmd).map(|key| String::from_utf8(key.to_vec()).unwrap())
    }

    #[test]
    fn the_key_of_every_command_that_a_store_sends_is_found() {
        for words in [
            "GET k",
            "HGETALL k",
            "EVALSHA sha 2 k other arg",
            "eval text 1 k",
            "XINFO STREAM k",
            "MEMORY USAGE k",
            "XREAD COUNT 5 STREAMS k 0-0",
            "XRANGE k - +",
            "ZRANGEBYSCORE k -inf 1 LIMIT 0 5",
            "SET k v",
        ] {
            assert_eq!(key(words).as_deref(), Some("k"), "{words}");
        }
        for words in ["TIME", "INFO replication", "EVALSHA sha 0 x", "WAIT 1 5"] {
            assert_eq!(key(words), None, "{words}");
        }
    }
}
