//! Settings of elastic training, from the program or the environment.

use distribute_base::{Error, Result};
use std::time::Duration;

const OPERATION: &str = "MultiWorkerMirroredStrategy";
const MIN_WORKERS: &str = "DISTRIBUTE_MIN_WORKERS";
const SHRINK_AFTER_SECONDS: &str = "DISTRIBUTE_SHRINK_AFTER";

/// The minimum of [`Elastic::shrink_after`]. Waiting workers retry every half second, so each has a chance to join.
const SHORTEST: Duration = Duration::from_secs(1);

/// The default time to wait for more workers. It is long enough for a worker to restart on a slow machine.
const SHRINK_AFTER: Duration = Duration::from_secs(30);

/// The settings of elastic training.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elastic {
    pub min_workers: usize,
    /// The time to wait for more workers after `min_workers` workers have joined.
    pub shrink_after: Duration,
}

impl Elastic {
    /// Returns the program's settings, or those of the environment if the program sets none. The default of
    /// `min_workers` is `workers`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the minimum is not between 1 and `workers`, the time is too short, or an
    ///   environment variable is not a number.
    pub fn new(min_workers: Option<usize>, shrink_after: Option<Duration>, workers: usize) -> Result<Self> {
        Self::of(min_workers, shrink_after, workers, |name| std::env::var(name).ok())
    }

    fn of(
        min_workers: Option<usize>,
        shrink_after: Option<Duration>,
        workers: usize,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let number = |name: &str, what: &str| {
            let number = |text: String| {
                let reason = || format!("{name} is {text:?}, which is not {what}");
                text.trim().parse::<u32>().map_err(|_| Error::invalid(OPERATION, reason()))
            };
            variable(name).map(number).transpose()
        };
        let min_workers = match min_workers {
            Some(min_workers) => min_workers,
            None => number(MIN_WORKERS, "a number of workers")?.map_or(workers, |count| count as usize),
        };
        if !(1..=workers).contains(&min_workers) {
            let reason = format!(
                "the cluster has {workers} workers, so the minimum cannot be {min_workers} (min_workers, {MIN_WORKERS}): use 1 to \
                 {workers}, and list the maximum number of workers in the cluster"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let shrink_after = match shrink_after {
            Some(wait) => wait,
            None => number(SHRINK_AFTER_SECONDS, "a number of seconds")?
                .map_or(SHRINK_AFTER, |wait| Duration::from_secs(wait.into())),
        };
        if shrink_after < SHORTEST {
            let reason = format!(
                "{shrink_after:?} is too short to wait for more workers (shrink_after, {SHRINK_AFTER_SECONDS}): use at least a second"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        Ok(Self { min_workers, shrink_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_counts_more_than_the_environment_and_without_both_all_are_needed() {
        let of = |min_workers, variables: &'static [(&str, &str)]| {
            let value =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
            Elastic::of(min_workers, None, 4, value)
        };
        let elastic = |min_workers, wait| Elastic { min_workers, shrink_after: Duration::from_secs(wait) };
        assert_eq!(of(None, &[]).unwrap(), elastic(4, 30));
        assert_eq!(of(None, &[(MIN_WORKERS, "2"), (SHRINK_AFTER_SECONDS, "5")]).unwrap(), elastic(2, 5));
        assert_eq!(of(Some(3), &[(MIN_WORKERS, "2")]).unwrap(), elastic(3, 30));
        for (min_workers, variables, text) in [
            (Some(0), &[][..], "has 4 workers, so the minimum cannot be 0 "),
            (Some(5), &[], "has 4 workers, so the minimum cannot be 5 "),
            (None, &[(MIN_WORKERS, "two")], "DISTRIBUTE_MIN_WORKERS is \"two\""),
            (None, &[(SHRINK_AFTER_SECONDS, "-1")], "DISTRIBUTE_SHRINK_AFTER is \"-1\""),
            (None, &[(SHRINK_AFTER_SECONDS, "0")], "0ns is too short"),
        ] {
            let error = of(min_workers, variables).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
