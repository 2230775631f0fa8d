//! One cell of the matrix of faults: a fault of one worker at one point of the training, the expected errors, and the
//! time limit.

use crate::recovery::disturbed::Disturbed;
use crate::recovery::figures::Figures;
use crate::recovery::job::WORKERS;
use crate::recovery::program::Place;
use distribute_testing::watched;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, followed by a restart of the worker.
    Killed,
    /// SIGSTOP, and SIGCONT after ten seconds.
    Stopped,
    /// SIGTERM as a notice, followed by a restart of all workers.
    Noticed,
    /// SIGTERM without a watch, followed by a restart of the worker.
    Terminated,
    /// A closed link to another worker.
    LinkClosed,
    /// A link to another worker that loses all messages.
    LinkSilent,
    /// A full disk when a checkpoint is written.
    DiskFull,
}

/// The operation during which the fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    BeforeFirstStep,
    BetweenSteps,
    InAllReduce,
    AfterUpdate,
    Saving,
    /// A save in the background, while the workers train.
    SavingInBackground,
    PassEnds,
    ClosureEnds,
    /// The recovery after worker 1 was killed and replaced, while the others wait for its replacement to build the
    /// model.
    Recovering,
    /// The recovery after worker 1 was killed and replaced, while the replacement receives the state.
    TakingOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub fault: Fault,
    pub when: When,
    /// The worker with the fault. For a fault of a link, this is the end that is not the last worker.
    pub worker: usize,
}

impl Fault {
    pub const ALL: [Self; 7] = [
        Self::Killed,
        Self::Terminated,
        Self::Stopped,
        Self::LinkClosed,
        Self::LinkSilent,
        Self::Noticed,
        Self::DiskFull,
    ];

    /// Returns whether this is a fault of a link.
    pub fn is_of_link(self) -> bool {
        matches!(self, Fault::LinkClosed | Fault::LinkSilent)
    }

    /// Returns whether the system reports nothing, so that only missing heartbeats reveal the fault.
    pub fn is_silent(self) -> bool {
        matches!(self, Fault::Stopped | Fault::LinkSilent)
    }
}

impl Cell {
    /// Returns the worker that stops at the point of the fault, and that point.
    pub fn stop_at(&self) -> (usize, Place) {
        match self.when {
            When::BeforeFirstStep => (self.stopped(), Place::First),
            When::BetweenSteps => (self.stopped(), Place::Between),
            When::InAllReduce => (self.stopped(), Place::InStep),
            When::AfterUpdate => (self.stopped(), Place::AfterUpdate),
            When::PassEnds => (self.stopped(), Place::AtEnd),
            When::ClosureEnds => (self.stopped(), Place::Ending),
            // The chief writes, while the others wait.
            When::Saving => (0, Place::Saving),
            When::SavingInBackground => (0, Place::SavingInBackground),
            When::Recovering => (1, Place::Setup),
            When::TakingOver => (1, Place::TakingOver),
        }
    }

    /// Returns the worker that stops: for a fault of a link, the last worker.
    fn stopped(&self) -> usize {
        if self.fault.is_of_link() { WORKERS - 1 } else { self.worker }
    }

    /// Returns the workers that the errors of others may name. For a link, this is either end.
    pub fn culprits(&self) -> Vec<usize> {
        if self.fault.is_of_link() { vec![self.worker, WORKERS - 1] } else { vec![self.worker] }
    }

    /// Runs three processes with the fault. Their weights must be those of a training without a fault.
    ///
    /// # Panics
    ///
    /// Panics if any result differs from the expected one.
    pub fn run(self, test: &'static str) -> Figures {
        watched(move || {
            let mut disturbed = Disturbed::start(self, test);
            let figures = disturbed.disturb();
            disturbed.end();
            figures
        })
    }
}
