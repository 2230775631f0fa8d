//! This process, as one of those that MPI links.

use crate::background::{self, Ending, Report};
use crate::{Error, Settings};
use distribute_cluster::World;
use distribute_collective::group::Group;
use distribute_log::heard;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Between two looks where a wait has no deadline of its own.
const SLICE: Duration = Duration::from_secs(1);

/// Joins the other processes that `mpirun` has started, and calls `body` with all of them as a group. Leaves them when it returns.
///
/// Where `body` has succeeded, this waits until all processes have ended, as MPI demands of every program: they end together. Where
/// it has failed or panicked, they are waited for as long as [`Settings::farewell`] says; if that is not enough, this process ends
/// without `MPI_Finalize`, and `mpirun` ends all others.
///
/// Called once in a process. Group and strategies are useless behind it.
///
/// # Errors
/// What `body` returns; and [`Error`] where the processes don't come together, or not in time.
pub fn run<T, E: From<Error>>(settings: Settings, body: impl FnOnce(Group) -> Result<T, E>) -> Result<T, E> {
    let mut process = Process::join(settings)?;
    let result = body(process.group.clone());
    process.end(if result.is_ok() { Ending::Well } else { Ending::Failed });
    result
}

struct Process {
    group: Group,
    orders: Sender<Ending>,
    reports: Receiver<Report>,
    farewell: Duration,
    has_ended: bool,
}

impl Process {
    fn join(settings: Settings) -> Result<Self, Error> {
        World::alone(settings.replicas)?;
        let (orders, ordered) = mpsc::channel();
        let (report, reports) = mpsc::channel();
        let thread = thread::Builder::new().name("distribute-mpi".to_owned());
        thread.spawn(move || background::run(settings, &ordered, &report))?;
        match reports.recv_timeout(settings.join) {
            Ok(Report::Joined(Ok(group))) => {
                Ok(Self { group, orders, reports, farewell: settings.farewell, has_ended: false })
            }
            Ok(Report::Joined(Err(error))) => Err(error),
            _ => Err(Error::Deadline { waited: settings.join }),
        }
    }

    fn end(&mut self, ending: Ending) {
        self.has_ended = true;
        self.group.end();
        if self.orders.send(ending).is_err() {
            return;
        }
        // The thread has the deadlines, or waits for processes that live.
        loop {
            match self.reports.recv_timeout(SLICE) {
                Ok(Report::Over) => break,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        if let Err(RecvTimeoutError::Timeout) = self.reports.recv_timeout(self.farewell) {
            heard(|| tracing::warn!("MPI_Finalize has not returned: this process ends without"));
        }
    }
}

impl Drop for Process {
    /// Where the program has panicked.
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Ending::Failed);
        }
    }
}
