//! The repetition of requests that failed temporarily.

use crate::error::{Error, Result};
use distribute_cluster::Deadline;
use std::time::Duration;

/// The maximum number of consecutive attempts without progress.
pub(crate) const ATTEMPTS: u32 = 5;
/// The pause before the second attempt. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// A counter of failed attempts that decides whether to try again, and after which pause.
#[derive(Debug)]
pub(crate) struct Attempts {
    all: u32,
    failed: u32,
    /// The maximum time to wait if the server demands a pause.
    patience: Duration,
}

impl Attempts {
    pub(crate) fn new(all: u32, patience: Duration) -> Self {
        Self { all, failed: 0, patience }
    }

    /// Resets the number of failed attempts, because part of the file has arrived.
    pub(crate) fn progressed(&mut self) {
        self.failed = 0;
    }

    /// Logs a warning and waits before the next attempt, after an attempt has failed with `error`. Returns `error` if
    /// it is not temporary, no attempt is left, or the server demands a pause longer than the timeout.
    pub(crate) fn after(&mut self, error: Error) -> Result<()> {
        self.failed += 1;
        let Some(pause) = self.pause(&error) else { return Err(error) };
        distribute_log::warn_or_stderr(|| tracing::warn!("{}; trying again in {pause:?}", error.brief()));
        let deadline = Deadline::after(pause);
        while !deadline.has_passed() {
            std::thread::park_timeout(deadline.remaining());
        }
        Ok(())
    }

    fn pause(&self, error: &Error) -> Option<Duration> {
        if !error.is_temporary() || self.failed >= self.all {
            return None;
        }
        match error {
            Error::Status { retry_after: Some(pause), .. } => (*pause <= self.patience).then_some(*pause),
            _ => Some((PAUSE * 2u32.saturating_pow(self.failed - 1)).min(self.patience)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Error {
        Error::Network { url: "u".into(), reason: "r".into() }
    }

    fn status(status: u16, retry_after: Option<u64>) -> Error {
        let retry_after = retry_after.map(Duration::from_secs);
        Error::Status { url: "u".into(), status, message: String::new(), retry_after, advice: String::new() }
    }

    #[test]
    fn pauses_double_and_end() {
        let mut attempts = Attempts::new(3, Duration::from_secs(60));
        let mut pauses = Vec::new();
        for _ in 0..4 {
            attempts.failed += 1;
            pauses.push(attempts.pause(&lost()).map(|pause| pause.as_millis()));
        }
        assert_eq!(pauses, [Some(500), Some(1000), None, None]);
        attempts.progressed();
        attempts.failed += 1;
        assert_eq!(attempts.pause(&lost()), Some(PAUSE));
        // The server's own pause counts, if it is not too long.
        assert_eq!(attempts.pause(&status(429, Some(7))), Some(Duration::from_secs(7)));
        assert_eq!(attempts.pause(&status(429, Some(61))), None);
        assert_eq!(attempts.pause(&status(404, None)), None);
    }
}
