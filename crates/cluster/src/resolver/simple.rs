//! A resolver for a cluster that the program provides.

use super::{Accelerators, ClusterResolver, Overrides, master_url};
use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};

/// A resolver that returns a cluster provided by the program.
///
/// ```
/// use distribute_cluster::{ClusterSpec, Job, resolver::{ClusterResolver, SimpleClusterResolver}};
/// let spec = ClusterSpec::from_lists([("worker", ["10.0.0.1:2222", "10.0.0.2:2222"])])?;
/// let resolver = SimpleClusterResolver::new(spec).with_task(Job::Worker.task(1));
/// assert_eq!(resolver.world(2)?.to_string(), "worker 1 of 2, 2 replicas each");
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[doc(alias = "tf.distribute.cluster_resolver.SimpleClusterResolver")]
#[derive(Clone, Debug, Default)]
pub struct SimpleClusterResolver {
    spec: ClusterSpec,
    master: String,
    own: Overrides,
    accelerators: Accelerators,
}

impl SimpleClusterResolver {
    /// Creates a resolver that returns `spec`. The task of this process is not known yet.
    pub fn new(spec: ClusterSpec) -> Self {
        Self { spec, ..Self::default() }
    }

    /// Sets the task of this process.
    pub fn with_task(mut self, task: Task) -> Self {
        (self.own.task_type, self.own.task_id) = (Some(task.job), Some(task.index));
        self
    }

    /// Sets properties of this process. The job or the index of its task may be missing.
    pub fn with_overrides(mut self, own: Overrides) -> Self {
        self.own = own;
        self
    }

    /// Sets the address that [`master`](ClusterResolver::master) returns, after the protocol prefix if there is one.
    /// The default is an empty string.
    pub fn with_master(mut self, master: impl Into<String>) -> Self {
        self.master = master.into();
        self
    }

    /// Sets the number of accelerators of each kind that this process has.
    pub fn with_accelerators(mut self, accelerators: Accelerators) -> Self {
        self.accelerators = accelerators;
        self
    }
}

impl ClusterResolver for SimpleClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        Ok(self.spec.clone())
    }

    fn task_type(&self) -> Option<Job> {
        self.own.task_type.clone()
    }

    fn task_id(&self) -> Option<usize> {
        self.own.task_id
    }

    fn rpc_layer(&self) -> Option<String> {
        self.own.rpc_layer.clone()
    }

    fn environment(&self) -> Option<String> {
        Some(self.own.environment.clone().unwrap_or_default())
    }

    fn num_accelerators(&self) -> Accelerators {
        self.accelerators.clone()
    }

    fn master_of(&self, task: Option<&Task>, rpc_layer: Option<&str>) -> Result<String, ClusterError> {
        let layer = rpc_layer.filter(|layer| !layer.is_empty()).or(self.own.rpc_layer.as_deref());
        Ok(match task {
            Some(task) => master_url(self.spec.task_address(&task.job, task.index)?, layer),
            None => master_url(&self.master, layer),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RES-1
    #[test]
    fn res_1_the_master_is_a_tasks_address_or_the_given_one() {
        let spec: ClusterSpec = r#"{"worker": ["a:1", "b:1"]}"#.parse().unwrap();
        let own = Overrides { rpc_layer: Some("grpc".into()), ..Overrides::default() };
        let resolver = SimpleClusterResolver::new(spec).with_overrides(own).with_master("m:9");
        assert_eq!(resolver.master().unwrap(), "grpc://m:9");
        let task = Job::Worker.task(1);
        assert_eq!(resolver.master_of(Some(&task), None).unwrap(), "grpc://b:1");
        assert_eq!(resolver.master_of(Some(&task), Some("x")).unwrap(), "x://b:1");
        assert!(resolver.master_of(Some(&Job::Ps.task(0)), None).is_err());
        assert_eq!(resolver.environment().as_deref(), Some(""));
        assert!(resolver.num_accelerators().is_empty());
    }
}
