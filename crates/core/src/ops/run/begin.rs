//! The beginning of a step: the workers agree on its number, and learn what the others bring to it.

use crate::strategy::{Strategy, wire};
use crate::variables::Digest;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::{Fingerprint, Operation, Presence, ReplicaStatus};
use distribute_collective::group::{Group, Session};
use distribute_decisions::internal::{Alone, Remedy, StepTimes, alone_differently};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::Arc;

/// The name of the sessions that are opened for steps.
const RUN: &str = "run";

/// A step that has begun on all workers. If it is dropped before it is completed, this worker reports to the
/// others that its replicas failed.
pub(super) struct StartedStep {
    pub(super) session: Arc<Session>,
    completed: bool,
}

impl Strategy {
    /// Begins the next step, on all workers if there are several. `rows` is the number of rows in this worker's
    /// per-replica batches, if known. Returns the step number, the started step if there are several workers, and the
    /// number of rows on the workers of lower rank, if known.
    ///
    /// This is a call between steps, so it fails immediately if a worker makes a different call. The step itself has a
    /// separate session. A step that has not begun on all workers is not counted. The step does not begin if variables
    /// differ between workers, if new workers are waiting to join, or if the group re-forms because of a slow worker.
    /// If the workers' step counters differ, all are set to the largest one, and the step does not begin. Afterwards
    /// all workers know whether one of them has received a notice to exit.
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
        let variables = self.abort_peers_on_err(self.drift_digest())?;
        let (session, has_notice) = (group.next_number(RUN), self.notice().is_received());
        let times = self.take_step_times(group);
        let (step, alone, remedy) = (self.steps(), self.alone(), self.propose_remedy(group));
        let mine = StartHeader { step, session, rows, variables, has_notice, waiting, times, alone, remedy };
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
        if !all.iter().any(|start| start.has_notice) {
            self.require_no_remedy(group, all.iter().map(|start| start.remedy))?;
        }
        self.notice().record_decision(all.iter().map(|start| start.has_notice), self.min_remaining_workers());
        let (step, number) = (self.next_step(), all.iter().map(|start| start.session).max());
        let session = group.open_at(RUN, number.unwrap_or(mine.session), step);
        self.record_step_begin(group, &all.iter().map(|start| start.times).collect::<Vec<_>>());
        let mut before = all.iter().take(self.world().worker()).map(|start| start.rows);
        let before = before.try_fold(0usize, |sum, rows| sum.checked_add(rows?));
        Ok((step, Some(StartedStep { session: Arc::new(session), completed: false }), before))
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

/// The header that each worker sends when a step begins.
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
    /// The times of the worker since its previous step began.
    times: StepTimes,
    /// The progress of the worker's local steps; `None` in lock step.
    alone: Option<Alone>,
    /// The remedy for a straggler that the worker proposes.
    remedy: Option<Remedy>,
}

fn differ(all: &[StartHeader], latest: u64) -> String {
    let each: Vec<_> = all.iter().map(|start| start.step.to_string()).collect();
    format!(
        "the workers have run {} steps; all must make the same calls of run, or restore the same number of steps. \
         All workers continue after step {latest}",
        each.join(", ")
    )
}
