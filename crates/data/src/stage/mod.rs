//! The stages that run a pipeline, each pulling from the one before it.

use crate::Result;
use crate::run::Run;

pub(crate) mod batch;
pub(crate) mod filter;
pub(crate) mod map;
pub(crate) mod prefetch;
pub(crate) mod repeat;
pub(crate) mod shuffle;
pub(crate) mod source;
pub(crate) mod take;

/// One operation at work during one pass over the data.
///
/// The consumer says how many elements it can use, so a batch of a million rows is one call, and nothing is ever
/// computed that nobody asked for. What elements come, and in what order, never depends on how they are asked for.
pub(crate) trait Stage: Send {
    /// Between 1 and `max` further elements (`max` is at least 1), or `None` at the end.
    ///
    /// Not to be called again after `None` or an error.
    fn next(&mut self, max: usize) -> Option<Result<Run>>;
}
