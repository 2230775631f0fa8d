//! [`SummaryWriter`]: what programs call.

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

/// How old what has not been flushed may be when another event is written.
const FLUSHED_EVERY: Duration = Duration::from_secs(10);

type Condition = Box<dyn Fn() -> bool + Send + Sync>;

/// Writes scalars and histograms into a file of its own, which TensorBoard reads while it grows.
///
/// Events are flushed some seconds after they were written, when the next one is; by [`flush`](Self::flush); and when the writer is
/// [closed](Self::close) or dropped. What was not flushed is lost where the process is killed; everything before can be read. Threads may share a writer.
///
/// Several programs, and a program that goes on, may write into one folder: each writer has a file there. TensorBoard shows the
/// folder as a run.
#[doc(alias = "tf.summary.SummaryWriter")]
pub struct SummaryWriter {
    /// `None` for one that writes nothing.
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
    /// Whether somebody was told that the disk takes no more.
    failed: bool,
}

impl SummaryWriter {
    /// A writer of a new file in this folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Folder`] and [`Error::Write`].
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

    /// A writer that writes nothing: for those who leave it to others.
    #[doc(alias = "tf.summary.create_noop_writer")]
    pub fn noop() -> Self {
        Self { file: None, condition: None, flush_every: FLUSHED_EVERY }
    }

    /// Writes only where `condition` says so, which is asked before each event.
    #[doc(alias = "tf.summary.record_if")]
    pub fn record_if(mut self, condition: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.condition = Some(Box::new(condition));
        self
    }

    /// Events are flushed when the next one is written so long after, instead of 10 s; with zero, at once.
    pub fn flush_every(mut self, time: Duration) -> Self {
        self.flush_every = time;
        self
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// Writes a number, which becomes an `f32`. NaN and infinities can be written.
    ///
    /// # Errors
    /// [`Error::Write`] if the disk does not take it, and for every event after that; [`Error::Tag`].
    #[doc(alias = "tf.summary.scalar")]
    pub fn scalar(&self, tag: &str, value: f64, step: u64) -> Result<()> {
        let Some(file) = self.recording("scalar", tag)? else { return Ok(()) };
        self.write(file, tag, step, Kind::Scalar(value as f32))
    }

    /// Counts values in buckets, each a tenth wider than the one nearer to zero, and writes these.
    ///
    /// # Errors
    /// Those of [`scalar`](Self::scalar); [`Error::NotFinite`].
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

    /// Hands everything written so far to the system: it can be read, and outlives this process.
    ///
    /// # Errors
    /// [`Error::Write`].
    #[doc(alias = "tf.summary.SummaryWriter.flush")]
    pub fn flush(&self) -> Result<()> {
        match &self.file {
            Some(file) => file.output.lock().flush(),
            None => Ok(()),
        }
    }

    /// Brings everything to the disk, and closes the file.
    ///
    /// # Errors
    /// [`Error::Write`], also where an event could not be written before.
    #[doc(alias = "tf.summary.SummaryWriter.close")]
    pub fn close(mut self) -> Result<()> {
        match self.file.take() {
            Some(file) => file.output.into_inner().records.finish().map_err(failed),
            None => Ok(()),
        }
    }

    /// The file, if an event of this name is to be written now.
    fn recording(&self, operation: &'static str, tag: &str) -> Result<Option<&EventFile>> {
        if tag.is_empty() || tag.len() > Error::LONGEST_TAG {
            return Err(Error::Tag { operation, tag: tag.into() });
        }
        let wanted = self.condition.as_ref().is_none_or(|condition| condition());
        Ok(self.file.as_ref().filter(|_| wanted))
    }

    fn write(&self, file: &EventFile, tag: &str, step: u64, kind: Kind) -> Result<()> {
        let event = Event::of(wall_clock().as_secs_f64(), step, tag, kind).encode_to_vec();
        // A record that a panic has cut off makes the next ones fail: nothing is written behind it.
        let mut output = file.output.lock();
        let written = output.records.write(&event);
        output.told(written)?;
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
        self.told(flushed)
    }

    fn told(&mut self, done: distribute_data::Result<()>) -> Result<()> {
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
            distribute_log::heard(|| tracing::error!("{error}"));
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
