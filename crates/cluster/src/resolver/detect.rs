//! The detection of the scheduler that started this process.

use super::mpi;
use crate::environment::{Environment, number};
use crate::tf_config::{TF_CONFIG, TfConfig};
use std::fmt;

/// A scheduler that describes its cluster in environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduler {
    /// A launcher that set the variable `TF_CONFIG`. Its value describes several tasks, or cannot be parsed.
    TfConfig,
    /// An MPI launcher that started several ranks.
    Mpi,
    /// A Slurm job step with several tasks.
    Slurm,
    /// A SageMaker training job with several hosts.
    SageMaker,
}

/// Returns the scheduler that started this process as one of several; `None` if no known scheduler did.
///
/// Call this in a program that is about to train without a cluster. `Some` means that it would train a separate model
/// in every process.
///
/// ```
/// use distribute_cluster::resolver::{Scheduler, detect};
/// let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
/// assert_eq!(detect(&step), Some(Scheduler::Slurm));
/// assert_eq!(detect(&[]), None);
/// ```
pub fn detect(environment: &dyn Environment) -> Option<Scheduler> {
    let several = |name: &str| number(environment, name).ok().flatten().is_some_and(|tasks| tasks > 1);
    if let Some(text) = environment.get(TF_CONFIG) {
        // A value that cannot be parsed was meant to be a cluster.
        let tasks = text.parse::<TfConfig>().map_or(usize::MAX, |config| config.cluster.total_tasks());
        if tasks > 1 {
            return Some(Scheduler::TfConfig);
        }
    }
    if mpi::size(environment).is_some_and(|ranks| ranks > 1) {
        return Some(Scheduler::Mpi);
    }
    if environment.get("SLURM_PROCID").is_some() && several("SLURM_STEP_NUM_TASKS") {
        return Some(Scheduler::Slurm);
    }
    let hosts =
        environment.get("SM_HOSTS").and_then(|hosts| serde_json::from_str::<Vec<String>>(&hosts).ok());
    hosts.filter(|hosts| hosts.len() > 1).map(|_| Scheduler::SageMaker)
}

/// Returns the number of tasks of a Slurm job whose batch script started this process without `srun`, so that only one
/// process runs. Returns `None` if the job has one task, if `srun` started this process, or outside Slurm.
///
/// ```
/// use distribute_cluster::resolver::tasks_without_srun;
/// assert_eq!(tasks_without_srun(&[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4")]), Some(4));
/// let step = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_NUM_TASKS", "4")];
/// assert_eq!(tasks_without_srun(&step), None);
/// ```
pub fn tasks_without_srun(environment: &dyn Environment) -> Option<usize> {
    environment.get("SLURM_JOB_ID")?;
    let tasks = number(environment, "SLURM_NTASKS").ok().flatten().filter(|tasks| *tasks > 1);
    tasks.filter(|_| environment.get("SLURM_STEP_NUM_TASKS").is_none())
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduler::TfConfig => "TF_CONFIG",
            Scheduler::Mpi => "MPI",
            Scheduler::Slurm => "Slurm",
            Scheduler::SageMaker => "SageMaker",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this is not noticed, each worker trains alone.
    #[test]
    fn a_process_of_several_is_noticed() {
        let of = |environment: [(&str, &str); 2]| detect(&environment);
        let two = r#"{"cluster": {"worker": ["a:1", "b:1"]}}"#;
        assert_eq!(of([("TF_CONFIG", two), ("", "")]), Some(Scheduler::TfConfig));
        assert_eq!(of([("TF_CONFIG", "{"), ("", "")]), Some(Scheduler::TfConfig));
        assert_eq!(of([("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")]), Some(Scheduler::Mpi));
        assert_eq!(of([("SM_HOSTS", r#"["a", "b"]"#), ("", "")]), Some(Scheduler::SageMaker));
        // One task alone is not a cluster, nor is the script of a batch job, which is not a step.
        assert_eq!(of([("TF_CONFIG", "{}"), ("SM_HOSTS", r#"["a"]"#)]), None);
        assert_eq!(of([("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        assert_eq!(of([("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), None);
    }
}
