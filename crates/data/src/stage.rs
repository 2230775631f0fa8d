//! [`Stage`]: one operation at work during one pass over the data.

use crate::Result;
use crate::chunk::Chunk;

/// One operation at work during one pass, pulling from the stages before it.
///
/// The consumer says how many elements it can use, so a batch of a million rows is one call, and nothing is computed
/// that nobody asked for. What elements come, and in what order, never depends on how they are asked for.
pub(crate) trait Stage: Send {
    /// Between 1 and `max` further elements (`max` is at least 1), or `None` at the end.
    ///
    /// Not to be called again after `None` or an error.
    fn next(&mut self, max: usize) -> Option<Result<Chunk>>;

    /// Passes over `count` elements without handing them on, and says how many there were: fewer only at the end,
    /// after which nothing more is to be asked for.
    ///
    /// What comes next is what would have come after reading them; functions of users whose results nobody would see
    /// need not be called.
    fn skip(&mut self, count: usize) -> Result<usize> {
        read_over(self, count)
    }

    /// How many passes of a repeated dataset have come to their end with all of their elements handed on, or dropped: what
    /// the next stage knows of them. 0 where a stage cannot tell, or where what it gives depends on the number of the pass.
    ///
    /// A stage that drops elements needs it to find that nothing will ever come.
    fn passes(&self) -> usize {
        0
    }
}

/// [`Stage::skip`] by reading: for elements that have to be made.
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

/// How many elements are skipped at once where they have to be made: they are in memory until they are dropped.
const SKIP_AT_ONCE: usize = 1024;

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
