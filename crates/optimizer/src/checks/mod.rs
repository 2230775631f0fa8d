//! The checks of an optimizer's steps, and their warnings.
//!
//! | module | what it finds |
//! |---|---|
//! | `missing` | variables without a gradient |
//! | `not_finite`, `finite` | NaN and infinity in losses and gradients |
//! | `examples` | numbers of examples that do not fit the rows of the pieces |
//! | `stale` | tensors that are computed once, and not in each step |
//! | `batch_norm` | layers that are trained, but normalise as in evaluation |
//! | `unread` | losses on a device that are not read yet |

pub(crate) mod batch_norm;
pub(crate) mod examples;
pub(crate) mod finite;
pub(crate) mod missing;
pub(crate) mod not_finite;
pub(crate) mod stale;
pub(crate) mod unread;

use std::sync::atomic::AtomicBool;

/// The state of the checks that warn once.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Whether the variables that have gradients have been looked at, which is in the first step.
    pub(crate) gradients: AtomicBool,
    pub(crate) examples: examples::Watch,
    pub(crate) stale: stale::Watch,
    pub(crate) not_finite: not_finite::Count,
    pub(crate) unread: unread::Unread,
}
