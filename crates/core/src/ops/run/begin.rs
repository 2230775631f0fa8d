//! The beginning of a step. The workers agree on its number, and exchange what each needs from the others. Within local
//! steps, a worker begins most steps alone.

// - **INV-112** Within local steps, a worker that makes no call and whose replicas do not fail sends nothing in a step,
//   and waits for no other. Workers that have made different numbers of steps, or differ in other facts that a step
//   compares, get one error before an outer step changes a weight. Tests: `decisions/src/local_steps.rs`,
//   `multi_worker/local_steps/alone.rs`, `multi_worker/local_steps/failures.rs`.

use crate::strategy::{Strategy, wire};
use crate::variables::Digest;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::{Fingerprint, Operation, Presence, ReplicaStatus};
use distribute_collective::group::{Group, Session};
use distribute_decisions::internal::{Alone, Meeting, StepTimes, alone_differently};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::Arc;

/// The name of the sessions that are opened for steps.
const RUN: &str = "run";

/// A step that has begun. If it is dropped before it is completed, this worker reports to the others that its replicas
/// failed.
pub(super) struct StartedStep {
    pub(super) session: Arc<Session>,
    completed: bool,
}

impl Strategy {
    /// Begins the next step, on all workers if there are several. `rows` is the number of rows in this worker's
    /// per-replica batches, if known. Returns the step number, the started step if there are several workers, and the
    /// number of rows on the workers of lower rank, if known.
    ///
    /// Within local steps, this worker may [begin the step alone](Self::begin_alone). Otherwise this is a call between
    /// steps, so it fails immediately if a worker makes a different call. The step itself has its own session.
    ///
    /// A step that has not begun on all workers is not counted. The step does not begin if variables differ between
    /// workers, or if new workers are waiting to join. If the workers' step counters differ, all are set to the largest
    /// one, and the step does not begin. Afterwards all workers know whether one of them has received a notice to exit.
    pub(super) fn begin(
        &self,
        rows: Option<usize>,
        at: &'static Location<'static>,
    ) -> Result<(u64, Option<StartedStep>, Option<usize>)> {
        if !self.has_group() {
            return Ok((self.next_step(), None, Some(0)));
        }
        self.require_caught_up("run")?;
        self.require_training_for_spares("run")?;
        self.begin_updates();
        let waiting = self.possible_group().map_or(0, Group::waiting);
        let Some(group) = self.group() else {
            self.require_none_waiting(waiting)?;
            return Ok((self.next_step(), None, Some(0)));
        };
        let (meeting, rows_before) = self.next_meeting();
        if meeting == Meeting::Alone {
            let (step, started) = self.begin_alone(group);
            return Ok((step, Some(started), rows_before));
        }
        let variables = self.abort_peers_on_err(self.drift_digest())?;
        let (session, has_notice) = (group.next_number(RUN), self.notice().is_received());
        let times = self.take_step_times(group);
        let (step, alone) = (self.steps(), self.alone());
        let mine = StartHeader { step, session, rows, variables, has_notice, waiting, times, alone };
        let call = || Fingerprint::new(Operation::Run, "", at);
        let headers =
            self.worker_call("run", call, |mut calling| calling.all_gather_bytes(wire::encode(&mine)))?;
        let all: Vec<StartHeader> = wire::decode_all("run", &headers.unwrap_or_default())
            .map_err(|error| self.with_process(error))?;
        // A worker that has missed a step learns it here. From then on all workers count alike.
        let latest = all.iter().map(|start| start.step).max().unwrap_or(mine.step);
        if all.iter().any(|start| start.step != latest) {
            self.store_steps(latest);
            return Err(Error::failed(ErrorKind::Disagreement, "run", differ(&all, latest)));
        }
        let alone: Vec<_> = all.iter().map(|start| start.alone).collect();
        alone_differently("run", &alone).map_or(Ok(()), Err)?;
        let variables: Vec<_> = all.iter().map(|start| start.variables).collect();
        self.require_no_drift(&variables, at)?;
        self.require_none_waiting(all.iter().map(|start| start.waiting).sum())?;
        self.notice().record_decision(all.iter().map(|start| start.has_notice), self.min_remaining_workers());
        let (step, number) = (self.next_step(), all.iter().map(|start| start.session).max());
        let session = group.open_at(RUN, number.unwrap_or(mine.session), step);
        let session = if meeting == Meeting::Beginning { session.quietly() } else { session };
        self.record_step_begin(group, &all.iter().map(|start| start.times).collect::<Vec<_>>());
        let mut before = all.iter().take(self.world().worker()).map(|start| start.rows);
        let before = before.try_fold(0usize, |sum, rows| sum.checked_add(rows?));
        self.record_meeting(before);
        Ok((step, Some(StartedStep::new(session)), before))
    }

    /// Begins the next step on this worker, without a message. Returns the step number and the started step, whose
    /// session is that of the same step on the other workers, because all count their steps since they last began one
    /// together.
    fn begin_alone(&self, group: &Group) -> (u64, StartedStep) {
        let step = self.next_step();
        self.record_step_begin_alone(group);
        (step, StartedStep::new(group.open(RUN, step).quietly()))
    }

    /// Returns an error if workers are waiting to join the training run.
    fn require_none_waiting(&self, waiting: usize) -> Result<()> {
        match waiting {
            0 => Ok(()),
            _ => Err(Error::WorkersWaiting { step: self.steps() + 1, waiting }),
        }
    }
}

impl StartedStep {
    fn new(session: Session) -> Self {
        Self { session: Arc::new(session), completed: false }
    }

    /// Marks the step as completed, after the replicas have run and left the session.
    pub(super) fn complete(mut self, strategy: &Strategy) {
        self.completed = true;
        strategy.group().into_iter().for_each(|group| strategy.record_step_end(group));
    }
}

impl Drop for StartedStep {
    fn drop(&mut self) {
        if !self.completed {
            let failed =
                |replica| ReplicaStatus { presence: Presence::Failed, ..ReplicaStatus::running(replica) };
            self.session.leave(self.session.world().local_replicas().map(failed).collect());
        }
    }
}

/// The header that each worker sends when all begin a step together.
#[derive(Serialize, Deserialize)]
struct StartHeader {
    /// The number of steps that the worker has run.
    step: u64,
    /// The sequence number of the worker's next session. The step uses the largest number of all workers.
    session: u64,
    /// The number of rows in the worker's per-replica batches, if known.
    rows: Option<usize>,
    /// A digest of some of the worker's variables, if variables are compared in this step.
    variables: Option<Digest>,
    /// Whether the worker received a notice to exit.
    has_notice: bool,
    /// The number of processes that have connected to the worker and will join at the next rendezvous.
    waiting: usize,
    /// The times of the worker in the steps since it last sent them.
    times: StepTimes,
    /// The progress of the worker's local steps; `None` in lock step.
    alone: Option<Alone>,
}

fn differ(all: &[StartHeader], latest: u64) -> String {
    let each: Vec<_> = all.iter().map(|start| start.step.to_string()).collect();
    let local = match all.iter().any(|start| start.alone.is_some_and(|alone| alone.since > 0)) {
        true => " A worker on which a local step has failed runs one step more than the others.",
        false => "",
    };
    format!(
        "the workers have run {} steps; all must make the same calls of run, or restore the same number of steps.{local} \
         All workers continue after step {latest}",
        each.join(", ")
    )
}
