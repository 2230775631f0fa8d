//! [`Format`]: how a file becomes elements.

use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::pipeline::Batching;
use crate::stage::Stage;
use crate::{Compression, ElementSpec, Error, Location, Result};

/// A format of files: it makes elements of a file.
pub(crate) trait Format: Send + Sync + 'static {
    /// Returns the name of the format and its parameters: `TFRecord`.
    fn describe(&self) -> String;

    /// Dtypes and shapes of the elements.
    fn spec(&self) -> Option<ElementSpec>;

    /// Returns whether elements are batches.
    fn batching(&self) -> Batching {
        Batching::Elements
    }

    /// Starts to read one file, of which `broken` is the policy for broken records.
    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading>;

    /// Returns the count for broken records, if they are skipped.
    fn skipped(&self) -> Option<&SkippedRecords> {
        None
    }

    /// Returns the reason that a file cannot be parsed: because its compressed stream is damaged, if it is,
    /// otherwise `error`.
    fn blame(&self, file: &Location, error: Error) -> Error {
        Compression::Auto.blame(file, |_| None, error)
    }

    /// Returns the number of threads that parse sections of files.
    fn threads(&self) -> usize {
        1
    }

    /// Checks that its parameters are in their ranges.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The way in which one file is read.
pub(crate) enum Reading {
    /// Element by element, on the thread that asks for them.
    Elements(Box<dyn Stage>),
    /// In sections, which become elements on any thread.
    Sections(Box<dyn Sections>),
}

/// The sections of a file, one after the other. Reading them only finds where they end.
pub(crate) trait Sections: Send {
    /// Returns the work that parses the next section; `None` at the end. Must not be called again after an
    /// error.
    fn next(&mut self) -> Option<Result<Work>>;

    /// Skips `count` elements and returns how many there were, if that is cheaper than making them.
    fn skip(&mut self, _count: usize) -> Result<Option<usize>> {
        Ok(None)
    }
}

/// Parses a section into elements.
pub(crate) struct Work {
    /// The number of bytes of the file that it holds.
    pub(crate) bytes: usize,
    pub(crate) make: Box<dyn FnOnce() -> Made + Send>,
}

/// The elements of a section, up to the first that is broken.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) chunk: Option<Chunk>,
    pub(crate) failed: Option<Error>,
}

impl Made {
    /// Returns the next elements, then the error.
    pub(super) fn take(&mut self, max: usize) -> Result<Option<Chunk>> {
        match self.chunk.take() {
            Some(chunk) if chunk.len() > max => {
                self.chunk = Some(chunk.slice(max..chunk.len()));
                Ok(Some(chunk.slice(0..max)))
            }
            Some(chunk) => Ok(Some(chunk)),
            None => self.failed.take().map_or(Ok(None), Err),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunk.is_none() && self.failed.is_none()
    }
}

/// Returns the number of threads: as many as the machine has cores, but no more than one reading thread can
/// keep busy.
pub(crate) fn threads() -> usize {
    const MOST: usize = 8;
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST))
}
