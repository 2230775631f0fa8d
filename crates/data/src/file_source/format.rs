//! [`Format`]: a format of files.

use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::pipeline::Batching;
use crate::stage::Stage;
use crate::{Compression, ElementSpec, Error, Location, Result};

/// A format of files, which turns files into elements.
pub(crate) trait Format: Send + Sync + 'static {
    /// Returns the name of the format and its parameters: `TFRecord`.
    fn describe(&self) -> String;

    /// Returns the dtypes and shapes of the elements, if they are known without reading.
    fn spec(&self) -> Option<ElementSpec>;

    /// Returns whether elements are batches.
    fn batching(&self) -> Batching {
        Batching::Elements
    }

    /// Starts to read one file. `broken` is the policy for broken records.
    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading>;

    /// Returns the count of broken records, if they are skipped.
    fn skipped(&self) -> Option<&SkippedRecords> {
        None
    }

    /// Returns the reason that a file cannot be parsed: damage of its compressed stream, if there is any,
    /// otherwise `error`.
    fn blame(&self, file: &Location, error: Error) -> Error {
        Compression::Auto.blame(file, |_| None, error)
    }

    /// Returns the number of threads that parse sections of files.
    fn threads(&self) -> usize {
        1
    }

    /// Checks that the format's parameters are in range.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The way in which one file is read.
pub(crate) enum Reading {
    /// Single elements, made on the thread that requests them.
    Elements(Box<dyn Stage>),
    /// Sections, which any thread can parse.
    Sections(Box<dyn Sections>),
}

/// The sections of a file, one after the other. Reading them only finds their boundaries.
pub(crate) trait Sections: Send {
    /// Returns the work that parses the next section; `None` at the end. Must not be called again after an
    /// error.
    fn next(&mut self) -> Option<Result<Work>>;

    /// Skips `count` elements and returns how many there were; `None` if making them is as cheap.
    fn skip(&mut self, _count: usize) -> Result<Option<usize>> {
        Ok(None)
    }
}

/// A section that is to be parsed into elements.
pub(crate) struct Work {
    /// The number of bytes of the section.
    pub(crate) bytes: usize,
    pub(crate) make: Box<dyn FnOnce() -> Made + Send>,
}

/// The elements of a section before the first broken one, and its error.
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

/// Returns the number of threads: the number of cores, limited to the number that one reading thread
/// can supply.
pub(crate) fn threads() -> usize {
    const MOST: usize = 8;
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST))
}
