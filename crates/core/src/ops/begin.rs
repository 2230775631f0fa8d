//! The beginning of a step, on all workers.

use crate::strategy::{Strategy, record};
use crate::variables::Digest;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation, Presence, Standing, World};
use distribute_collective::group::{Group, Session};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::Arc;

/// The name of the sessions of steps.
const RUN: &str = "run";

/// A step that has begun on all workers. If it is dropped before its replicas have run, the other workers are
/// notified.
pub(super) struct Begun {
    session: Arc<Session>,
    handed_over: bool,
}

impl Strategy {
    /// Begins the next step, on all workers if there are several. `rows` is the number of rows of this worker's
    /// per-replica batches, if it is known. Returns the step's number, and the number of rows on the workers
    /// before this one.
    ///
    /// This is a call between steps, so a worker that makes another call fails at once; the step then has a
    /// separate session. A step that has not begun on all workers is not counted. It does not begin if
    /// variables have drifted apart between workers, or if new workers wait to join. Afterwards all workers
    /// know whether one of them received a notice to exit.
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
        // A worker that has missed a step learns it here. From then on all workers count alike.
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

    /// Returns an error if workers wait to join the training.
    fn require_nobody_waits(&self, waiting: usize) -> Result<()> {
        match waiting {
            0 => Ok(()),
            _ => Err(Error::WorkersWaiting { step: self.steps() + 1, waiting }),
        }
    }
}

impl Begun {
    /// Returns the session in which the replicas communicate with the others.
    pub(super) fn session(&self) -> Arc<Session> {
        self.session.clone()
    }

    /// Completes the step, after the replicas have run and left the session.
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
    /// The number of the previous step.
    step: u64,
    /// The number of the step's session, unless another worker has opened more sessions.
    session: u64,
    /// The number of its rows, if that is known.
    rows: Option<usize>,
    /// A digest of some of its variables, if these are compared in this step.
    variables: Option<Digest>,
    /// Whether it received a notice to exit.
    noticed: bool,
    /// The number of workers that have connected to it, and join at the next rendezvous.
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

/// Returns the status of this worker's replicas if all of them have failed without a call.
fn failed(world: World) -> Vec<Standing> {
    let failed = |replica| Standing { presence: Presence::Failed, ..Standing::running(replica) };
    world.local_replicas().map(failed).collect()
}
