//! The choice of a resolver by the scheduler that started this process.

use super::ClusterResolver;
use super::detect::{Scheduler, detect};
use super::mpi::{self, MpiClusterResolver, MpiOptions};
use super::sagemaker::SageMakerClusterResolver;
use super::slurm::{SlurmClusterResolver, SlurmOptions};
use super::tf_config::TfConfigClusterResolver;
use crate::environment::{Environment, ProcessEnvironment, number};
use crate::error::ClusterError;
use crate::tf_config::TF_CONFIG;

/// Creates the resolver for the scheduler that started this process, with default options. The order of preference is
/// `TF_CONFIG`, MPI, Slurm and SageMaker, each with several tasks, and then `TF_CONFIG` with one task. Without any of
/// these, the cluster is empty.
///
/// ```
/// use distribute_cluster::resolver::from_environment;
/// let step = [
///     ("SLURM_PROCID", "1"),
///     ("SLURM_STEP_NUM_TASKS", "2"),
///     ("SLURM_STEP_NODELIST", "n[1-2]"),
///     ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
/// ];
/// assert_eq!(from_environment(&step)?.world(1)?.to_string(), "worker 1 of 2, 1 replica each");
/// assert!(from_environment(&[])?.cluster_spec()?.is_empty());
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
///
/// # Errors
/// - The errors of the chosen resolver.
/// - [`ClusterError::Malformed`]: `RANK` or `WORLD_SIZE` is not a whole number, and no scheduler was found.
/// - [`ClusterError::HalfAnEnvironment`]: variables show that this is one of several processes, but not how to
///   reach the others.
pub fn from_environment(environment: &dyn Environment) -> Result<Box<dyn ClusterResolver>, ClusterError> {
    Ok(match detect(environment) {
        Some(Scheduler::Mpi) => {
            Box::new(MpiClusterResolver::from_environment(MpiOptions::default(), environment)?)
        }
        Some(Scheduler::Slurm) => {
            Box::new(SlurmClusterResolver::from_environment(SlurmOptions::default(), environment)?)
        }
        Some(Scheduler::SageMaker) => Box::new(SageMakerClusterResolver::from_environment(environment)?),
        Some(Scheduler::TfConfig) | None => {
            let resolver = TfConfigClusterResolver::from_environment(environment)?;
            if environment.get(TF_CONFIG).is_none() {
                check_complete(environment)?;
            }
            Box::new(resolver)
        }
    })
}

/// Calls [`from_environment`] with the environment of this process.
///
/// # Errors
/// Returns the errors of [`from_environment`].
pub fn from_env() -> Result<Box<dyn ClusterResolver>, ClusterError> {
    from_environment(&ProcessEnvironment)
}

/// Returns an error if a launcher's variables are incomplete, or are meant for another library's rendezvous, as those
/// of torchrun are. In both cases, each process would train alone.
fn check_complete(environment: &dyn Environment) -> Result<(), ClusterError> {
    let half = |found: &str, missing: &'static str, remedy| {
        Err(ClusterError::HalfAnEnvironment { found: found.to_owned(), missing, remedy })
    };
    if let Some((found, missing)) = mpi::incomplete(environment) {
        return half(found, missing, "start the program with mpirun or mpiexec, or set TF_CONFIG");
    }
    let launch = "unset both, or start the program with distribute launch, or set TF_CONFIG";
    match (number(environment, "RANK")?, number(environment, "WORLD_SIZE")?) {
        (Some(_), None) => half("RANK", "WORLD_SIZE", launch),
        (None, Some(size)) if size > 1 => half("WORLD_SIZE", "RANK", launch),
        (Some(_), Some(size)) if size > 1 => half(
            "RANK and WORLD_SIZE",
            "the addresses of the other processes",
            "torchrun passes them only to PyTorch: start the program with distribute launch, or set \
             TF_CONFIG",
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<const N: usize>(environment: [(&str, &str); N]) -> String {
        from_environment(&environment).err().unwrap().to_string()
    }

    #[test]
    fn each_scheduler_has_its_resolver() {
        let of = |environment: &dyn Environment| from_environment(environment).unwrap().task();
        let config = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;
        let worker = Some(crate::Job::Worker.task(1));
        // TF_CONFIG takes precedence.
        assert_eq!(of(&[("TF_CONFIG", config), ("PMI_RANK", "0"), ("PMI_SIZE", "2")]), worker);
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(of(&mpi), worker);
        assert_eq!(of(&[("SM_HOSTS", r#"["a", "b"]"#), ("SM_CURRENT_HOST", "b")]), worker);
        assert_eq!(of(&[]), None);
        // One process alone is complete.
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), None);
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
    }

    // If this is accepted, each worker trains alone.
    #[test]
    fn an_incomplete_environment_is_refused_with_the_missing_variable() {
        assert!(refused([("TF_CONFIG", "")]).starts_with("TF_CONFIG: expected JSON, found no text"));
        for (environment, says) in [
            ([("RANK", "1"), ("", "")], "found RANK without WORLD_SIZE: unset both"),
            ([("WORLD_SIZE", "2"), ("", "")], "found WORLD_SIZE without RANK: unset both"),
            (
                [("RANK", "1"), ("WORLD_SIZE", "2")],
                "found RANK and WORLD_SIZE without the addresses of the other processes: torchrun",
            ),
            (
                [("OMPI_COMM_WORLD_RANK", "1"), ("", "")],
                "found OMPI_COMM_WORLD_RANK without OMPI_COMM_WORLD_SIZE",
            ),
            ([("PMI_SIZE", "2"), ("", "")], "found PMI_SIZE without PMI_RANK: start the program with mpirun"),
            ([("RANK", "x"), ("", "")], r#"RANK: expected a whole number from 0, found "x""#),
        ] {
            let error = refused(environment);
            assert!(error.starts_with(says), "{error}");
        }
    }
}
