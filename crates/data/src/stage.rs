//! [`Stage`]: an operation while it runs in a pass.

use crate::chunk::Chunk;
use crate::{Error, Result};
use distribute_tensor::{Leaf, Tree};

/// An operation while it runs in a pass. It pulls elements from the stages before it.
///
/// The consumer passes the number of elements that it can use. A batch of a million rows therefore takes one call, and
/// no element is computed unnecessarily. The elements and their order never depend on the number of elements that are
/// requested at once.
pub(crate) trait Stage: Send {
    /// Returns the next elements: at least 1 and at most `max`. Returns `None` at the end.
    ///
    /// `max` must be at least 1. This function must not be called again after `None` or an error.
    fn next(&mut self, max: usize) -> Option<Result<Chunk>>;

    /// Skips up to `count` elements, and returns the number of skipped elements. It is less than `count` only at the
    /// end, after which no more elements may be requested.
    ///
    /// The next element is the same as if the skipped elements had been read. User functions need not be called
    /// for skipped elements.
    fn skip(&mut self, count: usize) -> Result<usize> {
        read_over(self, count)
    }

    /// Returns the number of complete passes over a repeated dataset: those whose elements have all been returned or
    /// dropped. Returns 0 if the stage does not know this number, or if its elements depend on the number of the
    /// pass.
    ///
    /// A filter uses this to detect that no element will ever be kept.
    fn passes(&self) -> usize {
        0
    }
}

/// Returns the next element of a stage as a single value; `None` at the end.
pub(crate) fn one(stage: &mut Box<dyn Stage>) -> Result<Option<Tree<Leaf>>> {
    match stage.next(1) {
        None => Ok(None),
        Some(chunk) => Ok(chunk?.into_values()?.pop()),
    }
}

/// Skips elements by reading them, as an implementation of [`Stage::skip`] for elements that must be computed.
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

/// The maximum number of elements that are computed at a time to skip them. All of them are in memory until they
/// are dropped.
const SKIP_AT_ONCE: usize = 1024;

/// An input whose elements are counted, for a stage whose errors contain the index of an element.
pub(crate) struct Counted {
    pub(crate) input: Box<dyn Stage>,
    /// The index of the next element.
    pub(crate) index: usize,
    /// The error to return after the elements that were returned last.
    pub(crate) failed: Option<Error>,
}

impl Counted {
    pub(crate) fn new(input: Box<dyn Stage>) -> Self {
        Self { input, index: 0, failed: None }
    }

    /// Returns the pending error if there is one, otherwise the next elements. The caller must add their number to
    /// `index`.
    pub(crate) fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.failed.take() {
            Some(error) => Some(Err(error)),
            None => self.input.next(max),
        }
    }

    /// Skips elements and counts them, or returns the pending error.
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
