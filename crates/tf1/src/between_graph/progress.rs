//! The progress of the workers, which is stored on a parameter server: whether the chief is ready, and which workers
//! have finished.

use super::KIND;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::Deadline;
use distribute_core::IndependentWorker;
use distribute_ps_client::internal::{Channels, ServerRequest, unexpected};
use distribute_ps_tables::{Request, Response, TableSpec};
use distribute_tensor::{HostTensor, Write};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

const READY: &str = "between_graph::AsyncWorkerStrategy::ready";
const FINISH: &str = "between_graph::AsyncWorkerStrategy::finish";

/// The name of a table on server 0. It contains one flag per worker, which is set when the worker has finished, and a
/// final flag, which is set when the chief is ready.
///
/// Every worker requests the table's creation in the same way. Only the first request creates it.
const TABLE: &str = "between_graph/progress";

/// The initial and the maximum interval between two requests of a waiting worker.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// The progress of all workers. Each worker sets its own flag.
pub(super) struct Progress {
    channels: Arc<Channels>,
    of: IndependentWorker,
}

impl Progress {
    /// Creates the table if necessary, and clears the flag of this worker. On the chief, also clears the flag that the
    /// chief is ready. Call this when the worker starts or restarts.
    ///
    /// # Errors
    /// Returns the error of the server.
    pub(super) fn begin(channels: &Arc<Channels>, of: IndependentWorker) -> Result<Self> {
        let progress = Self { channels: channels.clone(), of };
        let none = HostTensor::vector(vec![0i64; of.workers.saturating_add(1)]);
        progress.ask(KIND, Request::Create(TableSpec::values(TABLE, none)))?;
        progress.note(KIND, of.worker, false)?;
        if of.worker == 0 {
            progress.note(KIND, of.workers, false)?;
        }
        Ok(progress)
    }

    /// Signals, on the chief, that the chief is ready. On the other workers, waits up to `patience` for that signal.
    ///
    /// # Errors
    /// - [`Error::Failed`]: the chief is not ready within `patience`.
    /// - The error of the server.
    pub(super) fn ready(&self, patience: Duration) -> Result<()> {
        if self.of.worker == 0 {
            return self.note(READY, self.of.workers, true);
        }
        let missing = || Ok(self.noted(READY)?.last().is_none_or(|ready| *ready == 0).then_some(()));
        let late = |()| {
            format!(
                "the chief has not called ready within {patience:?}: it creates and restores variables before the \
                 others train; check its errors, or wait longer"
            )
        };
        wait(READY, patience, missing, late)
    }

    /// Sets the flag that indicates that this worker has finished.
    pub(super) fn finish(&self) -> Result<()> {
        self.note(FINISH, self.of.worker, true)
    }

    /// Waits up to `patience` until all workers have finished.
    ///
    /// # Errors
    /// - [`Error::Failed`]: workers have not finished within `patience`. The error names them.
    /// - The error of the server.
    pub(super) fn wait_for_all(&self, patience: Duration) -> Result<()> {
        let missing = || {
            let noted = self.noted(FINISH)?.into_iter().take(self.of.workers).enumerate();
            let missing: Vec<_> =
                noted.filter(|(_, through)| *through == 0).map(|(worker, _)| worker).collect();
            Ok((!missing.is_empty()).then_some(missing))
        };
        wait(FINISH, patience, missing, |missing| late(&missing, self.of.workers, patience))
    }

    fn note(&self, operation: &'static str, row: usize, is: bool) -> Result<()> {
        let (rows, values) = (vec![row as i64], HostTensor::vector(vec![i64::from(is)]));
        self.ask(operation, Request::WriteRows { table: TABLE.into(), how: Write::Assign, rows, values })
            .map(drop)
    }

    /// Reads all flags: one for each worker, and the chief's final flag.
    fn noted(&self, operation: &'static str) -> Result<Vec<i64>> {
        let rows = (0..=self.of.workers as i64).collect();
        match self.ask(operation, Request::ReadRows { table: TABLE.into(), rows })? {
            Response::Rows(rows) => rows.into_vec::<i64>().map_err(Error::tensor(operation)),
            other => Err(unexpected(operation, 0, &other)),
        }
    }

    fn ask(&self, operation: &'static str, request: Request) -> Result<Response> {
        let bytes = 8 * (self.of.workers + 1);
        let answers = self.channels.ask(operation, vec![ServerRequest { server: 0, request, bytes }])?;
        answers.into_iter().next().ok_or_else(|| Error::invalid(operation, "there is no parameter server"))
    }
}

/// Polls `missing` until it returns `None`. After `patience`, returns a timeout error with the message that `late`
/// creates from the last result of `missing`. An error of `missing` is returned immediately.
fn wait<T>(
    operation: &'static str,
    patience: Duration,
    missing: impl Fn() -> Result<Option<T>>,
    late: impl Fn(T) -> String,
) -> Result<()> {
    let deadline = Deadline::after(patience);
    let [mut pause, longest] = PAUSES;
    while let Some(missing) = missing()? {
        if deadline.has_passed() {
            return Err(Error::failed(ErrorKind::TimedOut, operation, late(missing)));
        }
        std::thread::park_timeout(pause.min(deadline.remaining()));
        pause = longest.min(pause * 2);
    }
    Ok(())
}

/// Returns an error message that lists the workers that have not finished.
fn late(missing: &[usize], workers: usize, patience: Duration) -> String {
    let mut names = String::new();
    for (position, worker) in missing.iter().enumerate() {
        let _ = write!(names, "{}{worker}", if position == 0 { "" } else { ", " });
    }
    let (who, are) = if missing.len() == 1 { ("worker", "has") } else { ("workers", "have") };
    format!(
        "{who} {names} of {workers}, where the chief is 0, {are} not called finish within {patience:?}; check their \
         errors, restart those that have exited, or wait longer for those that still train. The servers were not stopped"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_is_named() {
        let one = late(&[2], 3, Duration::from_secs(5));
        assert!(
            one.starts_with("worker 2 of 3, where the chief is 0, has not called finish within 5s"),
            "{one}"
        );
        assert!(late(&[0, 2], 3, Duration::from_secs(5)).starts_with("workers 0, 2 of 3"));
    }
}
