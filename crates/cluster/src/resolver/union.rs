//! A resolver that combines several others.

use super::{Accelerators, ClusterResolver, Overrides, master_url};
use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use std::sync::Arc;

/// A resolver that combines the clusters of several resolvers.
///
/// The tasks of a job are renumbered in the order of the resolvers. If the job's indices have gaps in one of the
/// clusters, its tasks keep their indices instead, which must then be distinct. All other values come from the
/// overrides or, where these are `None`, from the first resolver.
#[doc(alias = "tf.distribute.cluster_resolver.UnionResolver")]
#[derive(Clone)]
pub struct UnionResolver {
    first: Arc<dyn ClusterResolver>,
    others: Vec<Arc<dyn ClusterResolver>>,
    overrides: Overrides,
}

impl std::fmt::Debug for UnionResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnionResolver").field("resolvers", &(1 + self.others.len())).finish_non_exhaustive()
    }
}

impl UnionResolver {
    /// Creates the union of the given resolvers.
    ///
    /// # Errors
    /// - [`ClusterError::NoResolver`]: `resolvers` is empty.
    pub fn new(resolvers: Vec<Arc<dyn ClusterResolver>>) -> Result<Self, ClusterError> {
        let mut resolvers = resolvers.into_iter();
        let first = resolvers.next().ok_or(ClusterError::NoResolver)?;
        Ok(Self { first, others: resolvers.collect(), overrides: Overrides::default() })
    }

    /// Sets values that replace those of the first resolver.
    pub fn with_overrides(mut self, overrides: Overrides) -> Self {
        self.overrides = overrides;
        self
    }
}

impl ClusterResolver for UnionResolver {
    /// Returns the combined tasks of all resolvers.
    ///
    /// # Errors
    /// - The errors of the resolvers.
    /// - [`ClusterError::Duplicate`]: a job keeps its indices because they have gaps, and two resolvers list the same
    ///   index.
    /// - [`ClusterError::TooLarge`]: a job has too many tasks.
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let all = std::iter::once(&self.first).chain(&self.others);
        union(&all.map(|resolver| resolver.cluster_spec()).collect::<Result<Vec<_>, _>>()?)
    }

    fn task_type(&self) -> Option<Job> {
        self.overrides.task_type.clone().or_else(|| self.first.task_type())
    }

    fn task_id(&self) -> Option<usize> {
        self.overrides.task_id.or_else(|| self.first.task_id())
    }

    fn rpc_layer(&self) -> Option<String> {
        self.overrides.rpc_layer.clone().or_else(|| self.first.rpc_layer())
    }

    fn environment(&self) -> Option<String> {
        self.overrides.environment.clone().or_else(|| self.first.environment())
    }

    fn num_accelerators(&self) -> Accelerators {
        self.first.num_accelerators()
    }

    /// Returns the address of a task, as [`ClusterResolver::master_of`] does, except that the first resolver's prefix
    /// is not used. If `task` is `None`, returns the first resolver's result for `None`.
    fn master_of(&self, task: Option<&Task>, rpc_layer: Option<&str>) -> Result<String, ClusterError> {
        let Some(task) = task else { return self.first.master_of(None, rpc_layer) };
        let layer = rpc_layer.filter(|layer| !layer.is_empty()).or(self.overrides.rpc_layer.as_deref());
        Ok(master_url(self.cluster_spec()?.task_address(&task.job, task.index)?, layer))
    }
}

/// Combines the tasks of several clusters. The tasks of a job are renumbered in the order of the clusters, unless the
/// job's indices have gaps in one of them.
///
/// # Errors
/// - [`ClusterError::Duplicate`]: two clusters have a task with the same index, and the indices are not renumbered.
/// - [`ClusterError::TooLarge`]: a job has too many tasks.
fn union(specs: &[ClusterSpec]) -> Result<ClusterSpec, ClusterError> {
    let mut union = ClusterSpec::new();
    for spec in specs {
        for job in spec.jobs() {
            union.add_job(job.clone());
        }
    }
    let jobs: Vec<Job> = union.jobs().cloned().collect();
    for job in &jobs {
        let parts = || specs.iter().filter_map(|spec| spec.of(job).ok());
        let lists = parts().all(|tasks| tasks.keys().next_back().is_none_or(|last| last + 1 == tasks.len()));
        if lists {
            for (index, address) in parts().flat_map(|tasks| tasks.values()).enumerate() {
                union.insert(job.clone().task(index), address.clone())?;
            }
        } else {
            for (index, address) in parts().flatten() {
                union.insert(job.clone().task(*index), address.clone())?;
            }
        }
    }
    Ok(union)
}

#[cfg(test)]
mod tests {
    use super::super::SimpleClusterResolver;
    use super::*;

    fn member(text: &str) -> Arc<dyn ClusterResolver> {
        Arc::new(SimpleClusterResolver::new(text.parse().unwrap()).with_task(Job::Worker.task(2)))
    }

    // RES-2
    #[test]
    fn res_2_lists_follow_each_other_and_numbers_stay() {
        let union =
            |parts: &[&str]| UnionResolver::new(parts.iter().map(|part| member(part)).collect()).unwrap();
        let spec =
            union(&[r#"{"worker": ["a:1"], "ps": ["p:1"]}"#, r#"{"worker": ["b:1", "c:1"]}"#]).cluster_spec();
        assert_eq!(spec.unwrap().to_string(), r#"{"ps":["p:1"],"worker":["a:1","b:1","c:1"]}"#);
        let spec = union(&[r#"{"worker": ["a:1"]}"#, r#"{"worker": {"3": "d:1"}}"#]).cluster_spec();
        assert_eq!(spec.unwrap().to_string(), r#"{"worker":{"0":"a:1","3":"d:1"}}"#);
        let error =
            union(&[r#"{"worker": ["a:1"]}"#, r#"{"worker": {"0": "b:1", "2": "d:1"}}"#]).cluster_spec();
        assert_eq!(error.unwrap_err().to_string(), "worker 0 is listed twice, at a:1 and b:1");
        assert!(matches!(UnionResolver::new(vec![]), Err(ClusterError::NoResolver)));
    }

    // RES-2: TensorFlow's resolver ignores an override of 0.
    #[test]
    fn res_2_an_override_of_0_counts() {
        let union = UnionResolver::new(vec![member(r#"{"worker": ["a:1", "b:1", "c:1"]}"#)]).unwrap();
        assert_eq!(union.task(), Some(Job::Worker.task(2)));
        let union = union.with_overrides(Overrides { task_id: Some(0), ..Overrides::default() });
        assert_eq!(union.task(), Some(Job::Worker.task(0)));
    }
}
