//! A timeline of each replica's activity, for <https://ui.perfetto.dev>.
//!
//! ```
//! use distribute::prelude::*;
//! # let folder = std::env::temp_dir().join(format!("trace-lib-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("trace.json");
//!
//! let trace = distribute::trace::to_file(&path)?; // a file for each process
//! let strategy = MirroredStrategy::cpus(2)?;
//! strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?; // train
//! trace.finish()?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The slow replica is the one that waits least: its other slices are long while the others are in `waiting`. If
//! `input` is long on all replicas, prefetch.
//!
//! | slice | activity |
//! |---|---|
//! | `step` | a `run`, on the track of the thread that calls it, around all slices of replica 0 |
//! | `forward` | the closure, except for the other slices; includes calls of candle's own `backward` |
//! | `backward` | gradients of a loss: in `minimize`, or by `Gradients::of` |
//! | `waiting` | waiting for other replicas, at the beginning or end of a collective |
//! | `update` | an optimizer's step: each replica reduces and updates its partition of the parameters, in one pass |
//! | `reduce`, `gather`, `merge` | `all_reduce`, `all_gather`, and the function of a `merge_call`, on replica 0 |
//! | `nccl` | connecting GPUs by `NcclAllReduce` and queuing sums on them, on replica 0 |
//! | `servers` | waiting for parameter servers: for values before a step, and for gradients to arrive in `minimize` |
//! | `compare` | the checksum of a subset of the variables before a step, with several workers |
//! | `save` | writing a checkpoint, on the chief: a slice for each of its files, and for renaming them |
//! | `input` | making and splitting the next batch; on the track `data-prefetch`, elements made early |
//!
//! Each replica has a track: `replica 0`, `replica 1` and so on. The track of replica 0 is normally that of the thread
//! that calls `run`. Except for `step`, slices do not overlap: each moment of a replica belongs to exactly one slice,
//! so their lengths add up. Your own `tracing` spans of level `INFO` or above also appear in the timeline, and do not
//! interrupt these slices.
//!
//! | module | contents |
//! |---|---|
//! | `slices` | the activity of a thread as slices of time; the caller passes the times |
//! | `layer` | the receiver of spans |
//! | `file` | the Trace Event Format |
//! | `activity`, `watch` | the current activity of each replica; the guard that records it, for the monitor |
//! | `subscriber` | `DISTRIBUTE_LOG` |
//!
//! Other crates only emit spans; only this crate receives them. The file is not synced, so a step does not wait until a
//! disk has stored the events.
//!
//! Without a trace file and a monitor, a span costs a comparison. A slice costs about a microsecond and 100 bytes of
//! the file, and a training step with two replicas has about 20 slices. Memory usage does not grow: events are written
//! to the file in blocks of 64 KiB.

mod activity;
mod file;
mod layer;
mod slices;
mod subscriber;
mod watch;

pub(crate) use subscriber::subscribe;

use distribute_base::{Error, Result};
use file::Events;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// Whether this project's subscriber is installed, or the program has requested the layer for its own subscriber.
static LAYERED: AtomicBool = AtomicBool::new(false);

/// Starts writing a timeline to a file. The timeline ends when the guard is dropped or [finished](TraceFile::finish).
/// If the program has no `tracing` subscriber, installs one that also logs to standard error.
///
/// # Errors
/// - [`Error::InvalidArgument`]: another trace is being written; or the program has its own `tracing` subscriber, and
///   has not called [`layer()`].
/// - [`Error::Io`]: the file cannot be created.
#[doc(alias = "tf.profiler.experimental.start")]
#[doc(alias = "timeline")]
#[doc(alias = "straggler")]
pub fn to_file(path: impl AsRef<Path>) -> Result<TraceFile> {
    const OPERATION: &str = "trace::to_file";
    let path = path.as_ref();
    subscribe();
    if !LAYERED.load(Ordering::Relaxed) {
        let reason = "the program already has a tracing subscriber; add distribute::trace::layer() to it: \
                      tracing_subscriber::registry().with(…).with(distribute::trace::layer())";
        return Err(Error::invalid(OPERATION, reason));
    }
    match layer::open(|| Events::create(path)) {
        Ok(true) => Ok(TraceFile { path: path.to_path_buf(), open: true }),
        Ok(false) => {
            Err(Error::invalid(OPERATION, "another trace is being written; finish or drop it first"))
        }
        Err(source) => Err(failed(path, source)),
    }
}

/// Returns the layer that [`to_file`] and the monitor need in programs with their own `tracing` subscriber. Other
/// programs do not need it.
///
/// While no trace is being written and no monitor is running, this layer is disabled.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    is_layered();
    proposed_layer()
}

/// An open trace file. See [`to_file`]. Dropping it closes the file and logs errors.
#[derive(Debug)]
#[must_use = "dropped, the trace ends"]
pub struct TraceFile {
    path: PathBuf,
    open: bool,
}

impl TraceFile {
    /// Closes the file, which is then complete.
    ///
    /// # Errors
    /// - [`Error::Io`]: this or an earlier write failed. The error contains the path.
    pub fn finish(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.open, false) {
            layer::close().map_err(|source| failed(&self.path, source))
        } else {
            Ok(())
        }
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            distribute_log::warn_or_stderr(|| tracing::error!("{error}"));
        }
    }
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { operation: format!("writing the trace {}", path.display()), source }
}

/// Records that the layer is installed, or that the program has requested it for its own subscriber.
pub(crate) fn is_layered() {
    LAYERED.store(true, Ordering::Relaxed);
}

/// Returns the layer, for a subscriber that may not be installed.
pub(crate) fn proposed_layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    layer::Slices.with_filter(layer::ListenerFilter)
}

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::subscriber::subscribe;
    pub use crate::watch::Watch;
}
