//! A batch on its way through a cluster.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::time::{Instant, sleep};

use super::slots::read_redirect;
use super::{Inner, key_of};
use crate::connection::{Batch, DownReason, Replies, Step};
use crate::endpoint::{BoxFuture, Endpoint};
use crate::error::{Error, ErrorCode, ServerError};

/// How often a command follows a redirection.
const HOPS_MAX: u32 = 8;
/// The pause before a command is sent again whose keys are apart because their slot is moving, or whose node waits for others.
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(10);

/// Where a command goes next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Via {
    /// To the primary that the map shows.
    Map,
    /// To a node that another one named; it may have to be connected to first.
    Moved(Endpoint),
    /// Once to the node that takes the slot over, by its leave.
    Ask(Endpoint),
}

/// A command without an answer.
struct Open {
    index: usize,
    slot: u16,
    via: Via,
}

/// Commands that go to one node together.
struct Group {
    to: Endpoint,
    asking: bool,
    /// Whether its link is waited for.
    patient: bool,
    open: Vec<Open>,
}

impl Inner {
    /// Sends a batch, each command to the primary of its key, and waits for all answers: for each command its reply or why
    /// it has none. Commands about one slot keep their order among themselves, unless some of them are redirected.
    ///
    /// `MOVED` and `ASK` are followed, also from within a batch: who answers so has not done the command. A command whose
    /// keys are apart, because their slot is moving (`TRYAGAIN`), or whose node does not see enough of the cluster
    /// (`CLUSTERDOWN`), is sent again for as long as an answer may take; then its refusal is the answer, and nothing was done.
    /// Likewise one whose primary has no link: another may be about to take over.
    pub(crate) async fn each(self: &Arc<Self>, batch: &Batch<'_>) -> Vec<Result<Value, Error>> {
        let mut answers: Vec<Option<Result<Value, Error>>> = Vec::with_capacity(batch.steps.len());
        let mut open = Vec::with_capacity(batch.steps.len());
        for (index, step) in batch.steps.iter().enumerate() {
            answers.push(step.wrong.clone().map(Err));
            if step.wrong.is_none() {
                open.push(Open {
                    index,
                    slot: self.slot_of(key_of(&step.cmd)),
                    via: Via::Map,
                });
            }
        }
        let until = Instant::now() + self.config.patience();
        let mut hops = 0;
        while !open.is_empty() {
            let groups = self.group(std::mem::take(&mut open), &mut answers);
            let sent = groups
                .iter()
                .map(|group| self.send(group, &batch.steps, until));
            let sent = join_all(sent).await;
            let mut apart = false;
            for (group, replies) in groups.into_iter().zip(sent) {
                let replies = match replies {
                    Ok(replies) => replies,
                    Err(error) => {
                        self.look_soon();
                        let again = may_pass(&error) && Instant::now() < until;
                        apart |= again;
                        for one in group.open {
                            if again {
                                open.push(Open {
                                    via: Via::Map,
                                    ..one
                                });
                            } else {
                                answers[one.index] = Some(Err(error.clone()));
                            }
                        }
                        continue;
                    }
                };
                for (one, reply) in group.open.into_iter().zip(replies) {
                    let answer = &mut answers[one.index];
                    match reply {
                        Ok(value) => *answer = Some(Ok(value)),
                        Err(refusal) => match self.follow(&refusal, one.slot, &group.to) {
                            Some(via) if hops < HOPS_MAX && Instant::now() < until => {
                                apart |= via == Via::Map;
                                open.push(Open { via, ..one });
                            }
                            _ => *answer = Some(Err(refusal.into())),
                        },
                    }
                }
            }
            // In their order again, as groups were.
            open.sort_by_key(|one| one.index);
            if apart {
                sleep(TRY_AGAIN_PAUSE).await;
            } else {
                hops += 1;
            }
        }
        let unanswered = || Err(uncovered());
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(unanswered))
            .collect()
    }

    /// Runs one command; see [`Inner::each`].
    pub(crate) fn query<'a>(self: &'a Arc<Self>, cmd: &Cmd) -> BoxFuture<'a, Result<Value, Error>> {
        let batch = Batch::new().cmd(cmd.clone());
        // Boxed, as preparing a node's link may wait for another node.
        Box::pin(async move {
            let mut answers = self.each(&batch).await;
            answers.pop().unwrap_or_else(|| Err(uncovered()))
        })
    }

    /// Sorts commands by the node that they go to. Those whose slot nobody holds are answered.
    fn group(
        self: &Arc<Self>,
        open: Vec<Open>,
        answers: &mut [Option<Result<Value, Error>>],
    ) -> Vec<Group> {
        let map = self.map();
        let mut groups: Vec<Group> = Vec::new();
        for one in open {
            let (to, asking, patient) = match &one.via {
                Via::Map => (map.primary(one.slot).cloned(), false, false),
                Via::Moved(to) => (Some(to.clone()), false, true),
                Via::Ask(to) => (Some(to.clone()), true, true),
            };
            let Some(to) = to else {
                self.look_soon();
                answers[one.index] = Some(Err(uncovered()));
                continue;
            };
            let same = |group: &&mut Group| group.to == to && group.asking == asking;
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.patient |= patient;
                    group.open.push(one);
                }
                None => groups.push(Group {
                    to,
                    asking,
                    patient,
                    open: vec![one],
                }),
            }
        }
        groups
    }

    async fn send(
        self: &Arc<Self>,
        group: &Group,
        steps: &[Step<'_>],
        until: Instant,
    ) -> Result<Vec<Result<Value, ServerError>>, Error> {
        let Some(connection) = self.node(&group.to) else {
            return Err(uncovered());
        };
        if group.patient {
            connection
                .wait_up(until.saturating_duration_since(Instant::now()))
                .await?;
        }
        let mut batch = Batch::new();
        for one in &group.open {
            // The leave holds for one command.
            if group.asking {
                batch = batch.cmd(redis::cmd("ASKING"));
            }
            batch.steps.push(steps[one.index].clone());
        }
        let replies: Replies = connection.batch(batch).await?;
        Ok(if group.asking {
            replies.skip(1).step_by(2).collect()
        } else {
            replies.collect()
        })
    }

    /// Where a refused command goes next; `None` if the refusal is its answer.
    fn follow(self: &Arc<Self>, refusal: &ServerError, slot: u16, asked: &Endpoint) -> Option<Via> {
        match refusal.code {
            ErrorCode::Moved => {
                let (_, to) = read_redirect(&refusal.message, asked)?;
                self.moved(slot, &to);
                Some(Via::Moved(to))
            }
            ErrorCode::Ask => Some(Via::Ask(read_redirect(&refusal.message, asked)?.1)),
            ErrorCode::TryAgain => Some(Via::Map),
            ErrorCode::ClusterDown => {
                self.look_soon();
                Some(Via::Map)
            }
            ErrorCode::ReadOnly | ErrorCode::MasterDown | ErrorCode::Loading => {
                self.look_soon();
                None
            }
            _ => None,
        }
    }
}

/// Whether nothing was sent because there was no link, for a reason that may go away.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::NotConnected { reason } => !reason.as_ref().is_some_and(|r| r.is_permanent()),
        _ => false,
    }
}

fn uncovered() -> Error {
    Error::NotConnected {
        reason: Some(Arc::new(DownReason::NotCovered)),
    }
}
