//! A setting that must be made before the process starts its first thread: the number of threads that candle uses.

use distribute_log::warn_or_stderr;
use std::sync::Once;

/// Limits candle to one thread per replica. `#[distribute::main]` calls this first; otherwise the first strategy with
/// several replicas calls it. A program needs to call it only if it starts threads before that.
///
/// candle's element-wise kernels share one thread pool, on which replicas wait for each other, and each
/// matrix product uses all cores. The replicas already occupy the cores, so both are limited to one thread,
/// for this process and its child processes. The variables `CANDLE_NUM_THREADS` and `RAYON_NUM_THREADS` take
/// precedence if they are set.
///
/// candle reads the first variable only once, and the environment cannot be written safely while another thread may
/// read it. If another thread is already running on Linux, and always on systems other than Linux and Windows, this
/// function changes nothing and logs a warning. Only the first call has an effect.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(limit_threads);
}

fn limit_threads() {
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
    warn_or_stderr(|| {
        tracing::warn!(
            "other threads are already running, so {} cannot be set to 1: replicas wait for each other in candle's \
             pool of threads, and \
             may be several times slower. Put #[distribute::main] on main, or set both before the program starts",
            missing.join(" and ")
        );
    });
}

/// Prepares the process for a strategy with the given number of replicas. On the first call, installs the log
/// subscriber if `DISTRIBUTE_LOG` is set. Calls [`init`] if there are several replicas.
pub fn prepare(replicas: usize) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("DISTRIBUTE_LOG").is_some() {
            #[cfg(feature = "trace")]
            distribute_trace::internal::subscribe();
            #[cfg(not(feature = "trace"))]
            warn_or_stderr(|| {
                tracing::warn!(
                    "DISTRIBUTE_LOG is set, but this program was built without the feature `trace` of distribute, so \
                     nothing is logged: enable it, or install a subscriber of `tracing`"
                );
            });
        }
    });
    if replicas > 1 {
        init();
    }
}

/// Returns `true` if the environment can be written safely. On Linux, this requires that the process has no other
/// thread. It is always `true` on Windows, which locks its environment, and `false` on other systems.
fn is_only_thread() -> bool {
    #[cfg(target_os = "linux")]
    return std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    // Windows locks its environment itself.
    #[cfg(not(target_os = "linux"))]
    return cfg!(windows);
}
