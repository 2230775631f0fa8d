//! The beginning of a step, on all workers.

use crate::strategy::{Strategy, record};
use crate::variables::Digest;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation, Presence, Standing, World};
use distribute_collective::group::{Group, Session};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::Arc;

/// The sessions of steps.
const RUN: &str = "run";

/// A step that has begun on all workers. Dropped before its replicas have run, it tells the others so.
pub(super) struct Begun {
    session: Arc<Session>,
    handed_over: bool,
}

impl Strategy {
    /// Begins the next step, on all workers if there are several. `rows` is the number of rows of this worker's pieces of a
    /// batch, if known. Returns its number, and how many rows the workers before this one have.
    ///
    /// That is a call between steps, so that a worker which makes another one is told at once; the step has a session of its
    /// own from then on. A step that has not begun on all is not counted. Nor does one begin whose workers have variables that
    /// drifted apart, or to which others have come that wait to take part. Behind it all know whether one of them has been told to end.
    pub(super) fn begin(
        &self,
        rows: Option<usize>,
        at: &'static Location<'static>,
    ) -> Result<(u64, Option<Begun>, Option<usize>)> {
        if !self.has_group() {
            return Ok((self.next_step(), None, Some(0)));
        }
        self.require_settled("run")?;
        self.begin_updates();
        let waiting = self.possible_group().map_or(0, Group::waiting);
        let Some(group) = self.group() else {
            self.require_nobody_waits(waiting)?;
            return Ok((self.next_step(), None, Some(0)));
        };
        let variables = self.or_tell_workers(self.drift_digest())?;
        let (session, noticed) = (group.next_number(RUN), self.notice().is_given());
        let mine = Start { step: self.steps(), session, rows, variables, noticed, waiting };
        let call = || Fingerprint::new(Operation::Run, "", at);
        let said =
            self.among_workers("run", call, |mut calling| calling.all_gather_bytes(record::encode(&mine)))?;
        let all: Vec<Start> =
            record::decode_all("run", &said.unwrap_or_default()).map_err(|error| self.located(error))?;
        // A worker that has missed a step is told once. From then on all count alike.
        let latest = all.iter().map(|start| start.step).max().unwrap_or(mine.step);
        if all.iter().any(|start| start.step != latest) {
            self.store_steps(latest);
            return Err(Error::invalid("run", differ(&all, latest)));
        }
        let variables: Vec<_> = all.iter().map(|start| start.variables).collect();
        self.require_no_drift(&variables, at)?;
        self.require_nobody_waits(all.iter().map(|start| start.waiting).sum())?;
        self.notice().hear(all.iter().map(|start| start.noticed), self.least_that_go_on());
        let (step, number) = (self.next_step(), all.iter().map(|start| start.session).max());
        let session = group.open_at(RUN, number.unwrap_or(mine.session), step);
        let mut before = all.iter().take(self.world().worker()).map(|start| start.rows);
        let before = before.try_fold(0usize, |sum, rows| sum.checked_add(rows?));
        Ok((step, Some(Begun { session: Arc::new(session), handed_over: false }), before))
    }

    /// Refuses to begin a step while workers wait to take part.
    fn require_nobody_waits(&self, waiting: usize) -> Result<()> {
        match waiting {
            0 => Ok(()),
            _ => Err(Error::WorkersWaiting { step: self.steps() + 1, waiting }),
        }
    }
}

impl Begun {
    /// The session in which the replicas talk to the others.
    pub(super) fn session(&self) -> Arc<Session> {
        self.session.clone()
    }

    /// The replicas have run, and left the session by themselves.
    pub(super) fn hand_over(mut self) {
        self.handed_over = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.handed_over {
            self.session.leave(failed(self.session.world()));
        }
    }
}

/// The header that a worker sends when a step begins.
#[derive(Serialize, Deserialize)]
struct Start {
    /// The number of the step before.
    step: u64,
    /// The number that the step's session has, unless another worker has opened more of them.
    session: u64,
    /// The number of its rows, if that is known.
    rows: Option<usize>,
    /// A part of its variables, where they are compared.
    variables: Option<Digest>,
    /// Whether it has been told to end.
    noticed: bool,
    /// The number of workers that have come to it, and take part when all meet again.
    waiting: usize,
}

fn differ(all: &[Start], latest: u64) -> String {
    let each: Vec<_> = all.iter().map(|start| start.step.to_string()).collect();
    format!(
        "the workers have made {} steps; all have to make the same calls of run, or restore the same number of steps. \
         All go on after step {latest}",
        each.join(", ")
    )
}

/// The standings of this worker's replicas when all of them have failed without a call.
fn failed(world: World) -> Vec<Standing> {
    let failed = |replica| Standing { presence: Presence::Failed, ..Standing::running(replica) };
    world.local_replicas().map(failed).collect()
}
