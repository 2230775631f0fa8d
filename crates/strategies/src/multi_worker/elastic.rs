//! The number of workers of an elastic training, from the program or the environment.

use distribute_base::{Error, Result};
use std::time::Duration;

const OPERATION: &str = "MultiWorkerMirroredStrategy";
const LEAST: &str = "DISTRIBUTE_MIN_WORKERS";
const WAIT: &str = "DISTRIBUTE_SHRINK_AFTER";

/// The shortest wait: workers that are there knock each half a second.
const SHORTEST: Duration = Duration::from_secs(1);

/// The default time to wait for more workers: long enough for a worker that is restarted on a slow machine.
const SHRINK_AFTER: Duration = Duration::from_secs(30);

/// The minimum number of workers of an elastic training.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elastic {
    pub least: usize,
    /// The time to wait for more workers.
    pub shrink_after: Duration,
}

impl Elastic {
    /// Returns the number that the program sets, or the environment; all of `workers` by default.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that is not from 1 to `workers`, and a variable that has no number.
    pub fn new(least: Option<usize>, shrink_after: Option<Duration>, workers: usize) -> Result<Self> {
        Self::of(least, shrink_after, workers, |name| std::env::var(name).ok())
    }

    fn of(
        least: Option<usize>,
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
        let least = match least {
            Some(least) => least,
            None => number(LEAST, "a number of workers")?.map_or(workers, |least| least as usize),
        };
        if !(1..=workers).contains(&least) {
            let reason = format!(
                "the cluster has {workers} workers, of which {least} cannot be the least (min_workers, {LEAST}): take 1 to \
                 {workers}, and name in the cluster as many as there may be"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let shrink_after = match shrink_after {
            Some(wait) => wait,
            None => number(WAIT, "a number of seconds")?
                .map_or(SHRINK_AFTER, |wait| Duration::from_secs(wait.into())),
        };
        if shrink_after < SHORTEST {
            let reason = format!(
                "{shrink_after:?} is too short to wait for more workers (shrink_after, {WAIT}): a second at least"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        Ok(Self { least, shrink_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_counts_more_than_the_environment_and_without_both_all_are_needed() {
        let of = |least, variables: &'static [(&str, &str)]| {
            let value =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
            Elastic::of(least, None, 4, value)
        };
        let elastic = |least, wait| Elastic { least, shrink_after: Duration::from_secs(wait) };
        assert_eq!(of(None, &[]).unwrap(), elastic(4, 30));
        assert_eq!(of(None, &[(LEAST, "2"), (WAIT, "5")]).unwrap(), elastic(2, 5));
        assert_eq!(of(Some(3), &[(LEAST, "2")]).unwrap(), elastic(3, 30));
        for (least, variables, text) in [
            (Some(0), &[][..], "of which 0 cannot be the least"),
            (Some(5), &[], "has 4 workers, of which 5"),
            (None, &[(LEAST, "two")], "DISTRIBUTE_MIN_WORKERS is \"two\""),
            (None, &[(WAIT, "-1")], "DISTRIBUTE_SHRINK_AFTER is \"-1\""),
            (None, &[(WAIT, "0")], "0ns is too short"),
        ] {
            let error = of(least, variables).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
