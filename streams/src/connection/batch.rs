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

    /// An empty batch with room for so many commands.
    pub fn with_room(commands: usize) -> Self {
        Self {
            steps: Vec::with_capacity(commands),
        }
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
    pub fn call(mut self, call: Call<'a>) -> Self {
        self.steps.push(Step {
            script: Some(call.script),
            wrong: call.check_keys().err(),
            cmd: call.cmd,
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
        let mut scripts = Vec::with_capacity(batch.len());
        let mut commands = Pipeline::with_capacity(batch.len());
        for step in batch.steps {
            scripts.push(step.script);
            commands.add_command(step.cmd);
        }
        let mut replies = self.send(&link, &commands).await?;
        let mut refused = Vec::new();
        let mut missing: Vec<&Script> = Vec::new();
        for (index, (reply, script)) in replies.iter().zip(&scripts).enumerate() {
            if let (Err(error), Some(script)) = (reply, script)
                && error.code == ErrorCode::NoScript
            {
                refused.push(index);
                if !missing.iter().any(|other| other.sha1() == script.sha1()) {
                    missing.push(script);
                }
            }
        }
        if refused.is_empty() {
            return Ok(replies.into_iter());
        }
        let mut again = Pipeline::with_capacity(missing.len() + refused.len());
        for script in &missing {
            again.add_command(script.load());
        }
        for (index, cmd) in commands.cmd_iter().enumerate() {
            if refused.contains(&index) {
                again.add_command(cmd.clone());
            }
        }
        match self.send(&link, &again).await {
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
        let mut commands = Pipeline::with_capacity(2);
        commands.add_command(call.script.load());
        commands.add_command(call.cmd.clone());
        let replies = self.send(&link, &commands).await?;
        // Loading fails only together with running.
        Ok(replies
            .into_iter()
            .next_back()
            .expect("each command has a reply")?)
    }

    pub(super) async fn send_one(
        &self,
        link: &Link,
        cmd: &Cmd,
    ) -> Result<Result<Value, ServerError>, Error> {
        let value = self
            .exchange(link, 1, async |mut connection| {
                connection.send_packed_command(cmd).await
            })
            .await?;
        Ok(reply(link, value))
    }

    async fn send(
        &self,
        link: &Link,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, ServerError>>, Error> {
        let count = commands.len();
        // Most batches are of one command.
        if let (1, Some(cmd)) = (count, commands.cmd_iter().next()) {
            return Ok(vec![self.send_one(link, cmd).await?]);
        }
        let values = self
            .exchange(link, count, async |mut connection| {
                connection.send_packed_commands(commands, 0, count).await
            })
            .await?;
        Ok(values.into_iter().map(|value| reply(link, value)).collect())
    }
}

/// A reply, or the server's error, which may end the link.
fn reply(link: &Link, value: Value) -> Result<Value, ServerError> {
    match value {
        Value::ServerError(error) => {
            let error = ServerError::from(error);
            link.refused(&error);
            Err(error)
        }
        value => Ok(value),
    }
}
