//! Settings of elastic training, from the program or the environment.

use distribute_base::{Error, Result};
use std::time::Duration;

const OPERATION: &str = "MultiWorkerMirroredStrategy";
const MIN_WORKERS: &str = "DISTRIBUTE_MIN_WORKERS";
const SPARES: &str = "DISTRIBUTE_SPARES";
const SHRINK_AFTER_SECONDS: &str = "DISTRIBUTE_SHRINK_AFTER";

/// The minimum of [`Elastic::shrink_after`]. Waiting workers retry every half second, so each has a chance to join.
const SHORTEST: Duration = Duration::from_secs(1);

/// The default time to wait for more workers. It is long enough for a worker to restart on a slow machine.
const SHRINK_AFTER: Duration = Duration::from_secs(30);

/// The settings of elastic training, and of spares.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elastic {
    pub min_workers: usize,
    /// The maximum number of workers with which to train: those of the cluster without the spares.
    pub max_workers: usize,
    /// The time to wait for more workers after `min_workers` workers have joined.
    pub shrink_after: Duration,
}

impl Elastic {
    /// Returns the program's settings, or those of the environment if the program sets none, for a cluster of `all`
    /// workers and spares. The default of `spares` is 0, and that of `min_workers` is the number of workers.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the minimum is not between 1 and the number of workers, there are fewer than two
    ///   workers and there are spares, the time is too short, or an environment variable is not a number.
    pub fn new(
        min_workers: Option<usize>,
        spares: Option<usize>,
        shrink_after: Option<Duration>,
        all: usize,
    ) -> Result<Self> {
        Self::of((min_workers, spares, shrink_after), all, |name| std::env::var(name).ok())
    }

    fn of(
        (min_workers, spares, shrink_after): (Option<usize>, Option<usize>, Option<Duration>),
        all: usize,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let number = |name: &str, what: &str| {
            let number = |text: String| {
                let reason = || format!("{name} is {text:?}, which is not {what}");
                text.trim().parse::<u32>().map_err(|_| Error::invalid(OPERATION, reason()))
            };
            variable(name).map(number).transpose()
        };
        let spares = match spares {
            Some(spares) => spares,
            None => number(SPARES, "a number of spares")?.map_or(0, |count| count as usize),
        };
        let workers = all.saturating_sub(spares);
        if spares > 0 && workers < 2 {
            let reason = format!(
                "the cluster has {all} workers, of which {spares} cannot be spares (spares, {SPARES}): list all workers and \
                 spares in the cluster, and use two workers or more, because no spare can replace the first one, to whose \
                 address all connect"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let min_workers = match min_workers {
            Some(min_workers) => min_workers,
            None => number(MIN_WORKERS, "a number of workers")?.map_or(workers, |count| count as usize),
        };
        if !(1..=workers).contains(&min_workers) {
            let without = if spares > 0 { format!(" and {spares} spares") } else { String::new() };
            let reason = format!(
                "the cluster has {workers} workers{without}, so the minimum cannot be {min_workers} (min_workers, \
                 {MIN_WORKERS}): use 1 to {workers}, and list the maximum number of workers in the cluster"
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
        Ok(Self { min_workers, max_workers: workers, shrink_after })
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
            Elastic::of((min_workers, None, None), 4, value)
        };
        let elastic = |min_workers, wait| Elastic {
            min_workers,
            max_workers: 4,
            shrink_after: Duration::from_secs(wait),
        };
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

    // INV-100
    #[test]
    fn spares_are_tasks_of_the_cluster_beyond_its_workers() {
        let of = |min_workers, spares, all, variables: &'static [(&str, &str)]| {
            let value =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
            Elastic::of((min_workers, spares, None), all, value)
        };
        let sizes = |elastic: Result<Elastic>| {
            let elastic = elastic.unwrap();
            (elastic.min_workers, elastic.max_workers)
        };
        assert_eq!(sizes(of(None, None, 4, &[(SPARES, "1")])), (3, 3));
        assert_eq!(sizes(of(Some(2), Some(2), 6, &[(SPARES, "1")])), (2, 4));
        for (min_workers, spares, variables, text) in [
            (None, Some(3), &[][..], "has 4 workers, of which 3 cannot be spares"),
            (None, Some(9), &[], "of which 9 cannot be spares"),
            (Some(4), Some(1), &[], "has 3 workers and 1 spares, so the minimum cannot be 4"),
            (None, None, &[(SPARES, "one")], "DISTRIBUTE_SPARES is \"one\""),
        ] {
            let error = of(min_workers, spares, 4, variables).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
