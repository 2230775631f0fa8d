//! The choice of the task that a server represents, as pure functions.

use crate::error::ServerError;
use distribute_cluster::{Address, ClusterSpec, Job, Task};

/// Returns the task with this job and index. The job can be omitted if the cluster has only one, and the index if the
/// job has only one task.
///
/// # Errors
/// - [`ServerError::AmbiguousJob`], [`ServerError::AmbiguousTask`]: the job or the index is omitted, but there is not
///   exactly one.
/// - [`ServerError::Cluster`]: the task is not in the cluster.
pub(crate) fn own_task(
    cluster: &ClusterSpec,
    job: Option<Job>,
    index: Option<usize>,
) -> Result<Task, ServerError> {
    // SRV-1
    let jobs: Vec<_> = cluster.jobs().collect();
    let job = match (job, &jobs[..]) {
        (Some(job), _) => job,
        (None, [one]) => (*one).clone(),
        (None, _) => return Err(ServerError::AmbiguousJob { all: cluster.jobs().cloned().collect() }),
    };
    let index = match (index, &cluster.task_indices(&job)?[..]) {
        (Some(index), _) => index,
        (None, [one]) => *one,
        (None, all) => return Err(ServerError::AmbiguousTask { tasks: all.len(), job }),
    };
    cluster.task_address(&job, index)?;
    Ok(job.task(index))
}

/// Returns a copy of the cluster in which the address of `task` has the port `port` if it had port 0.
pub(crate) fn with_port(cluster: &ClusterSpec, task: &Task, port: u16) -> Result<ClusterSpec, ServerError> {
    let mut chosen = ClusterSpec::new();
    cluster.jobs().for_each(|job| chosen.add_job(job.clone()));
    for (other, address) in cluster.tasks() {
        let own = other == *task && address.port() == 0;
        let address = if own { Address::new(address.host().clone(), port) } else { address.clone() };
        chosen.insert(other, address)?;
    }
    Ok(chosen)
}

/// Returns whether `caller` may end servers. The chief always may, even if it is not part of the cluster. In a cluster
/// without a chief, worker 0 may as well, or the first task if there is no worker.
pub(crate) fn may_stop_servers(cluster: &ClusterSpec, caller: &Task) -> bool {
    let leads = [Job::Chief, Job::Worker].into_iter().find(|job| cluster.has_job(job));
    let leads = leads.map(|job| job.task(0)).or_else(|| cluster.tasks().next().map(|(task, _)| task));
    *caller == Job::Chief.task(0) || leads.as_ref() == Some(caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(text: &str) -> ClusterSpec {
        text.parse().unwrap()
    }

    // SRV-1
    #[test]
    fn srv_1_job_and_index_may_be_left_out_where_there_is_one() {
        let one = cluster(r#"{"ps": {"3": "a:1"}}"#);
        let two = cluster(r#"{"ps": ["a:1"], "worker": ["b:1", "c:1"]}"#);
        let own = |cluster: &ClusterSpec, job: Option<&str>, index| {
            own_task(cluster, job.map(Job::from), index).map_err(|error| error.to_string())
        };
        assert_eq!(own(&one, None, None), Ok(Job::Ps.task(3)));
        assert_eq!(own(&two, Some("ps"), None), Ok(Job::Ps.task(0)));
        assert_eq!(own(&two, Some("worker"), Some(1)), Ok(Job::Worker.task(1)));
        for (job, index, says) in [
            (None, None, "the cluster has the jobs ps, worker: set the job of this server by job_name"),
            (None, Some(0), "set the job of this server by job_name"),
            (
                Some("worker"),
                None,
                "the job \"worker\" has 2 tasks: set the task of this server by task_index",
            ),
            (Some("worker"), Some(2), "the cluster has no worker 2"),
            (Some("chief"), None, "the cluster has no job \"chief\""),
        ] {
            let error = own(&two, job, index).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(own(&ClusterSpec::new(), None, None).unwrap_err().contains("the cluster has no job: set"));
    }

    #[test]
    fn an_open_port_is_filled_in_and_others_are_not() {
        let of = |text, port| with_port(&cluster(text), &Job::Ps.task(0), port).unwrap().to_string();
        assert_eq!(of(r#"{"ps":["a:0","b:0"],"worker":[]}"#, 7), r#"{"ps":["a:7","b:0"],"worker":{}}"#);
        assert_eq!(of(r#"{"ps":["a:5"]}"#, 7), r#"{"ps":["a:5"]}"#);
    }

    #[test]
    fn servers_are_ended_by_who_leads() {
        let may = |text, caller| may_stop_servers(&cluster(text), &caller);
        let chief = r#"{"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}"#;
        assert!(may(chief, Job::Chief.task(0)) && !may(chief, Job::Worker.task(0)));
        let workers = r#"{"worker": ["b:1", "d:1"], "ps": ["c:1"]}"#;
        assert!(may(workers, Job::Worker.task(0)) && !may(workers, Job::Worker.task(1)));
        // PSV2-1: the coordinator may be absent from the cluster.
        assert!(may(workers, Job::Chief.task(0)) && !may(workers, Job::Chief.task(1)));
        // Without either, no claim of a caller is trusted.
        let local = r#"{"local": ["a:1", "b:1"]}"#;
        assert!(may(local, Task::new("local", 0)) && may(local, Job::Chief.task(0)));
        assert!(!may(local, Task::new("local", 1)) && !may(local, Task::new("me", 3)));
    }
}
