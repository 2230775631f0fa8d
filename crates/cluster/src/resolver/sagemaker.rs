//! A cluster from the environment of a SageMaker training job.

use super::{ClusterResolver, Overrides};
use crate::address::{Address, Host};
use crate::environment::{Environment, ProcessEnvironment, required, unexpected};
use crate::error::ClusterError;
use crate::json::{self, Json};
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};

/// The default port on which workers listen, as in TensorFlow. SageMaker itself does not use this port.
const PORT: u16 = 2223;

/// A resolver for a SageMaker training job. All hosts of the job are workers, in the order of their names.
///
/// ```
/// use distribute_cluster::resolver::{ClusterResolver, SageMakerClusterResolver};
/// let environment = [("SM_HOSTS", r#"["algo-2", "algo-1"]"#), ("SM_CURRENT_HOST", "algo-2")];
/// let resolver = SageMakerClusterResolver::from_environment(&environment)?;
/// assert_eq!(resolver.cluster_spec()?.to_string(), r#"{"worker":["algo-1:2223","algo-2:2223"]}"#);
/// assert_eq!(resolver.world(1)?.worker(), 1);
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[doc(alias = "tf.distribute.cluster_resolver.SageMakerClusterResolver")]
#[derive(Clone, Debug)]
pub struct SageMakerClusterResolver {
    hosts: Vec<Host>,
    own: usize,
    port: u16,
    overrides: Overrides,
}

impl SageMakerClusterResolver {
    /// Finds the cluster from the environment of this process.
    ///
    /// # Errors
    /// - [`ClusterError::NotSet`]: `SM_HOSTS` or `SM_CURRENT_HOST` is missing.
    /// - [`ClusterError::Malformed`]: a variable is not as expected, or this host is not in the list of hosts.
    /// - [`ClusterError::Host`]: an entry of the list is not a valid host.
    pub fn from_env() -> Result<Self, ClusterError> {
        Self::from_environment(&ProcessEnvironment)
    }

    /// Finds the cluster from the given environment.
    ///
    /// # Errors
    /// Returns the errors of [`from_env`](Self::from_env).
    pub fn from_environment(environment: &dyn Environment) -> Result<Self, ClusterError> {
        const NO_JOB: &str = "this process is not part of a SageMaker training job, which sets it";
        const HOSTS: &str = "SM_HOSTS";
        let text = required(environment, HOSTS, NO_JOB)?;
        let current = required(environment, "SM_CURRENT_HOST", NO_JOB)?;
        let value = json::parse(HOSTS, &text)?;
        let mut names = Vec::new();
        for at in Json::new(HOSTS, &value).items("a list of hosts")? {
            names.push(at.text("the name of a host")?);
        }
        names.sort_unstable();
        names.dedup();
        let own = names.iter().position(|name| *name == current);
        // TensorFlow would train alone in this case.
        let own =
            own.ok_or_else(|| unexpected("SM_CURRENT_HOST", format!("one of SM_HOSTS, {text}"), &current))?;
        let host = |name: &&str| {
            name.parse().map_err(|why: &str| ClusterError::Host { found: (*name).into(), why: why.into() })
        };
        let hosts = names.iter().map(host).collect::<Result<_, _>>()?;
        Ok(Self { hosts, own, port: PORT, overrides: Overrides::default() })
    }

    /// Sets the port on which all workers listen. The default is 2223.
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets values that replace those of the resolver.
    pub fn with_overrides(mut self, overrides: Overrides) -> Self {
        self.overrides = overrides;
        self
    }
}

impl ClusterResolver for SageMakerClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let mut spec = ClusterSpec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            spec.insert(Task::new(Job::Worker, index), Address::new(host.clone(), self.port))?;
        }
        Ok(spec)
    }

    fn task_type(&self) -> Option<Job> {
        self.overrides.task_type.clone().or(Some(Job::Worker))
    }

    fn task_id(&self) -> Option<usize> {
        self.overrides.task_id.or(Some(self.own))
    }

    fn rpc_layer(&self) -> Option<String> {
        self.overrides.rpc_layer.clone()
    }

    fn environment(&self) -> Option<String> {
        self.overrides.environment.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RES-7
    #[test]
    fn res_7_hosts_are_workers_in_the_order_of_names() {
        let environment = [("SM_HOSTS", r#"["algo-2", "algo-1", "algo-3"]"#), ("SM_CURRENT_HOST", "algo-3")];
        let resolver = SageMakerClusterResolver::from_environment(&environment).unwrap().with_port(99);
        assert_eq!(
            resolver.cluster_spec().unwrap().to_string(),
            r#"{"worker":["algo-1:99","algo-2:99","algo-3:99"]}"#
        );
        assert_eq!(resolver.task(), Some(Job::Worker.task(2)));
    }

    // RES-7
    #[test]
    fn res_7_a_host_that_is_not_among_them_does_not_train_alone() {
        let error = |hosts: &str, current: &str| {
            let environment = [("SM_HOSTS", hosts), ("SM_CURRENT_HOST", current)];
            SageMakerClusterResolver::from_environment(&environment).unwrap_err().to_string()
        };
        assert_eq!(error(r#"["a"]"#, "b"), r#"SM_CURRENT_HOST: expected one of SM_HOSTS, ["a"], found "b""#);
        assert_eq!(error(r#"["a", 3]"#, "a"), "SM_HOSTS: [1]: expected the name of a host, found 3");
        assert_eq!(error("{}", "a"), "SM_HOSTS: expected a list of hosts, found {}");
        assert!(error("a,b", "a").starts_with("SM_HOSTS: expected JSON"));
        let error =
            SageMakerClusterResolver::from_environment(&[("SM_HOSTS", "[]")]).unwrap_err().to_string();
        assert!(error.starts_with("SM_CURRENT_HOST is not set: this process is not part of a SageMaker"));
    }
}
