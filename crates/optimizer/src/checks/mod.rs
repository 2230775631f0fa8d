//! Checks of an optimizer's steps, and their warnings.
//!
//! | module | detects |
//! |---|---|
//! | `not_finite`, `finite` | NaN and infinity in losses and gradients |
//! | `stale` | tensors that are computed once instead of in each step |
//! | `batch_norm` | layers that are trained, but normalize as in evaluation |
//! | `pending_losses` | losses on a device that have not been read yet |
//!
//! Variables without a gradient, and numbers of examples that do not fit the rows of batches, are detected by
//! `distribute-decisions`.

pub(crate) mod batch_norm;
pub(crate) mod finite;
pub(crate) mod not_finite;
pub(crate) mod pending_losses;
pub(crate) mod stale;

use distribute_decisions::internal::ExamplesCheck;
use std::sync::atomic::AtomicBool;

/// The reaction to variables that have no gradient on any replica in the first step of an optimizer. Set it with
/// [`on_missing_gradients`](crate::Optimizer::on_missing_gradients).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingGradients {
    /// Logs a warning.
    #[default]
    Warn,
    /// Returns [`Error::MissingGradients`](crate::Error::MissingGradients) on every replica, without changing
    /// anything.
    Error,
    /// Does nothing. Use this if some variables, such as those of experts, have a gradient only in some steps.
    Quiet,
}

/// The state of all checks of an optimizer.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Whether a step has passed the check of missing gradients. Later steps check neither these nor batch-norm layers.
    pub(crate) missing_done: AtomicBool,
    pub(crate) examples: ExamplesCheck,
    pub(crate) stale: stale::StaleCheck,
    pub(crate) not_finite: not_finite::NotFiniteCount,
    pub(crate) pending_losses: pending_losses::PendingLosses,
}
