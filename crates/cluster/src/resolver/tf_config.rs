//! A cluster from `TF_CONFIG`.

use super::detect::{Scheduler, detect};
use super::{Accelerators, ClusterResolver, Overrides, master_url};
use crate::environment::{Environment, ProcessEnvironment};
use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use crate::tf_config::{TF_CONFIG, TfConfig};

/// A resolver for the environment variable `TF_CONFIG`, which `distribute launch`, Kubeflow and Vertex AI set.
///
/// The variable is read once and parsed completely. If it is not set, there is no cluster. However, if Slurm, MPI or
/// SageMaker then started this process as one of several, [`membership`](ClusterResolver::membership) returns an error,
/// because each process would train alone. [`from_env`](super::from_env) also reads the variables of these schedulers.
///
/// ```
/// use distribute_cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
/// let config = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;
/// let resolver = TfConfigClusterResolver::from_environment(&[("TF_CONFIG", config)])?;
/// assert_eq!(resolver.master()?, "b:1");
/// assert_eq!(resolver.world(1)?.to_string(), "worker 1 of 2, 1 replica each");
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[doc(alias = "tf.distribute.cluster_resolver.TFConfigClusterResolver")]
#[doc(alias = "TF_CONFIG")]
#[derive(Clone, Debug, Default)]
pub struct TfConfigClusterResolver {
    /// The configuration, in which overrides have replaced values.
    config: TfConfig,
    environment: Option<String>,
    accelerators: Accelerators,
    /// The scheduler that started this process as one of several although `TF_CONFIG` is not set, if there is one.
    scheduler: Option<Scheduler>,
}

impl TfConfigClusterResolver {
    /// Reads `TF_CONFIG` from the environment of this process.
    ///
    /// # Errors
    /// Returns [`ClusterError::Malformed`] if `TF_CONFIG` is not as expected. The error contains the path in the
    /// JSON, the expected value and the actual value.
    pub fn from_env() -> Result<Self, ClusterError> {
        Self::from_environment(&ProcessEnvironment)
    }

    /// Reads `TF_CONFIG` from the given environment.
    ///
    /// # Errors
    /// Returns the errors of [`from_env`](Self::from_env).
    pub fn from_environment(environment: &dyn Environment) -> Result<Self, ClusterError> {
        let config = environment.get(TF_CONFIG).map(|text| text.parse()).transpose()?;
        let scheduler = if config.is_none() { detect(environment) } else { None };
        Ok(Self { scheduler, ..Self::new(config.unwrap_or_default()) })
    }

    /// Creates a resolver from a parsed configuration.
    pub fn new(config: TfConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Sets values that replace those of `TF_CONFIG`.
    pub fn with_overrides(mut self, overrides: Overrides) -> Self {
        let task = &mut self.config.task;
        task.job = overrides.task_type.or(task.job.take());
        task.index = overrides.task_id.or(task.index);
        self.config.rpc_layer = overrides.rpc_layer.or(self.config.rpc_layer.take());
        self.environment = overrides.environment.or(self.environment.take());
        self
    }

    /// Sets the number of accelerators of each kind that this process has. They are not part of `TF_CONFIG`.
    pub fn with_accelerators(mut self, accelerators: Accelerators) -> Self {
        self.accelerators = accelerators;
        self
    }
}

impl ClusterResolver for TfConfigClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        Ok(self.config.cluster.clone())
    }

    fn task_type(&self) -> Option<Job> {
        self.config.task.job.clone()
    }

    fn task_id(&self) -> Option<usize> {
        self.config.task.index
    }

    fn rpc_layer(&self) -> Option<String> {
        self.config.rpc_layer.clone()
    }

    fn environment(&self) -> Option<String> {
        self.environment.clone()
    }

    fn num_accelerators(&self) -> Accelerators {
        self.accelerators.clone()
    }

    /// Returns the address of a task, as [`ClusterResolver::master_of`] does, with these exceptions:
    ///
    /// - If `session_master` is set, the result is `session_master`.
    /// - If the cluster has no jobs, or only one task, with index 0, the result is empty.
    /// - If `rpc_layer` is empty, the address has no prefix.
    ///
    /// # Errors
    /// - [`ClusterError::NoTask`]: `task` is `None`, and the task of this process is not known.
    /// - [`ClusterError::NoSuchJob`], [`ClusterError::NoSuchTask`]: the cluster does not contain the task.
    fn master_of(&self, task: Option<&Task>, rpc_layer: Option<&str>) -> Result<String, ClusterError> {
        if let Some(master) = &self.config.session_master {
            return Ok(master.clone());
        }
        let cluster = &self.config.cluster;
        let jobs: Vec<&Job> = cluster.jobs().collect();
        match jobs[..] {
            [] => return Ok(String::new()),
            [job] if cluster.job_tasks(job)?.len() == 1 => return Ok(String::new()),
            _ => {}
        }
        let task = task.cloned().or_else(|| self.task()).ok_or_else(|| self.config.no_task())?;
        let layer = rpc_layer.or(self.config.rpc_layer.as_deref());
        Ok(master_url(cluster.task_address(&task.job, task.index)?, layer))
    }

    /// Returns the cluster and the task of this process, as [`ClusterResolver::membership`] does. Errors contain
    /// the path in `TF_CONFIG`.
    ///
    /// # Errors
    /// - The errors of [`ClusterResolver::membership`].
    /// - [`ClusterError::HalfAnEnvironment`]: there is no `TF_CONFIG`, but another scheduler started this process as
    ///   one of several.
    fn membership(&self) -> Result<Option<(ClusterSpec, Task)>, ClusterError> {
        if let Some(scheduler) = self.scheduler.filter(|_| self.config.cluster.is_empty()) {
            let found = format!("{scheduler}'s variables for one process of several");
            let remedy = "make the strategy with resolver::from_env(), which reads what the scheduler sets";
            return Err(ClusterError::HalfAnEnvironment { found, missing: TF_CONFIG, remedy });
        }
        self.config.validate()?;
        let cluster = self.cluster_spec()?;
        Ok(self.task().filter(|_| !cluster.is_empty()).map(|task| (cluster, task)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(text: &str) -> TfConfigClusterResolver {
        TfConfigClusterResolver::from_environment(&[(TF_CONFIG, text)]).unwrap()
    }

    // TFC-1
    #[test]
    fn tfc_1_without_the_variable_there_is_no_cluster() {
        let resolver = TfConfigClusterResolver::from_environment(&[]).unwrap();
        assert!(resolver.cluster_spec().unwrap().is_empty());
        assert_eq!((resolver.task(), resolver.master().unwrap()), (None, String::new()));
        assert!(resolver.membership().unwrap().is_none());
        let error = TfConfigClusterResolver::from_environment(&[(TF_CONFIG, "")]).unwrap_err();
        assert!(error.to_string().starts_with("TF_CONFIG: expected JSON, found no text"));
    }

    #[test]
    fn a_program_that_reads_only_tf_config_hears_what_to_use_under_slurm_and_mpi() {
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")];
        let resolver = TfConfigClusterResolver::from_environment(&step).unwrap();
        assert!(resolver.cluster_spec().unwrap().is_empty());
        assert_eq!(
            resolver.membership().unwrap_err().to_string(),
            "found Slurm's variables for one process of several without TF_CONFIG: make the strategy with resolver::from_env(), \
             which reads what the scheduler sets"
        );
        let rank = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        assert!(TfConfigClusterResolver::from_environment(&rank).unwrap().world(1).is_err());
        let alone = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert!(TfConfigClusterResolver::from_environment(&alone).unwrap().membership().unwrap().is_none());
    }

    // TFC-2, TFC-3
    #[test]
    fn tfc_2_the_program_knows_better() {
        let text = r#"{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "task": {"type": "worker", "index": 1},
            "environment": "cloud", "rpc_layer": "grpc"}"#;
        assert_eq!(resolver(text).environment(), None);
        let overrides = Overrides {
            task_type: Some(Job::Ps),
            task_id: Some(0),
            rpc_layer: Some("x".into()),
            environment: Some("lab".into()),
        };
        let resolver = resolver(text).with_overrides(overrides);
        assert_eq!(resolver.task(), Some(Job::Ps.task(0)));
        assert_eq!(resolver.master().unwrap(), "x://c:1");
        assert_eq!(resolver.environment().as_deref(), Some("lab"));
    }

    // TFC-4
    #[test]
    fn tfc_4_the_master_is_the_sessions_or_a_tasks_or_nothing() {
        let master = |text: &str| resolver(text).master();
        assert_eq!(master(r#"{"cluster": {"worker": ["a:1", "b:1"]}, "session_master": "m"}"#).unwrap(), "m");
        assert_eq!(master(r#"{"cluster": {"worker": ["a:1"]}}"#).unwrap(), "");
        let two = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;
        assert_eq!(master(two).unwrap(), "b:1");
        assert!(master(r#"{"cluster": {"worker": ["a:1", "b:1"]}}"#).is_err());
    }

    // CL-2, TFC-6
    #[test]
    fn an_error_of_a_strategy_has_its_position() {
        let error = resolver(r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}"#);
        let error = error.membership().unwrap_err().to_string();
        assert_eq!(error, r#"TF_CONFIG: task.index: this task is worker 1, but "worker" has task 0 alone"#);
    }
}
