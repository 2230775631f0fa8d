//! The warning of a process that was started as one of several and trains alone.

use distribute_cluster::Job;
use distribute_cluster::environment::ProcessEnvironment;
use distribute_cluster::resolver::{
    ClusterResolver, Scheduler, TfConfigClusterResolver, detect, tasks_without_srun,
};
use distribute_log::heard;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether no warning is needed any more.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// Warns, once in a process, that it trains alone although it was started as one of several. Each of these
/// processes would train separate weights unnoticed.
pub fn warn(kind: &'static str) {
    if SETTLED.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(scheduler) = detect(&ProcessEnvironment).filter(|scheduler| !is_evaluator(*scheduler)) {
        heard(|| {
            tracing::warn!(
                "{scheduler} started this process as one of several, but {kind} trains in it alone, and so may each of the \
                 others: MultiWorkerMirroredStrategy::new() trains with all of them"
            );
        });
    }
}

/// Warns that a strategy of several workers has only this one, because `srun` has not started the processes of
/// the Slurm job.
pub fn warn_without_srun() {
    if let Some(tasks) = tasks_without_srun(&ProcessEnvironment) {
        heard(|| {
            tracing::warn!(
                "this process trains alone, though its Slurm job has {tasks} tasks: nobody started the others; start the program \
                 by srun, in the script that sbatch gets"
            );
        });
    }
}

/// Records that this process has joined its cluster. Its other strategies then need no warning.
pub fn joined() {
    SETTLED.store(true, Ordering::Relaxed);
}

/// Whether the process is an evaluator, which is meant to be alone.
fn is_evaluator(scheduler: Scheduler) -> bool {
    let task = || TfConfigClusterResolver::from_env().ok()?.task_type();
    scheduler == Scheduler::TfConfig && task() == Some(Job::Evaluator)
}
