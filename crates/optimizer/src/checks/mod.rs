//! Checks of an optimizer's steps, and their warnings.
//!
//! | module | detects |
//! |---|---|
//! | `missing` | variables without a gradient |
//! | `not_finite`, `finite` | NaN and infinity in losses and gradients |
//! | `examples` | numbers of examples that do not fit the rows of the per-replica batches |
//! | `stale` | tensors that are computed once instead of in each step |
//! | `batch_norm` | layers that are trained, but normalize as in evaluation |
//! | `pending_losses` | losses on a device that have not been read yet |

pub(crate) mod batch_norm;
pub(crate) mod examples;
pub(crate) mod finite;
pub(crate) mod missing;
pub(crate) mod not_finite;
pub(crate) mod pending_losses;
pub(crate) mod stale;

use std::sync::atomic::AtomicBool;

/// The state of all checks of an optimizer.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Whether a step has passed the check of missing gradients. Later steps check neither these nor batch-norm layers.
    pub(crate) missing_done: AtomicBool,
    pub(crate) examples: examples::ExamplesCheck,
    pub(crate) stale: stale::StaleCheck,
    pub(crate) not_finite: not_finite::NotFiniteCount,
    pub(crate) pending_losses: pending_losses::PendingLosses,
}
