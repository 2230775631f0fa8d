//! What has to happen before any thread starts: logging, and candle's threads.

use std::io::IsTerminal;
use std::sync::Once;
use tracing_subscriber::EnvFilter;

/// Prepares the process. `#[distribute::main]` calls it first thing.
///
/// - candle's element-wise kernels share one pool of threads, on which replicas wait for each other; and each matrix
///   product takes all cores. Unless the environment says otherwise (`CANDLE_NUM_THREADS`, `RAYON_NUM_THREADS`), both
///   are set to one thread: replicas are what uses the cores.
/// - Log lines go to stderr, from level `warn`. `DISTRIBUTE_LOG` sets another filter: `DISTRIBUTE_LOG=trace` shows each
///   call that each replica makes.
///
/// Call it before the program starts a thread: it writes the environment, which another thread could be reading, and
/// candle reads these settings only once. Only the first call does something. A program that has a `tracing` subscriber
/// keeps it; a filter that cannot be read counts as none.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for name in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
            if std::env::var_os(name).is_none() {
                // SAFETY: `#[distribute::main]` calls this before the program has started a thread, and the
                // documentation asks the same of others; so nobody reads the environment meanwhile.
                unsafe { std::env::set_var(name, "1") };
            }
        }
        let filter = EnvFilter::try_from_env("DISTRIBUTE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
        let colours = std::io::stderr().is_terminal();
        let log =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
        // Where the program has its own subscriber, that one stays.
        let _ = log.try_init();
    });
}
