//! This project's subscriber: it writes lines to standard error, and contains the layer for traces.

use distribute_log::warn_or_stderr;
use std::io::IsTerminal;
use std::sync::Once;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

/// Installs this project's subscriber, unless the process already has one. Only the first call has an effect.
pub fn subscribe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(log);
}

fn log() {
    let wanted = EnvFilter::try_from_env("DISTRIBUTE_LOG");
    let unreadable = wanted.is_err() && std::env::var_os("DISTRIBUTE_LOG").is_some();
    let colours = std::io::stderr().is_terminal();
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_filter(wanted.unwrap_or_else(|_| EnvFilter::new("warn")));
    // If the program has its own subscriber, that one is kept.
    if registry().with(lines).with(super::proposed_layer()).try_init().is_ok() {
        super::is_layered();
    }
    if unreadable {
        warn_or_stderr(|| {
            tracing::warn!(
                "DISTRIBUTE_LOG cannot be read as a filter, such as debug or distribute_collective=trace"
            );
        });
    }
}
