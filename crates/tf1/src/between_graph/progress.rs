//! How far the workers are, noted on a parameter server: whether the chief has prepared the training, and which workers are through with it.

use super::KIND;
use distribute_base::{Error, Result};
use distribute_cluster::Deadline;
use distribute_core::IndependentWorker;
use distribute_params::{Request, Response, TableSpec};
use distribute_ps_client::internal::{Ask, Links, unexpected};
use distribute_tensor::{HostTensor, Write};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

const READY: &str = "between_graph::ParameterServerStrategy::ready";
const FINISH: &str = "between_graph::ParameterServerStrategy::finish";

/// On server 0: for each worker whether it is through, and behind them whether the chief is ready. All make it alike, so whoever comes
/// first does.
const TABLE: &str = "between_graph/progress";

/// How long one who waits lets go by before it asks again: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// Notes how far workers are.
pub(super) struct Progress {
    links: Arc<Links>,
    of: IndependentWorker,
}

impl Progress {
    /// This worker begins, or begins again.
    pub(super) fn begin(links: &Arc<Links>, of: IndependentWorker) -> Result<Self> {
        let progress = Self { links: links.clone(), of };
        let none = HostTensor::vector(vec![0i64; of.workers.saturating_add(1)]);
        progress.ask(KIND, Request::Create(TableSpec::values(TABLE, none)))?;
        progress.note(KIND, of.worker, false)?;
        if of.worker == 0 {
            progress.note(KIND, of.workers, false)?;
        }
        Ok(progress)
    }

    /// The chief has prepared the training; the others wait for that.
    ///
    /// # Errors
    /// Of the server; [`Error::InvalidArgument`] where the chief is not ready after `patience`.
    pub(super) fn ready(&self, patience: Duration) -> Result<()> {
        if self.of.worker == 0 {
            return self.note(READY, self.of.workers, true);
        }
        let missing = || Ok(self.noted(READY)?.last().is_none_or(|ready| *ready == 0).then_some(()));
        let late = |()| {
            format!(
                "the chief has not called ready within {patience:?}: it makes variables, and restores what was saved, before the others train; \
                 see its own errors, or give it more time"
            )
        };
        wait(READY, patience, missing, late)
    }

    /// This worker is through.
    pub(super) fn finish(&self) -> Result<()> {
        self.note(FINISH, self.of.worker, true)
    }

    /// Waits until all workers are through.
    ///
    /// # Errors
    /// Of the server; [`Error::InvalidArgument`] that names those that are not after `patience`.
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

    /// What has been noted of all.
    fn noted(&self, operation: &'static str) -> Result<Vec<i64>> {
        let rows = (0..=self.of.workers as i64).collect();
        match self.ask(operation, Request::ReadRows { table: TABLE.into(), rows })? {
            Response::Rows(rows) => rows.into_vec::<i64>().map_err(Error::tensor(operation)),
            other => Err(unexpected(operation, 0, &other)),
        }
    }

    fn ask(&self, operation: &'static str, request: Request) -> Result<Response> {
        let bytes = 8 * (self.of.workers + 1);
        let answers = self.links.ask(operation, vec![Ask { server: 0, request, bytes }])?;
        answers.into_iter().next().ok_or_else(|| Error::invalid(operation, "there is no parameter server"))
    }
}

/// Waits until `missing` gives nothing more; after `patience`, an error of what it gave last.
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
            return Err(Error::invalid(operation, late(missing)));
        }
        std::thread::park_timeout(pause.min(deadline.remaining()));
        pause = longest.min(pause * 2);
    }
    Ok(())
}

/// Who is not through.
fn late(missing: &[usize], workers: usize, patience: Duration) -> String {
    let mut names = String::new();
    for (position, worker) in missing.iter().enumerate() {
        let _ = write!(names, "{}{worker}", if position == 0 { "" } else { ", " });
    }
    let (who, are) = if missing.len() == 1 { ("worker", "has") } else { ("workers", "have") };
    format!(
        "{who} {names} of {workers}, where the chief is 0, {are} not called finish within {patience:?}; see their own errors, start those again \
         that are gone, or give more time to those that still train. The servers have not been ended"
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
