//! The warning that a process trains alone although it was started as one of several.

use distribute_cluster::Job;
use distribute_cluster::environment::ProcessEnvironment;
use distribute_cluster::resolver::{
    ClusterResolver, Scheduler, TfConfigClusterResolver, detect, tasks_without_srun,
};
use distribute_log::warn_or_stderr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether [`warn()`] has been called in this process, or its warning is not needed.
static SUPPRESSED: AtomicBool = AtomicBool::new(false);

/// Logs a warning if this process was started as one of several, although a strategy of kind `kind` trains in it alone.
/// Without the warning, each process would train separate weights without anyone noticing. Only the first call in a
/// process checks this, and evaluators get no warning.
pub fn warn(kind: &'static str) {
    if SUPPRESSED.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(scheduler) = detect(&ProcessEnvironment).filter(|scheduler| !is_evaluator(*scheduler)) {
        warn_or_stderr(|| {
            tracing::warn!(
                "{scheduler} started this process as one of several, but {kind} trains in it alone, and so may the \
                 others: MultiWorkerMirroredStrategy::new() trains with all of them"
            );
        });
    }
}

/// Logs a warning if this process belongs to a Slurm job with several tasks, but was not started with `srun`. Call this
/// if a strategy for several workers consists only of this process.
pub fn warn_without_srun() {
    if let Some(tasks) = tasks_without_srun(&ProcessEnvironment) {
        warn_or_stderr(|| {
            tracing::warn!(
                "this process trains alone, though its Slurm job has {tasks} tasks: the others were not started; \
                 start the program with srun, in the script for sbatch"
            );
        });
    }
}

/// Records that this process has joined its cluster, so its other strategies need no warning.
pub fn suppress() {
    SUPPRESSED.store(true, Ordering::Relaxed);
}

/// Returns `true` if this process is an evaluator, which is supposed to run alone.
fn is_evaluator(scheduler: Scheduler) -> bool {
    let task = || TfConfigClusterResolver::from_env().ok()?.task_type();
    scheduler == Scheduler::TfConfig && task() == Some(Job::Evaluator)
}
