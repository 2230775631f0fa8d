//! A timeline of each replica's activity, for <https://ui.perfetto.dev>.
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
//! Each replica has a track, `replica 0`, `replica 1` and so on. The track of replica 0 is that of the thread
//! that calls `run`. Except for `step`, slices do not overlap: each moment of a replica belongs to one, so
//! their lengths add up. Your own `tracing` spans of level `INFO` or above are also in the timeline.
//!
//! Without a trace file, a span costs a comparison. A slice costs about a microsecond and 100 bytes of the
//! file, and a training step of two replicas has about 20 slices. Memory does not grow: events are written to
//! the file 64 KiB at a time.

mod activity;
mod file;
mod layer;
mod slices;
mod subscriber;

pub(crate) use subscriber::subscribe;

use distribute_base::{Error, Result};
use file::Events;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// Whether a subscriber of this process has the layer.
static LAYERED: AtomicBool = AtomicBool::new(false);

/// Starts writing a timeline into a file, until the guard is dropped or [finished](TraceFile::finish).
///
/// The file is in the Trace Event Format. It is readable however the process exits: after a panic or
/// `kill -9`, only the last slices may be missing. An existing file is replaced; a link is replaced, not
/// followed.
///
/// # Errors
/// - [`Error::Io`], with the path: the file cannot be written.
/// - [`Error::InvalidArgument`]: another trace is being written.
/// - [`Error::InvalidArgument`]: the program has its own `tracing` subscriber without [`layer`].
///
/// ```
/// # use distribute::prelude::*;
/// # let folder = std::env::temp_dir().join(format!("trace-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("trace.json");
/// let trace = distribute::trace::to_file(&path)?;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
/// trace.finish()?;
/// assert!(std::fs::read_to_string(&path)?.contains("\"replica 1\""));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "tf.profiler.experimental.start")]
pub fn to_file(path: impl AsRef<Path>) -> Result<TraceFile> {
    const OPERATION: &str = "trace::to_file";
    let path = path.as_ref();
    subscribe();
    if !LAYERED.load(Ordering::Relaxed) {
        let reason = "the program has a tracing subscriber of its own; add distribute::trace::layer() to it: \
                      tracing_subscriber::registry().with(…).with(distribute::trace::layer())";
        return Err(Error::invalid(OPERATION, reason));
    }
    match layer::open(|| Events::create(path)) {
        Ok(true) => Ok(TraceFile { path: path.to_path_buf(), open: true }),
        Ok(false) => {
            Err(Error::invalid(OPERATION, "a trace is being written already; finish or drop that one first"))
        }
        Err(source) => Err(failed(path, source)),
    }
}

/// Returns the layer that [`to_file`] needs in programs with their own `tracing` subscriber. Other programs do
/// not need it.
///
/// While no trace is being written, this layer is disabled.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    is_layered();
    proposed_layer()
}

/// An open trace file: see [`to_file`]. Dropping it closes the file and logs errors.
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
    /// - [`Error::Io`], with the path: a write has failed, now or earlier.
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
            distribute_log::heard(|| tracing::error!("{error}"));
        }
    }
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { operation: format!("writing the trace {}", path.display()), source }
}

/// Records that a subscriber with this module's layer is installed.
pub(crate) fn is_layered() {
    LAYERED.store(true, Ordering::Relaxed);
}

/// Returns the layer, for a subscriber that may not be installed.
pub(crate) fn proposed_layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    layer::Slices.with_filter(layer::WhileOpen)
}

/// The interface for the other crates of `distribute`. It is not public: any item may change.
#[doc(hidden)]
pub mod internal {
    /// The name of the span of a `run`.
    pub const STEP: &str = "step";
    pub use crate::activity::Watch;
    pub use crate::subscriber::subscribe;
}
