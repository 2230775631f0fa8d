//! Settings that must precede the first thread: candle's threads.

use distribute_log::heard;
use distribute_trace::internal::subscribe;
use std::sync::Once;

/// Limits candle to one thread for each replica. `#[distribute::main]` calls this first, and so does the first
/// strategy with several replicas. Only a program that starts threads before that has to call it.
///
/// candle's element-wise kernels share one pool of threads, on which replicas wait for each other, and each
/// matrix product uses all cores. Replicas already use the cores, so both are set to one thread, for this
/// process and its child processes. The environment takes precedence (`CANDLE_NUM_THREADS`,
/// `RAYON_NUM_THREADS`).
///
/// candle reads the first variable only once, and the environment cannot be written while another thread may
/// read it. If there is already another thread, the environment is left alone, with a warning. Only the first
/// call has an effect.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(tame);
}

fn tame() {
    let unset = |name: &&str| std::env::var_os(name).is_none();
    let missing: Vec<_> = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"].into_iter().filter(unset).collect();
    if missing.is_empty() {
        return;
    }
    if is_only_thread() {
        for name in missing {
            // SAFETY: this is the only thread of the process, so no thread reads the environment concurrently.
            unsafe { std::env::set_var(name, "1") };
        }
        return;
    }
    heard(|| {
        tracing::warn!(
            "other threads run already, so {} cannot be set to 1: replicas wait for each other in candle's pool of threads, and \
             may be several times slower. Put #[distribute::main] on main, or set both before the program starts",
            missing.join(" and ")
        );
    });
}

/// Prepares the process for a strategy with this many replicas, if that has not been done yet.
pub fn prepare(replicas: usize) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("DISTRIBUTE_LOG").is_some() {
            subscribe();
        }
    });
    if replicas > 1 {
        init();
    }
}

/// Whether the process has no other thread, as far as the system reports.
fn is_only_thread() -> bool {
    #[cfg(target_os = "linux")]
    return std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    // Windows locks its environment itself.
    #[cfg(not(target_os = "linux"))]
    return cfg!(windows);
}
