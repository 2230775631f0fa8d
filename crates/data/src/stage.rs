//! [`Stage`]: one operation that runs during one pass over the data.

use crate::chunk::Chunk;
use crate::{Error, Result};

/// One operation that runs during one pass and pulls from the stages before it.
///
/// The consumer passes the number of elements it can use. So a batch of a million rows is one call, and no
/// element is computed in vain. The elements and their order never depend on how many are requested at once.
pub(crate) trait Stage: Send {
    /// Returns the next 1 to `max` elements (`max` is at least 1), or `None` at the end.
    ///
    /// Must not be called again after `None` or an error.
    fn next(&mut self, max: usize) -> Option<Result<Chunk>>;

    /// Skips `count` elements, and returns how many there were. That is fewer only at the end, after which no
    /// more elements may be requested.
    ///
    /// The next element is the same as after reading the skipped ones. User functions need not be called for
    /// skipped elements.
    fn skip(&mut self, count: usize) -> Result<usize> {
        read_over(self, count)
    }

    /// Returns the number of finished passes of a repeated dataset, with all of their elements passed on or
    /// dropped. 0 if the stage cannot tell, or if its elements depend on the number of the pass.
    ///
    /// A filter needs this to detect that no element will ever come.
    fn passes(&self) -> usize {
        0
    }
}

/// Implements [`Stage::skip`] by reading, for elements that have to be computed.
pub(crate) fn read_over(stage: &mut (impl Stage + ?Sized), count: usize) -> Result<usize> {
    let mut left = count;
    while left > 0 {
        match stage.next(left.min(SKIP_AT_ONCE)) {
            Some(chunk) => left -= chunk?.len(),
            None => break,
        }
    }
    Ok(count - left)
}

/// The number of elements that are computed and skipped at a time. All of them are in memory until they are
/// dropped.
const SKIP_AT_ONCE: usize = 1024;

/// An input whose elements are counted, for a stage whose errors name the element.
pub(crate) struct Counted {
    pub(crate) input: Box<dyn Stage>,
    /// The number of elements before the next one.
    pub(crate) index: usize,
    /// The error of an element after the ones that were passed on last.
    pub(crate) failed: Option<Error>,
}

impl Counted {
    pub(crate) fn new(input: Box<dyn Stage>) -> Self {
        Self { input, index: 0, failed: None }
    }

    /// Returns the pending error, if there is one, or else the next elements. The caller counts them.
    pub(crate) fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.failed.take() {
            Some(error) => Some(Err(error)),
            None => self.input.next(max),
        }
    }

    /// Skips and counts elements.
    pub(crate) fn skip(&mut self, count: usize) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let skipped = self.input.skip(count)?;
        self.index = self.index.saturating_add(skipped);
        Ok(skipped)
    }
}

impl Stage for Box<dyn Stage> {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.as_mut().next(max)
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        self.as_mut().skip(count)
    }

    fn passes(&self) -> usize {
        self.as_ref().passes()
    }
}
