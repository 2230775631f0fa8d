//! The settings that a launch script passes to its ranks: the tasks of each job, and the first port.

use super::port_blocks::first_port;
use crate::environment::{Environment, number, unexpected};
use crate::error::ClusterError;
use crate::task::Job;
use std::collections::BTreeMap;

/// The environment variable with the number of tasks of each job.
const TASKS: &str = "DISTRIBUTE_TASKS";

/// The environment variable with the port of the first task on each host.
const PORT_BASE: &str = "DISTRIBUTE_PORT_BASE";

/// The default first port outside Slurm, which is also TensorFlow's.
const DEFAULT_PORT: usize = 8888;

/// Returns the number of tasks of each job in `DISTRIBUTE_TASKS`. Without it, all `ranks` are workers.
///
/// # Errors
/// Returns [`ClusterError::Malformed`] if the variable is not a list such as `chief:1,worker:2`, or contains a job
/// twice.
pub(super) fn jobs(
    environment: &dyn Environment,
    ranks: usize,
) -> Result<BTreeMap<Job, usize>, ClusterError> {
    let Some(pairs) =
        counts(environment, TASKS, "jobs and numbers of tasks, such as \"chief:1,ps:1,worker:2\"")?
    else {
        return Ok(BTreeMap::from([(Job::Worker, ranks)]));
    };
    let mut jobs = BTreeMap::new();
    for (job, count) in pairs {
        if jobs.insert(Job::from(job.as_str()), count).is_some() {
            return Err(unexpected(TASKS, "each job once", &job));
        }
    }
    Ok(jobs)
}

/// Returns the first port on each host: the value of `DISTRIBUTE_PORT_BASE`, or a port computed from the number of the
/// Slurm job, so that two jobs on one node usually use different ports. Outside Slurm, the default is 8888.
///
/// # Errors
/// Returns [`ClusterError::Malformed`] if one of the variables is not a number, or if the port is larger than 65535.
pub(super) fn port_base(environment: &dyn Environment) -> Result<u16, ClusterError> {
    let (port, job) = (number(environment, PORT_BASE)?, number(environment, "SLURM_JOB_ID")?);
    let by_job = || job.map_or(DEFAULT_PORT, |job| usize::from(first_port(job)));
    let port = port.unwrap_or_else(by_job);
    u16::try_from(port).map_err(|_| unexpected(PORT_BASE, "a port, at most 65535", &port.to_string()))
}

/// Parses a variable that lists names and numbers, such as `a:2,b:1`; `None` if the variable is not set. If it has a
/// different form, returns [`ClusterError::Malformed`], in which `expected` describes the value.
pub(super) fn counts(
    environment: &dyn Environment,
    name: &str,
    expected: &str,
) -> Result<Option<Vec<(String, usize)>>, ClusterError> {
    let Some(text) = environment.get(name) else { return Ok(None) };
    let pair = |entry: &str| {
        let (name, count) = entry.trim().rsplit_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    let all: Option<Vec<_>> = text.split(',').map(pair).collect();
    all.map(Some).ok_or_else(|| unexpected(name, expected, &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_may_say_which_ranks_are_servers() {
        let of = |text: &str| jobs(&[(TASKS, text)], 4).map_err(|error| error.to_string());
        let all = BTreeMap::from([(Job::Chief, 1), (Job::Ps, 1), (Job::Worker, 2)]);
        assert_eq!(of("worker:2,ps:1,chief:1").unwrap(), all);
        assert_eq!(jobs(&[], 4).unwrap(), BTreeMap::from([(Job::Worker, 4)]));
        assert_eq!(
            of("worker").unwrap_err(),
            "DISTRIBUTE_TASKS: expected jobs and numbers of tasks, such as \"chief:1,ps:1,worker:2\", found \"worker\""
        );
        assert!(of("worker:1,worker:2").unwrap_err().contains("each job once"));
    }

    #[test]
    fn jobs_of_slurm_have_their_own_ports() {
        let of = |environment: [(&str, &str); 2]| port_base(&environment).map_err(|error| error.to_string());
        assert_eq!(of([("", ""), ("", "")]), Ok(8888));
        let ports: Vec<_> =
            ["70", "71", "419"].map(|job| of([("SLURM_JOB_ID", job), ("", "")]).unwrap()).into();
        assert_eq!(ports, [14_480, 14_544, 14_416]);
        assert_eq!(of([("SLURM_JOB_ID", "70"), (PORT_BASE, "2222")]), Ok(2222));
        assert!(of([("", ""), (PORT_BASE, "70000")]).unwrap_err().contains("at most 65535"));
    }
}
