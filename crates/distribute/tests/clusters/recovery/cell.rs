//! One cell of the matrix: a fault of one worker at one place, what has to be said of it, and how long it may take.

use crate::recovery::disturbed::Disturbed;
use crate::recovery::figures::Figures;
use crate::recovery::job::WORKERS;
use crate::recovery::program::Place;
use distribute_testing::watched;

/// What happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, after which it is started again.
    Killed,
    /// SIGSTOP for ten seconds.
    Stopped,
    /// SIGTERM where it is a notice, after which all are started again.
    Noticed,
    /// SIGTERM where it is none, after which the worker is started again.
    Terminated,
    /// Its link to another one is closed.
    LinkClosed,
    /// What it and another one send each other gets lost.
    LinkSilent,
    /// It has no room for a checkpoint.
    DiskFull,
}

/// In the middle of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    BeforeFirstStep,
    BetweenSteps,
    InAllReduce,
    AfterUpdate,
    Saving,
    PassEnds,
    ClosureEnds,
    /// Worker 1 was killed, and another has joined in its place, for whose model the others wait.
    Recovering,
    /// The same, and it takes over the state.
    TakingOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub fault: Fault,
    pub when: When,
    /// Whose fault it is. Of a link between two, the one that is not the last worker.
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

    /// Whether it is that of a link.
    pub fn is_of_link(self) -> bool {
        matches!(self, Fault::LinkClosed | Fault::LinkSilent)
    }

    /// Whether the system tells nobody, so that it takes a heartbeat to notice it.
    pub fn is_silent(self) -> bool {
        matches!(self, Fault::Stopped | Fault::LinkSilent)
    }
}

impl Cell {
    /// The worker that stops at a place, so that the fault is there.
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
            When::Recovering => (1, Place::Setup),
            When::TakingOver => (1, Place::TakingOver),
        }
    }

    /// The link that breaks is that of the last worker.
    fn stopped(&self) -> usize {
        if self.fault.is_of_link() { WORKERS - 1 } else { self.worker }
    }

    /// Who may be named, by all others: of a link, whichever end one of them has noticed to be gone.
    pub fn culprits(&self) -> Vec<usize> {
        if self.fault.is_of_link() { vec![self.worker, WORKERS - 1] } else { vec![self.worker] }
    }

    /// Has the fault happen to three processes. Their weights have to be those without it.
    ///
    /// # Panics
    /// If anything is not as it has to be.
    pub fn run(self, test: &'static str) -> Figures {
        watched(move || {
            let mut disturbed = Disturbed::start(self, test);
            let figures = disturbed.disturb();
            disturbed.end();
            figures
        })
    }
}
