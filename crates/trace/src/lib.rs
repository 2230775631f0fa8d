//! A timeline of what each replica does, to be opened in <https://ui.perfetto.dev>.
//!
//! | slice | what happens in it |
//! |---|---|
//! | `step` | a `run`, on the track of the thread that calls it, around all that replica 0 does in it |
//! | `forward` | the closure, except for the other slices; it includes calls of candle's own `backward` |
//! | `backward` | gradients of a loss: in `minimize`, or by `Gradients::of` |
//! | `waiting` | waiting for other replicas, at the beginning or end of a call that all make |
//! | `update` | an optimizer's step: each replica reduces and updates its range of the parameters, in one pass |
//! | `reduce`, `gather`, `merge` | `all_reduce`, `all_gather`, and the function of a `merge_call`, on replica 0 |
//! | `nccl` | links GPUs by `NcclAllReduce`, and puts sums into their queues, on replica 0 |
//! | `servers` | waiting for parameter servers: before a step for values, and in `minimize` until gradients are there |
//! | `compare` | with several workers, before a step: the checksum of a part of the variables |
//! | `save` | writes a checkpoint, on the chief: a slice for each of its files, and for their names |
//! | `input` | makes the next batch and splits it into pieces; on the track `data-prefetch`, elements made ahead |
//!
//! Each replica has a track, `replica 0`, `replica 1` and so on; replica 0's is that of the thread that calls `run`. Except
//! for `step`, slices do not overlap: each moment of a replica belongs to one, so their lengths add up. Your own `tracing`
//! spans of level `INFO` or above are in the timeline, too.
//!
//! While no trace is written, a span costs a comparison. A slice costs about a microsecond and 100 bytes of the file, and a
//! training step of two replicas has some 20. Memory does not grow: events are written to the file 64 KiB at a time.

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

/// Writes a timeline into a file from now on, until the guard is dropped or [finished](TraceFile::finish).
///
/// The file is in the Trace Event Format, and can be read however the process ends, even after a panic or `kill -9`, when
/// only the last slices may be missing. An existing file is replaced; a link is replaced, not followed.
///
/// # Errors
/// [`Error::Io`], with the path, if the file cannot be written; [`Error::InvalidArgument`] while another trace is being
/// written, and if the program has its own `tracing` subscriber without [`layer`].
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

/// The layer through which [`to_file`] listens, for programs with their own `tracing` subscriber. Other programs don't need
/// it.
///
/// While no trace is being written, this layer is disabled.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    is_layered();
    proposed_layer()
}

/// A trace that is being written, see [`to_file`]. It ends when dropped; errors are logged then.
#[derive(Debug)]
#[must_use = "dropped, the trace ends"]
pub struct TraceFile {
    path: PathBuf,
    open: bool,
}

impl TraceFile {
    /// Ends the trace, after which the file is complete.
    ///
    /// # Errors
    /// [`Error::Io`], with the path, if something could not be written, now or before.
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

/// Records that a subscriber with this module's layer has been installed.
pub(crate) fn is_layered() {
    LAYERED.store(true, Ordering::Relaxed);
}

/// The layer for a subscriber that may not get installed.
pub(crate) fn proposed_layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    layer::Slices.with_filter(layer::WhileOpen)
}

/// The interface for the other crates of `distribute`. It is not public: anything in it may change.
#[doc(hidden)]
pub mod internal {
    /// The name of the span of a `run`.
    pub const STEP: &str = "step";
    pub use crate::activity::Watch;
    pub use crate::subscriber::subscribe;
}
