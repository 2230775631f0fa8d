//! [`run`], which makes this process one of those that MPI links.

use crate::background::{self, Ending, Report};
use crate::{Error, Settings};
use distribute_cluster::World;
use distribute_collective::group::Group;
use distribute_log::warn_or_stderr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// The interval at which conditions are checked during a wait without a deadline.
const SLICE: Duration = Duration::from_secs(1);

/// Joins the other processes that `mpirun` has started, and calls `body` with all of them as a group. Leaves the group
/// when `body` returns.
///
/// If `body` succeeds, this waits until every other process has left the group as well, or is disconnected, because
/// `MPI_Finalize` waits for all processes. If `body` fails or panics, the wait is limited to
/// [`Settings::shutdown_timeout`]. If a process has not left gracefully by then, `MPI_Finalize` is not called, and
/// `mpirun` ends all processes when this one exits.
///
/// This can be called only once in a process. The group and its strategies cannot be used afterwards.
///
/// # Errors
/// Returns the error of `body`, or the conversion of one of these:
/// - [`Error::World`]: the number of replicas is invalid.
/// - [`Error::AlreadyInitialized`]: MPI was already initialized in this process.
/// - [`Error::Threads`]: the MPI library does not support calls from several threads.
/// - [`Error::Alone`]: the launcher started several processes, but this is the only process known to MPI.
/// - [`Error::Replicas`], [`Error::Version`]: the workers differ in the number of replicas, or in the version
///   of this crate.
/// - [`Error::Deadline`]: not all processes have joined in time.
/// - [`Error::Call`]: a call to MPI has failed.
/// - [`Error::Thread`]: the system cannot start a thread.
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
    shutdown_timeout: Duration,
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
            Ok(Report::Joined(Ok(group))) => Ok(Self {
                group,
                orders,
                reports,
                shutdown_timeout: settings.shutdown_timeout,
                has_ended: false,
            }),
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
        // The thread applies the deadlines, or waits for processes that still run.
        loop {
            match self.reports.recv_timeout(SLICE) {
                Ok(Report::Over) => break,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        if let Err(RecvTimeoutError::Timeout) = self.reports.recv_timeout(self.shutdown_timeout) {
            warn_or_stderr(|| tracing::warn!("MPI_Finalize has not returned: this process exits without it"));
        }
    }
}

impl Drop for Process {
    /// Leaves the group after a panic of the program.
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Ending::Failed);
        }
    }
}
