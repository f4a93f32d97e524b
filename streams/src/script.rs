//! Lua scripts by name, number of keys and hash, and calls of them.

use std::borrow::Cow;
use std::fmt;

use redis::{Cmd, ToRedisArgs};

/// A Lua script that runs in the server.
///
/// It is named by its file: `credit-4.lua` is the script `credit` and takes 4 keys. It is run by its hash (`EVALSHA`); see
/// [`Connection::run`](crate::Connection::run) for what happens when the server does not know it.
///
/// # The time line
/// A script that needs the time reads it in **one line that ends with the mark `-- @now`**:
///
/// ```lua
/// local t = redis.call('TIME')
/// local now = t[1] * 1000 + math.floor(t[2] / 1000) -- @now
/// ```
///
/// [`Script::with_clock`] replaces what is assigned in that line, so tests decide what time it is and nothing else in the
/// script differs from what runs in production.
#[derive(Clone, PartialEq, Eq)]
pub struct Script {
    name: Cow<'static, str>,
    source: Cow<'static, str>,
    keys: usize,
    sha1: Box<str>,
}

/// Where a script's time comes from; see [`Script::with_clock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The line as it is written.
    Server,
    /// Milliseconds since the epoch in a STRING of this name. The callers pass nothing. The key is not declared, so this is
    /// for a single server only.
    Key(String),
    /// Milliseconds since the epoch in a STRING of this name beside the call's first key: behind the same prefix and hash tag.
    /// It lies in the slot of the call's keys, so this is for a cluster too.
    Beside(String),
    /// Milliseconds since the epoch as the call's last argument, which callers add. Not for scripts that read a list of
    /// arguments to its end.
    LastArgument,
}

/// A file that is no script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The file's name is not `<name>-<number of keys>.lua`.
    #[error(
        "{file}: a script's file is named for what it does and its number of keys, like credit-4.lua"
    )]
    Name {
        /// The file's name.
        file: String,
    },
    /// The time is to be replaced, but there is not exactly one line to replace it in.
    #[error("{script}: {found} lines `local … = … -- @now`, there must be one")]
    TimeLine {
        /// The script's name.
        script: String,
        /// How many such lines there are.
        found: usize,
    },
}

const MARK: &str = "-- @now";
const EVALSHA: &str = "EVALSHA";

impl Script {
    /// The script in the file named `file` (directories before the name are ignored), with the contents `source`.
    pub fn new(file: &str, source: impl Into<Cow<'static, str>>) -> Result<Self, ScriptError> {
        let base = file.rsplit('/').next().unwrap_or(file);
        let (name, keys) = base
            .strip_suffix(".lua")
            .and_then(|stem| stem.rsplit_once('-'))
            .and_then(|(name, keys)| Some((name, keys.parse().ok()?)))
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| ScriptError::Name {
                file: file.to_owned(),
            })?;
        Ok(Self::of(name.to_owned().into(), source.into(), keys))
    }

    fn of(name: Cow<'static, str>, source: Cow<'static, str>, keys: usize) -> Self {
        let sha1 = redis::Script::new(&source).get_hash().into();
        Self {
            name,
            source,
            keys,
            sha1,
        }
    }

    /// What it does, such as `credit`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many keys each call declares.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Its Lua source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The SHA-1 of its source in lower-case hexadecimal, by which the server knows it.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }

    /// The same script with its time from `clock`. Fails unless exactly one line is marked, except for
    /// [`Clock::Server`], which changes nothing.
    pub fn with_clock(&self, clock: &Clock) -> Result<Self, ScriptError> {
        let time = match clock {
            Clock::Server => return Ok(self.clone()),
            Clock::Key(key) => format!("tonumber(redis.call('GET', {}))", lua_string(key)),
            Clock::Beside(name) => format!(
                "tonumber(redis.call('GET', string.match(KEYS[1], '^[^}}]*}}') .. {}))",
                lua_string(name)
            ),
            Clock::LastArgument => "tonumber(ARGV[#ARGV])".to_owned(),
        };
        let mut found = 0;
        let lines: Vec<Cow<'_, str>> = self
            .source
            .lines()
            .map(|line| match time_variable(line) {
                Some(assignment) => {
                    found += 1;
                    Cow::Owned(format!("{assignment}= {time} {MARK}"))
                }
                None => Cow::Borrowed(line),
            })
            .collect();
        if found != 1 {
            return Err(ScriptError::TimeLine {
                script: self.name.clone().into_owned(),
                found,
            });
        }
        let mut source = lines.join("\n");
        if self.source.ends_with('\n') {
            source.push('\n');
        }
        Ok(Self::of(self.name.clone(), source.into(), self.keys))
    }

    /// A call with these keys; [`Call::arg`] adds arguments. A wrong number of keys is reported when it is run.
    pub fn call<K: ToRedisArgs>(&self, keys: &[K]) -> Call<'_> {
        self.call_with_room(keys, 0, 0)
    }

    /// As [`Script::call`], with room for `args` arguments, and for `bytes` bytes of these and the keys together: it saves a
    /// caller that knows them the command's growing while it is put together.
    pub fn call_with_room<K: ToRedisArgs>(
        &self,
        keys: &[K],
        args: usize,
        bytes: usize,
    ) -> Call<'_> {
        let before = EVALSHA.len() + self.sha1.len() + usize::MAX.ilog10() as usize;
        let mut cmd = Cmd::with_capacity(3 + keys.len() + args, before + bytes);
        cmd.arg(EVALSHA).arg(self.sha1()).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        Call {
            script: self,
            cmd,
            keys: keys.len(),
        }
    }

    pub(crate) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.source());
        cmd
    }
}

/// The part before the `=` of a marked time line.
fn time_variable(line: &str) -> Option<&str> {
    let code = line.trim_end().strip_suffix(MARK)?;
    let (assignment, _) = code.split_once('=')?;
    assignment
        .trim_start()
        .starts_with("local ")
        .then_some(assignment)
}

/// `text` as a Lua string literal.
fn lua_string(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('\'');
    for character in text.chars() {
        match character {
            '\'' | '\\' => literal.extend(['\\', character]),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\0' => literal.push_str("\\000"),
            _ => literal.push(character),
        }
    }
    literal.push('\'');
    literal
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("name", &self.name)
            .field("keys", &self.keys)
            .field("sha1", &self.sha1)
            .finish_non_exhaustive()
    }
}

/// A call of a [`Script`], from [`Script::call`].
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub(crate) script: &'a Script,
    pub(crate) cmd: Cmd,
    pub(crate) keys: usize,
}

impl Call<'_> {
    /// Adds an argument (several, if `arg` is a list).
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    pub(crate) fn check_keys(&self) -> Result<(), crate::Error> {
        if self.keys == self.script.keys {
            return Ok(());
        }
        Err(crate::Error::KeyCount {
            script: self.script.name().to_owned(),
            expected: self.script.keys,
            given: self.keys,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_by_its_file() {
        let script = Script::new("lua/record-finds-4.lua", "return 1").unwrap();
        assert_eq!((script.name(), script.keys()), ("record-finds", 4));
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        for file in ["credit.lua", "credit-x.lua", "credit-4.txt", "-4.lua", ""] {
            assert!(
                matches!(Script::new(file, ""), Err(ScriptError::Name { .. })),
                "{file}"
            );
        }
    }

    #[test]
    fn only_the_marked_line_is_replaced() {
        let source =
            "local t = redis.call('TIME')\n  local now = t[1] * 1000 -- @now\nreturn now\n";
        let script = Script::new("now-0.lua", source).unwrap();
        assert_eq!(script.with_clock(&Clock::Server).unwrap(), script);
        assert_eq!(
            script.with_clock(&Clock::LastArgument).unwrap().source(),
            "local t = redis.call('TIME')\n  local now = tonumber(ARGV[#ARGV]) -- @now\nreturn now\n"
        );
        let by_key = script.with_clock(&Clock::Key("it's".into())).unwrap();
        assert!(
            by_key.source().contains(r"redis.call('GET', 'it\'s')"),
            "{}",
            by_key.source()
        );
        assert_ne!(by_key.sha1(), script.sha1());
    }

    #[test]
    fn a_script_without_exactly_one_time_line_is_refused() {
        for (source, found) in [
            ("return 1", 0),
            ("local a = 1 -- @now\nlocal b = 2 -- @now", 2),
            ("now = 1 -- @now", 0),
        ] {
            assert_eq!(
                Script::new("x-0.lua", source)
                    .unwrap()
                    .with_clock(&Clock::LastArgument),
                Err(ScriptError::TimeLine {
                    script: "x".into(),
                    found
                })
            );
        }
    }
}
