//! Several commands and script calls in one write.

use std::vec;

use redis::{Cmd, Pipeline, Value};

use super::Connection;
use super::link::Link;
use crate::error::{Error, ErrorCode, ServerError};
use crate::{Call, Script};

/// Commands and script calls that are sent together and answered together. Not a transaction: others' commands may run in
/// between, and one that fails does not keep the rest from running.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    pub(crate) steps: Vec<Step<'a>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) cmd: Cmd,
    /// The script that `cmd` calls.
    script: Option<&'a Script>,
    /// What keeps the batch from being sent.
    pub(crate) wrong: Option<Error>,
}

/// The replies of a batch, one for each command in its order.
pub type Replies = vec::IntoIter<Result<Value, ServerError>>;

impl<'a> Batch<'a> {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command.
    pub fn cmd(mut self, cmd: Cmd) -> Self {
        self.steps.push(Step {
            cmd,
            script: None,
            wrong: None,
        });
        self
    }

    /// Adds a script call.
    pub fn call(mut self, call: &Call<'a>) -> Self {
        self.steps.push(Step {
            cmd: call.cmd.clone(),
            script: Some(call.script),
            wrong: call.check_keys().err(),
        });
        self
    }

    /// How many commands it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl Connection {
    /// Sends a batch and waits for all of its replies: for each command its reply or the server's error. The batch itself
    /// fails only if the replies did not arrive, and then [`Error::outcome`] holds for each of its commands.
    ///
    /// **Scripts that the server does not know.** Calls that were refused with `NOSCRIPT` ran nothing. They, and only they,
    /// are sent once more, in their order, behind the scripts that they miss. So commands keep their order among those that
    /// were not refused, and among those that were; but a refused call runs after every command of the batch that was not.
    /// Where a call must not be overtaken by a later command of the same batch, put them into two batches. If the second
    /// sending is not answered, the whole batch fails with an [`Outcome::Unknown`](crate::Outcome::Unknown), though some of
    /// its commands were answered. If it finds too many commands in flight, the refused calls keep their `NOSCRIPT`.
    pub async fn batch(&self, batch: Batch<'_>) -> Result<Replies, Error> {
        if let Some(wrong) = batch.steps.iter().find_map(|step| step.wrong.clone()) {
            return Err(wrong);
        }
        if batch.is_empty() {
            return Ok(Vec::new().into_iter());
        }
        let link = self.link()?;
        let mut replies = self
            .send(&link, batch.steps.iter().map(|step| step.cmd.clone()))
            .await?;
        let refused: Vec<usize> = (0..replies.len())
            .filter(|index| {
                batch.steps[*index].script.is_some()
                    && matches!(&replies[*index], Err(error) if error.code == ErrorCode::NoScript)
            })
            .collect();
        if refused.is_empty() {
            return Ok(replies.into_iter());
        }
        let mut missing: Vec<&Script> = Vec::new();
        for index in &refused {
            if let Some(script) = batch.steps[*index].script
                && !missing.iter().any(|other| other.sha1() == script.sha1())
            {
                missing.push(script);
            }
        }
        let again = missing
            .iter()
            .map(|script| script.load())
            .chain(refused.iter().map(|index| batch.steps[*index].cmd.clone()));
        match self.send(&link, again).await {
            Ok(answers) => {
                for (index, answer) in refused.iter().zip(answers.into_iter().skip(missing.len())) {
                    replies[*index] = answer;
                }
                Ok(replies.into_iter())
            }
            // They keep their NOSCRIPT, which says that they did not run.
            Err(Error::TooManyInFlight { .. }) => Ok(replies.into_iter()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn load_and_run(&self, call: &Call<'_>) -> Result<Value, Error> {
        let link = self.link()?;
        let commands = [call.script.load(), call.cmd.clone()];
        let replies = self.send(&link, commands.into_iter()).await?;
        // Loading fails only together with running.
        Ok(replies
            .into_iter()
            .next_back()
            .expect("each command has a reply")?)
    }

    async fn send(
        &self,
        link: &Link,
        commands: impl Iterator<Item = Cmd>,
    ) -> Result<Vec<Result<Value, ServerError>>, Error> {
        let mut pipeline = Pipeline::new();
        for cmd in commands {
            pipeline.add_command(cmd);
        }
        let count = pipeline.len();
        let values = self
            .exchange(link, count, async |mut connection| {
                connection.send_packed_commands(&pipeline, 0, count).await
            })
            .await?;
        Ok(values
            .into_iter()
            .map(|value| match value {
                Value::ServerError(error) => {
                    let error = ServerError::from(error);
                    link.refused(&error);
                    Err(error)
                }
                value => Ok(value),
            })
            .collect())
    }
}
