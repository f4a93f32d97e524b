//! Calls of scripts: put together, sent in batches, answered one by one, and sent again where nothing was done because
//! the caller's epoch or time was not the store's.

use super::fenced::Fenced;
use super::shared::{Core, failed};
use crate::store::StoreError;
use trove_streams::redis::Value;
use trove_streams::{Batch, Call, Error, ErrorCode, Script, ServerError};

/// How many calls travel in one write.
const BATCH_CALLS_MAX: usize = 256;
/// How often a call is sent again after an epoch or a time that was not the store's.
const ATTEMPTS_MAX: u32 = 5;
/// The digits of the largest number.
const NUMBER_LEN_MAX: usize = 20;

/// A call of a partition's script, less the epoch and the time that go before its arguments.
pub(super) struct Job<'a> {
    script: &'a Script,
    keys: Vec<String>,
    /// The arguments' bytes one after the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> Job<'a> {
    pub(super) fn new(script: &'a Script, keys: Vec<String>) -> Self {
        Self {
            script,
            keys,
            bytes: Vec::with_capacity(128),
            ends: Vec::with_capacity(24),
        }
    }

    pub(super) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.push(arg);
        self
    }

    pub(super) fn number(mut self, arg: u64) -> Self {
        self.push_number(arg);
        self
    }

    pub(super) fn push(&mut self, arg: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(arg.as_ref());
        self.ends.push(self.bytes.len());
    }

    pub(super) fn push_number(&mut self, arg: u64) {
        self.push(itoa::Buffer::new().format(arg));
    }

    /// A number, or `-`.
    pub(super) fn push_maybe(&mut self, arg: Option<u64>) {
        match arg {
            Some(number) => self.push_number(number),
            None => self.push("-"),
        }
    }

    /// A key of the partition: the first that every script declares.
    pub(super) fn place(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    fn call(&self, epoch: u64, now_max: u64) -> Call<'a> {
        let bytes = self.keys.iter().map(String::len).sum::<usize>() + self.bytes.len();
        let args = self.ends.len() + 2;
        let mut call = self
            .script
            .call_with_room(&self.keys, args, bytes + 2 * NUMBER_LEN_MAX);
        call = call.arg(epoch).arg(now_max);
        let mut from = 0;
        for end in &self.ends {
            call = call.arg(&self.bytes[from..*end]);
            from = *end;
        }
        call
    }
}

/// What a script answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// Its reply.
    Reply(Value),
    /// The hunt has another generation in the partition, or is frozen; nothing was done.
    Generation,
    /// It could not be run.
    Failed(StoreError),
}

impl Answer {
    /// The reply of a call that does not depend on a hunt's generation.
    pub(super) fn reply(self) -> Result<Value, StoreError> {
        match self {
            Self::Reply(value) => Ok(value),
            Self::Generation => Err(StoreError::Busy),
            Self::Failed(error) => Err(error),
        }
    }
}

impl Core {
    /// Runs one call.
    pub(super) async fn run(&self, job: Job<'_>) -> Answer {
        let mut answers = self.run_all(std::slice::from_ref(&job)).await;
        answers
            .pop()
            .unwrap_or_else(|| Answer::Failed(StoreError::Unavailable("no answer".into())))
    }

    /// Runs one call that does not depend on a hunt's generation.
    pub(super) async fn ask(&self, job: Job<'_>) -> Result<Value, StoreError> {
        self.run(job).await.reply()
    }

    /// Runs calls in their order, those of one partition after one another. One answer a call, as durable as the store
    /// promises.
    pub(super) async fn run_all(&self, jobs: &[Job<'_>]) -> Vec<Answer> {
        self.run_covering(jobs, |_| true).await
    }

    /// As [`Core::run_all`], where only what `changed` picks by their replies changed anything: the rest needs no cover.
    pub(super) async fn run_covering(
        &self,
        jobs: &[Job<'_>],
        changed: impl Fn(&Value) -> bool,
    ) -> Vec<Answer> {
        if self.fences.is_none() || jobs.is_empty() {
            return self.execute(jobs).await;
        }
        let sent = self.sending(jobs.iter().map(Job::place));
        let mut answers = self.execute(jobs).await;
        let replied: Vec<usize> = (0..jobs.len())
            .filter(|index| matches!(&answers[*index], Answer::Reply(value) if changed(value)))
            .collect();
        let keys: Vec<&str> = replied.iter().map(|index| jobs[*index].place()).collect();
        let sent: Vec<_> = replied.iter().map(|index| sent[*index].clone()).collect();
        for (index, covered) in replied.into_iter().zip(self.covered(&keys, &sent).await) {
            if let Err(error) = covered {
                answers[index] = Answer::Failed(error);
            }
        }
        answers
    }

    /// Runs calls in their order, and leaves it to the caller to have covered what they answer.
    pub(super) async fn execute(&self, jobs: &[Job<'_>]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = jobs.iter().map(|_| None).collect();
        if let Some(why) = self.shared.disowned() {
            return settle(answers, &StoreError::Unavailable(why));
        }
        let mut now_max = 0;
        for attempt in 1..=ATTEMPTS_MAX {
            let open: Vec<usize> = (0..jobs.len())
                .filter(|index| answers[*index].is_none())
                .collect();
            let mut again = None;
            for part in open.chunks(BATCH_CALLS_MAX) {
                let epoch = self.shared.epoch();
                let latest = self.shared.latest_possible().max(now_max);
                let mut batch = Batch::with_room(part.len());
                for index in part {
                    batch = batch.call(jobs[*index].call(epoch, latest));
                }
                let replies = self.commands.each(batch).await;
                for (index, reply) in part.iter().zip(replies) {
                    match reply {
                        Ok(value) => {
                            self.shared.heard();
                            answers[*index] = Some(Answer::Reply(value));
                        }
                        Err(Error::Server(error)) => {
                            if let Some(what) = Fenced::by_error(&error) {
                                self.shared.fenced.count(what);
                            }
                            match refusal(&error) {
                                Refused::Again(reason) if attempt < ATTEMPTS_MAX => {
                                    again = Some(reason)
                                }
                                Refused::Generation => answers[*index] = Some(Answer::Generation),
                                _ => {
                                    let error = self.shared.refused(&error);
                                    answers[*index] = Some(Answer::Failed(error))
                                }
                            }
                        }
                        Err(error) => {
                            answers[*index] = Some(Answer::Failed(self.shared.failed(&error)));
                        }
                    }
                }
            }
            match again {
                None => break,
                Some(Again::Epoch) => {
                    if let Err(error) = self.meet_epoch().await {
                        return settle(answers, &error);
                    }
                }
                Some(Again::Clock(now)) => {
                    if let Err(error) = self.meet_clock().await {
                        return settle(answers, &error);
                    }
                    // What is still ahead of the clock is not a step of it: the last entry may be from a server before.
                    now_max = now;
                }
            }
        }
        settle(answers, &StoreError::Busy)
    }
}

fn settle(answers: Vec<Option<Answer>>, error: &StoreError) -> Vec<Answer> {
    let settle = |answer: Option<Answer>| answer.unwrap_or_else(|| Answer::Failed(error.clone()));
    answers.into_iter().map(settle).collect()
}

enum Refused {
    Again(Again),
    Generation,
    No,
}

#[derive(Clone, Copy)]
enum Again {
    Epoch,
    Clock(u64),
}

fn refusal(error: &ServerError) -> Refused {
    match &error.code {
        ErrorCode::Other(code) if code == "EPOCH" => Refused::Again(Again::Epoch),
        ErrorCode::Other(code) if code == "GENERATION" => Refused::Generation,
        ErrorCode::Other(code) if code == "CLOCK" => {
            Refused::Again(Again::Clock(error.message.trim().parse().unwrap_or(0)))
        }
        _ => Refused::No,
    }
}

/// Reads a script's reply piece by piece.
pub(super) struct Reader(std::vec::IntoIter<Value>);

impl Reader {
    pub(super) fn new(value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            other => Err(strange(&other)),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, StoreError> {
        match self.0.next() {
            Some(Value::Int(number)) => {
                u64::try_from(number).map_err(|_| strange(&Value::Int(number)))
            }
            other => Err(strange(&other.unwrap_or(Value::Nil))),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        text(self.0.next().unwrap_or(Value::Nil))
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            other => Err(strange(&other.unwrap_or(Value::Nil))),
        }
    }

    /// The next piece, which is a list itself.
    pub(super) fn list(&mut self) -> Result<Self, StoreError> {
        Self::new(self.0.next().unwrap_or(Value::Nil))
    }

    pub(super) fn wallet(&mut self) -> Result<crate::game::wallet::Wallet, StoreError> {
        Ok(crate::game::wallet::Wallet {
            balance: self.number()?,
            seq: self.number()?,
            shown_seq: self.number()?,
            pending_coins: self.number()?,
            pending_finds: self.number()?,
            due_at: self.number()?,
        })
    }

    /// Whether the next piece is a text.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.0.as_slice().first(), Some(Value::BulkString(_)))
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

/// A reply that is one text.
pub(super) fn text(value: Value) -> Result<String, StoreError> {
    match value {
        Value::BulkString(bytes) => {
            String::from_utf8(bytes).map_err(|_| StoreError::Damaged("a reply is no text".into()))
        }
        Value::SimpleString(text) => Ok(text),
        other => Err(strange(&other)),
    }
}

/// A reply that is one number.
pub(super) fn integer(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(strange(other)),
    }
}

pub(super) fn strange(value: &Value) -> StoreError {
    StoreError::Damaged(format!("a reply is not understood: {value:?}"))
}

/// The connection's error, for a read: nothing was asked to be changed.
pub(super) fn read_failed(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(why) => StoreError::Unavailable(why),
        error => error,
    }
}

impl Core {
    /// Runs one plain command that only reads.
    pub(super) async fn read(&self, cmd: &trove_streams::redis::Cmd) -> Result<Value, StoreError> {
        if let Some(why) = self.shared.disowned() {
            return Err(StoreError::Unavailable(why));
        }
        match self.commands.query(cmd).await {
            Ok(value) => {
                self.shared.heard();
                Ok(value)
            }
            Err(error) => Err(read_failed(self.shared.failed(&error))),
        }
    }

    /// Runs plain commands that only read, in one write for every few hundred.
    pub(super) async fn read_all(
        &self,
        cmds: Vec<trove_streams::redis::Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let mut values = Vec::with_capacity(cmds.len());
        let mut cmds = cmds.into_iter().peekable();
        while cmds.peek().is_some() {
            let batch = cmds
                .by_ref()
                .take(BATCH_CALLS_MAX)
                .fold(Batch::new(), Batch::cmd);
            let replies = self
                .commands
                .batch(batch)
                .await
                .map_err(|error| read_failed(self.shared.failed(&error)))?;
            for reply in replies {
                values.push(reply.map_err(|error| read_failed(failed(&error.into())))?);
            }
        }
        Ok(values)
    }
}
