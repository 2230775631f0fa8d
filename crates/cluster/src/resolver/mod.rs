//! Cluster resolvers, which find the cluster that a process is part of.
//!
//! A [`ClusterResolver`] reads the information that a scheduler provides: environment variables or an API. It is
//! called once, when a strategy is created.
//!
//! | started by | resolver |
//! |---|---|
//! | `distribute launch`, Kubeflow, Vertex AI, a script | [`TfConfigClusterResolver`] |
//! | `srun` | [`SlurmClusterResolver`] |
//! | `mpirun`, `mpiexec` | [`MpiClusterResolver`] |
//! | SageMaker | [`SageMakerClusterResolver`] |
//! | an instance group of Compute Engine | [`GceClusterResolver`] |
//! | pods of Kubernetes without an operator | [`KubernetesClusterResolver`] |
//! | a program that knows its cluster | [`SimpleClusterResolver`] |
//! | several of these | [`UnionResolver`] |
//!
//! [`from_env`] chooses the resolver for the scheduler that started this process (modules `detect` and `environment`).
//! `layout` assigns ranks to hosts, for schedulers that give each process a rank. `by_rank` reads the settings that
//! launch scripts set for it, and `hostlist` parses Slurm's short forms. Only a client of [`http`](crate::http) does
//! I/O.

mod by_rank;
mod detect;
mod environment;
mod gce;
mod hostlist;
mod kubernetes;
mod layout;
mod mpi;
pub(crate) mod port_blocks;
mod sagemaker;
mod simple;
mod slurm;
mod tf_config;
mod union;

pub use detect::{Scheduler, detect, tasks_without_srun};
pub use environment::{from_env, from_environment};
#[doc(alias = "tf.distribute.cluster_resolver.GCEClusterResolver")]
pub use gce::GceClusterResolver;
pub use gce::GceOptions;
#[doc(alias = "tf.distribute.cluster_resolver.SlurmClusterResolver")]
#[doc(alias = "SlurmClusterResolver")]
pub use hostlist::expand_hostlist;
pub use hostlist::expand_tasks_per_node;
#[doc(alias = "tf.distribute.cluster_resolver.KubernetesClusterResolver")]
pub use kubernetes::KubernetesClusterResolver;
pub use kubernetes::{KubernetesAccess, KubernetesOptions};
pub use mpi::{MpiClusterResolver, MpiOptions};
#[doc(alias = "tf.distribute.cluster_resolver.SageMakerClusterResolver")]
pub use sagemaker::SageMakerClusterResolver;
#[doc(alias = "tf.distribute.cluster_resolver.SimpleClusterResolver")]
pub use simple::SimpleClusterResolver;
#[doc(alias = "tf.distribute.cluster_resolver.SlurmClusterResolver")]
pub use slurm::SlurmClusterResolver;
pub use slurm::{SlurmOptions, TasksPerNode};
#[doc(alias = "tf.distribute.cluster_resolver.TFConfigClusterResolver")]
#[doc(alias = "TF_CONFIG")]
pub use tf_config::TfConfigClusterResolver;
#[doc(alias = "tf.distribute.cluster_resolver.UnionResolver")]
pub use union::UnionResolver;

use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use crate::words::missing;
use crate::world::World;
use std::collections::BTreeMap;
use std::fmt;

/// The number of accelerators by kind, such as `GPU`.
pub type Accelerators = BTreeMap<String, usize>;

/// A resolver, which finds the cluster of this process, and the process's task in it.
#[doc(alias = "tf.distribute.cluster_resolver.ClusterResolver")]
pub trait ClusterResolver: Send + Sync {
    /// Returns the tasks of the cluster. The result is empty if there is no cluster.
    ///
    /// # Errors
    /// Returns [`ClusterError`] if the cluster cannot be found.
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError>;

    /// Returns the job of this process; `None` if it is not known.
    fn task_type(&self) -> Option<Job>;

    /// Returns the index of this process in its job; `None` if it is not known.
    fn task_id(&self) -> Option<usize>;

    /// Returns the protocol prefix of addresses in [`master`](Self::master); `None` means no prefix.
    fn rpc_layer(&self) -> Option<String> {
        None
    }

    /// Returns the name of the environment in which the cluster runs, if the program has set one. Nothing in this
    /// project depends on it.
    fn environment(&self) -> Option<String> {
        None
    }

    /// Returns the number of accelerators of each kind that this process has, as far as the resolver knows.
    fn num_accelerators(&self) -> Accelerators {
        Accelerators::new()
    }

    /// Returns the address of a task with a protocol prefix, such as `grpc://10.0.0.7:2222`. If `task` is `None`, the
    /// task is that of this process; if that is not known, the result is empty. If `rpc_layer` is `None` or empty, the
    /// resolver's prefix applies.
    ///
    /// # Errors
    /// - The errors of [`cluster_spec`](Self::cluster_spec).
    /// - [`ClusterError::NoSuchJob`], [`ClusterError::NoSuchTask`]: the cluster does not contain the task.
    fn master_of(&self, task: Option<&Task>, rpc_layer: Option<&str>) -> Result<String, ClusterError> {
        let Some(task) = task.cloned().or_else(|| self.task()) else { return Ok(String::new()) };
        let layer =
            rpc_layer.filter(|layer| !layer.is_empty()).map(String::from).or_else(|| self.rpc_layer());
        Ok(master_url(self.cluster_spec()?.task_address(&task.job, task.index)?, layer.as_deref()))
    }

    /// Returns the address of this process's task with the resolver's protocol prefix, as
    /// [`master_of`](Self::master_of) does.
    ///
    /// # Errors
    /// Returns the errors of [`master_of`](Self::master_of).
    fn master(&self) -> Result<String, ClusterError> {
        self.master_of(None, None)
    }

    /// Returns the task of this process; `None` if its job or index is not known.
    fn task(&self) -> Option<Task> {
        Some(self.task_type()?.task(self.task_id()?))
    }

    /// Returns the cluster and the task of this process, after checking that a strategy can use them. Returns
    /// `None` if there is no cluster.
    ///
    /// # Errors
    /// - The errors of [`cluster_spec`](Self::cluster_spec) and [`ClusterSpec::validate`].
    /// - [`ClusterError::NoTask`]: the task of this process is not known.
    fn membership(&self) -> Result<Option<(ClusterSpec, Task)>, ClusterError> {
        let spec = self.cluster_spec()?;
        if spec.is_empty() {
            return Ok(None);
        }
        let task = self.task().ok_or(ClusterError::NoTask {
            tasks: spec.total_tasks(),
            missing: missing(self.task_type().as_ref(), self.task_id()),
            remedy: "give the resolver this process's task_type and task_id",
        })?;
        spec.validate(&task)?;
        Ok(Some((spec, task)))
    }

    /// Returns the world of a strategy that trains in lock step, with `replicas` replicas on each worker. This is
    /// [`ClusterSpec::world`], or a world of one process if there is no cluster.
    ///
    /// # Errors
    /// Returns the errors of [`membership`](Self::membership) and [`ClusterSpec::world`].
    fn world(&self, replicas: usize) -> Result<World, ClusterError> {
        match self.membership()? {
            Some((spec, task)) => spec.world(&task, replicas),
            None => Ok(World::alone(replicas)?),
        }
    }
}

/// Values that replace those of a resolver. `None` replaces nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The job of this process's task.
    pub task_type: Option<Job>,
    /// The index of this process in its job.
    pub task_id: Option<usize>,
    /// The protocol prefix of addresses.
    pub rpc_layer: Option<String>,
    /// The name of the environment in which the cluster runs.
    pub environment: Option<String>,
}

/// Formats an address with a protocol prefix, if there is one.
fn master_url(address: impl fmt::Display, rpc_layer: Option<&str>) -> String {
    match rpc_layer {
        None | Some("") => address.to_string(),
        Some(layer) => format!("{layer}://{address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MW-5
    #[test]
    fn mw_5_a_cluster_without_a_task_is_refused_and_none_is_one_process() {
        let spec: ClusterSpec = r#"{"worker": ["a:1", "b:1"]}"#.parse().unwrap();
        let error = SimpleClusterResolver::new(spec.clone()).world(2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is a cluster of 2 tasks, but the task of this process is not given; give the resolver this process's \
             task_type and task_id"
        );
        let resolver = SimpleClusterResolver::new(spec).with_task(Job::Worker.task(1));
        assert_eq!(resolver.world(2).unwrap(), World::new(2, 1, 2).unwrap());
        let alone: &dyn ClusterResolver = &SimpleClusterResolver::new(ClusterSpec::new());
        assert_eq!(alone.world(3).unwrap(), World::alone(3).unwrap());
    }
}
