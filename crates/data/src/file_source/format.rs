//! [`Format`]: a format of files.

use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::pipeline::Batching;
use crate::stage::Stage;
use crate::{Compression, ElementSpec, Error, Location, Result};

/// A file format: it converts the contents of files into elements.
pub(crate) trait Format: Send + Sync + 'static {
    /// Returns a description of the format and its parameters, such as `TFRecord`.
    fn describe(&self) -> String;

    /// Returns a description of everything in the format that determines the elements of files, for
    /// [`identity`](crate::pipeline::Operation::identity). Excludes [`strictness`](Self::strictness).
    fn identity(&self) -> String {
        self.describe()
    }

    /// Returns a description of the settings that determine which records are treated as broken.
    fn strictness(&self) -> String {
        String::new()
    }

    /// Returns the dtypes and shapes of the elements; `None` if they are not known without reading a file.
    fn spec(&self) -> Option<ElementSpec>;

    /// Returns whether elements are batches, and their size.
    fn batching(&self) -> Batching {
        Batching::Elements
    }

    /// Starts reading a file. `broken` handles broken records.
    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading>;

    /// Returns the count to which skipped records are added; `None` if broken records are not skipped.
    fn skipped(&self) -> Option<&SkippedRecords> {
        None
    }

    /// Returns the reason why a file cannot be parsed: damage of its compressed stream if there is any, otherwise
    /// `error`.
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

/// A file that is being read, in one of two ways.
pub(crate) enum Reading {
    /// Single elements, which are created on the thread that requests them.
    Elements(Box<dyn Stage>),
    /// Sections, which any thread can parse.
    Sections(Box<dyn Sections>),
}

/// An iterator over the sections of a file. It finds only their boundaries, and does not parse them.
pub(crate) trait Sections: Send {
    /// Returns the work of parsing the next section; `None` at the end. Must not be called again after an error.
    fn next(&mut self) -> Option<Result<Work>>;

    /// Skips up to `count` elements, and returns the number of skipped elements. Returns `None` if skipping is not
    /// faster than parsing.
    fn skip(&mut self, _count: usize) -> Result<Option<usize>> {
        Ok(None)
    }
}

/// The work of parsing one section into elements.
pub(crate) struct Work {
    /// The size of the section in bytes, with which the memory of all sections in progress is limited.
    pub(crate) bytes: usize,
    pub(crate) make: Box<dyn FnOnce() -> ParsedSection + Send>,
}

/// The elements of a section up to the first broken one that may not be skipped, and its error.
#[derive(Default)]
pub(crate) struct ParsedSection {
    pub(crate) chunk: Option<Chunk>,
    pub(crate) failed: Option<Error>,
}

impl ParsedSection {
    /// Removes and returns up to `max` of the remaining elements. After the last one, returns the error if there is
    /// one, and then `None`.
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

/// Returns the default number of parsing threads: the number of cores, limited to the number that one reading
/// thread can supply.
pub(crate) fn threads() -> usize {
    const MAX: usize = 8;
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX))
}
