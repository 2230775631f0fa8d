//! A process that was started as one of several, and trains alone.

use distribute_cluster::Job;
use distribute_cluster::environment::ProcessEnvironment;
use distribute_cluster::resolver::{ClusterResolver, Scheduler, TfConfigClusterResolver, detect};
use distribute_log::heard;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether nothing is to be said any more.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// Says, once in a process, that it trains alone although it was started as one of several. Each of them would train weights
/// of its own, and nobody would notice.
pub(super) fn warn(kind: &'static str) {
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

/// This process has joined its cluster: strategies that it makes for something else need no warning.
pub(super) fn joined() {
    SETTLED.store(true, Ordering::Relaxed);
}

/// Evaluators are to be alone.
fn is_evaluator(scheduler: Scheduler) -> bool {
    let task = || TfConfigClusterResolver::from_env().ok()?.task_type();
    scheduler == Scheduler::TfConfig && task() == Some(Job::Evaluator)
}
