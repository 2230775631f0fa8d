//! [`SummaryWriter`]: writes summaries to a file.

use crate::event::{Event, Kind};
use crate::{Error, Result, histogram, name};
use distribute_cluster::Stopwatch;
use distribute_cluster::deadline::wall_clock;
use distribute_data::TfRecordWriter;
use parking_lot::Mutex;
use prost::Message;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default of [`SummaryWriter::flush_every`].
const FLUSHED_EVERY: Duration = Duration::from_secs(10);

type Condition = Box<dyn Fn() -> bool + Send + Sync>;

/// A writer of scalars and histograms to its own file, which TensorBoard can read while the file grows.
///
/// Events are flushed in three cases: when an event is written and the last flush was [some seconds](Self::flush_every)
/// before; by [`flush`](Self::flush); and when the writer is [closed](Self::close) or dropped. An error is logged if it
/// occurs while the writer is dropped. If the process is killed, unflushed events may be lost, and all earlier ones can
/// be read. Several threads may share a writer.
///
/// Several programs, and a program that resumes, may write to one folder, because each writer has its own
/// file. TensorBoard displays the folder as one run.
#[doc(alias = "tf.summary.SummaryWriter")]
pub struct SummaryWriter {
    /// The file; `None` for a writer that writes nothing.
    file: Option<EventFile>,
    condition: Option<Condition>,
    flush_every: Duration,
}

struct EventFile {
    path: PathBuf,
    output: Mutex<Output>,
}

struct Output {
    records: TfRecordWriter,
    flushed: Stopwatch,
    /// Whether a write error has already been returned.
    failed: bool,
}

impl SummaryWriter {
    /// Creates a writer to a new file in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// - [`Error::Folder`]: the folder cannot be created.
    /// - [`Error::Write`]: the file cannot be created or written.
    #[doc(alias = "tf.summary.create_file_writer")]
    pub fn create(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(|source| Error::Folder { folder: folder.into(), source })?;
        let now = wall_clock();
        let path = folder.join(name::of_file(now));
        let mut records = TfRecordWriter::growing(&path).map_err(failed)?;
        records.write(&Event::first(now.as_secs_f64()).encode_to_vec()).map_err(failed)?;
        records.flush().map_err(failed)?;
        let output = Mutex::new(Output { records, flushed: Stopwatch::start(), failed: false });
        Ok(Self { file: Some(EventFile { path, output }), condition: None, flush_every: FLUSHED_EVERY })
    }

    /// Creates a writer that writes nothing, for workers that leave summaries to others.
    #[doc(alias = "tf.summary.create_noop_writer")]
    pub fn noop() -> Self {
        Self { file: None, condition: None, flush_every: FLUSHED_EVERY }
    }

    /// Sets a condition under which events are written. It is called before each event.
    #[doc(alias = "tf.summary.record_if")]
    pub fn record_if(mut self, condition: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.condition = Some(Box::new(condition));
        self
    }

    /// Sets the interval between flushes; 10 s by default. If the last flush was at least this long ago, writing an
    /// event flushes all events. Zero means that every event is flushed immediately.
    pub fn flush_every(mut self, time: Duration) -> Self {
        self.flush_every = time;
        self
    }

    /// Returns the path of the file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// Writes a number as an `f32`. NaN and infinities are allowed. Writes nothing if the writer's
    /// [condition](Self::record_if) returns `false`.
    ///
    /// # Errors
    /// - [`Error::Tag`]: the tag is empty or too long.
    /// - [`Error::Write`]: the disk is full or fails, or an earlier event could not be written.
    #[doc(alias = "tf.summary.scalar")]
    pub fn scalar(&self, tag: &str, value: f64, step: u64) -> Result<()> {
        let Some(file) = self.recording("scalar", tag)? else { return Ok(()) };
        self.write(file, tag, step, Kind::Scalar(value as f32))
    }

    /// Writes a histogram: counts of values in buckets, each a tenth wider than the next one towards zero. Writes
    /// nothing if the writer's [condition](Self::record_if) returns `false`.
    ///
    /// # Errors
    /// - [`Error::NotFinite`]: a value is NaN or infinite.
    /// - Any error of [`scalar`](Self::scalar).
    #[doc(alias = "tf.summary.histogram")]
    pub fn histogram<V: Into<f64>>(
        &self,
        tag: &str,
        values: impl IntoIterator<Item = V>,
        step: u64,
    ) -> Result<()> {
        let Some(file) = self.recording("histogram", tag)? else { return Ok(()) };
        let counted = histogram::counted(values.into_iter().map(Into::into));
        let counted = counted.map_err(|value| Error::NotFinite { tag: tag.into(), step, value })?;
        self.write(file, tag, step, Kind::Histogram(counted))
    }

    /// Passes all written events to the operating system. They can then be read, and are not lost if this process is
    /// killed.
    ///
    /// # Errors
    /// - [`Error::Write`]: the disk is full or fails, or an earlier event could not be written.
    #[doc(alias = "tf.summary.SummaryWriter.flush")]
    pub fn flush(&self) -> Result<()> {
        match &self.file {
            Some(file) => file.output.lock().flush(),
            None => Ok(()),
        }
    }

    /// Writes all events to the disk, and closes the file.
    ///
    /// # Errors
    /// - [`Error::Write`]: the disk is full or fails, or an earlier event could not be written.
    #[doc(alias = "tf.summary.SummaryWriter.close")]
    pub fn close(mut self) -> Result<()> {
        match self.file.take() {
            Some(file) => file.output.into_inner().records.finish().map_err(failed),
            None => Ok(()),
        }
    }

    /// Returns the file to which an event with this tag must be written; `None` if it must not be written. Returns
    /// [`Error::Tag`] if the tag is empty or too long.
    fn recording(&self, operation: &'static str, tag: &str) -> Result<Option<&EventFile>> {
        if tag.is_empty() || tag.len() > Error::MAX_TAG {
            return Err(Error::Tag { operation, tag: tag.into() });
        }
        let wanted = self.condition.as_ref().is_none_or(|condition| condition());
        Ok(self.file.as_ref().filter(|_| wanted))
    }

    fn write(&self, file: &EventFile, tag: &str, step: u64, kind: Kind) -> Result<()> {
        let event = Event::of(wall_clock().as_secs_f64(), step, tag, kind).encode_to_vec();
        // A record that a panic has cut off makes the next ones fail: nothing is written after it.
        let mut output = file.output.lock();
        let written = output.records.write(&event);
        output.note_failure(written)?;
        if output.flushed.elapsed() >= self.flush_every { output.flush() } else { Ok(()) }
    }
}

fn failed(source: distribute_data::Error) -> Error {
    Error::Write(Box::new(source))
}

impl Output {
    fn flush(&mut self) -> Result<()> {
        self.flushed = Stopwatch::start();
        let flushed = self.records.flush();
        self.note_failure(flushed)
    }

    fn note_failure(&mut self, done: distribute_data::Result<()>) -> Result<()> {
        self.failed |= done.is_err();
        done.map_err(failed)
    }
}

impl Drop for SummaryWriter {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && !file.output.lock().failed
            && let Err(error) = self.flush()
        {
            distribute_log::warn_or_stderr(|| tracing::error!("{error}"));
        }
    }
}

impl fmt::Debug for SummaryWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SummaryWriter").field("path", &self.path()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
