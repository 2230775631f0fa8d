//! Session settings for each kind of strategy, computed by pure functions, for programs that pass them to TensorFlow.

use distribute_base::Result;
use distribute_cluster::{ClusterError, ClusterSpec, Job, Task};
use distribute_core::{Strategy, VariablePlacement};

/// The settings of a session that depend on the strategy.
///
/// This crate has no sessions. The settings are for programs that pass them on, and equal those of TensorFlow.
///
/// ```
/// use distribute::legacy::SessionConfig;
/// use distribute::cluster::{ClusterSpec, Job};
/// let cluster: ClusterSpec = r#"{"worker": ["a:1", "b:1"], "ps": ["c:1"]}"#.parse()?;
/// let config = SessionConfig::default().of_parameter_servers(Some((&cluster, &Job::Worker.task(1))));
/// assert_eq!(config.device_filters, ["/job:worker/task:1", "/job:ps"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "tf.compat.v1.ConfigProto")]
#[doc(alias = "ConfigProto")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionConfig {
    /// Whether the sessions of a server have separate variables.
    pub isolate_session_state: bool,
    /// The devices that a session may use. If the list is empty, it may use all devices.
    pub device_filters: Vec<String>,
    /// The task that leads the collectives of several workers; empty if there is none.
    pub collective_group_leader: String,
    /// The operations whose memory is allocated together.
    pub scoped_allocator_ops: Vec<String>,
}

impl SessionConfig {
    // STR-4
    /// Returns these settings, changed for a mirrored strategy: sessions do not share variables.
    pub fn of_mirrored(&self) -> Self {
        Self { isolate_session_state: true, ..self.clone() }
    }

    // PSV1-7
    /// Returns these settings, changed for an independent task with parameter servers. `cluster` contains the cluster
    /// and the task; `None` means that there is no cluster.
    ///
    /// A chief or worker has access to its own devices and those of the servers; an evaluator only to its own. For any
    /// other job, the device filters do not change. Sessions share variables, except without a cluster.
    pub fn of_parameter_servers(&self, cluster: Option<(&ClusterSpec, &Task)>) -> Self {
        let Some((_, task)) = cluster else { return self.of_mirrored() };
        let mut device_filters = vec![filter(task)];
        match task.job {
            Job::Chief | Job::Worker => device_filters.push(format!("/job:{}", Job::Ps)),
            Job::Evaluator => {}
            _ => device_filters.clone_from(&self.device_filters),
        }
        Self { isolate_session_state: false, device_filters, ..self.clone() }
    }

    // MW-12
    /// Returns these settings, changed for one of several synchronous workers. `cluster` contains the cluster and the
    /// task; `None` means that there is no cluster.
    ///
    /// The memory of reductions is allocated together. In a cluster, the group's leader is set (to an empty string for
    /// an evaluator), and the task has access only to its own devices.
    ///
    /// # Errors
    /// - [`ClusterError`]: the task is not in the cluster, or the cluster has unexpected tasks.
    pub fn of_collectives(&self, cluster: Option<(&ClusterSpec, &Task)>) -> Result<Self, ClusterError> {
        let config = Self { scoped_allocator_ops: vec!["CollectiveReduce".into()], ..self.clone() };
        let Some((spec, task)) = cluster else { return Ok(config) };
        let leader = spec.collective_leader(task)?;
        let leader = leader.map(|leader| format!("/job:{}/replica:0/task:{}", leader.job, leader.index));
        let collective_group_leader = leader.unwrap_or_default();
        Ok(Self { collective_group_leader, device_filters: vec![filter(task)], ..config })
    }
}

/// Returns the device filter that matches the devices of a task.
fn filter(task: &Task) -> String {
    format!("/job:{}/task:{}", task.job, task.index)
}

/// Returns a copy of `config` with the settings that a strategy needs.
pub(super) fn updated(strategy: &Strategy, config: &SessionConfig) -> Result<SessionConfig> {
    let extended = strategy.extended();
    // Other strategies do not need the task: a coordinator may be outside its cluster.
    let (independent, in_lock_step) = (extended.independent().is_some(), extended.group().is_some());
    let membership = match extended.cluster_resolver() {
        Some(resolver) if independent || in_lock_step => resolver.membership()?,
        _ => None,
    };
    let cluster = membership.as_ref().map(|(spec, task)| (spec, task));
    Ok(if independent {
        config.of_parameter_servers(cluster)
    } else if in_lock_step {
        config.of_collectives(cluster)?
    } else if extended.variable_placement() == VariablePlacement::Mirrored {
        config.of_mirrored()
    } else {
        config.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"{"chief": ["z:1"], "worker": ["a:1", "b:1"], "ps": ["c:1"], "evaluator": ["e:1"]}"#;

    /// Returns settings that differ from the defaults in every field.
    fn before() -> SessionConfig {
        SessionConfig {
            isolate_session_state: true,
            device_filters: vec!["/job:old".into()],
            collective_group_leader: "somebody".into(),
            scoped_allocator_ops: vec!["Old".into()],
        }
    }

    #[test]
    fn psv1_7_a_task_sees_itself_and_the_servers_and_an_evaluator_itself() {
        let spec: ClusterSpec = ALL.parse().unwrap();
        for (task, filters) in [
            (Job::Chief.task(0), &["/job:chief/task:0", "/job:ps"][..]),
            (Job::Worker.task(1), &["/job:worker/task:1", "/job:ps"]),
            (Job::Evaluator.task(0), &["/job:evaluator/task:0"]),
        ] {
            let after = before().of_parameter_servers(Some((&spec, &task)));
            assert!(!after.isolate_session_state, "{task}");
            assert_eq!(after.device_filters, filters);
            // Settings that the strategy does not define do not change.
            assert_eq!(after.collective_group_leader, "somebody");
        }
        let alone = SessionConfig::default().of_parameter_servers(None);
        assert_eq!(alone, SessionConfig { isolate_session_state: true, ..Default::default() });
    }

    #[test]
    fn mw_12_workers_in_lock_step_see_themselves_and_know_who_leads() {
        let spec: ClusterSpec = ALL.parse().unwrap();
        let after = before().of_collectives(Some((&spec, &Job::Worker.task(1)))).unwrap();
        assert_eq!(after.device_filters, ["/job:worker/task:1"]);
        assert_eq!(after.collective_group_leader, "/job:chief/replica:0/task:0");
        assert_eq!(after.scoped_allocator_ops, ["CollectiveReduce"]);
        let evaluator = before().of_collectives(Some((&spec, &Job::Evaluator.task(0)))).unwrap();
        assert_eq!((evaluator.collective_group_leader.as_str(), evaluator.device_filters.len()), ("", 1));
        let alone = before().of_collectives(None).unwrap();
        assert_eq!(
            alone,
            SessionConfig { scoped_allocator_ops: vec!["CollectiveReduce".into()], ..before() }
        );
        assert!(before().of_collectives(Some((&spec, &Job::Worker.task(7)))).is_err());
    }

    #[test]
    fn str_4_a_mirrored_strategy_isolates_sessions_and_changes_a_copy() {
        let given = SessionConfig::default();
        assert!(given.of_mirrored().isolate_session_state && !given.isolate_session_state);
    }
}
