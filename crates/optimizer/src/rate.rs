//! The learning rate, which is constant or follows a schedule.

use distribute_base::internal::panicked;
use distribute_base::{Error, Result};
use distribute_optim::Schedule;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A learning rate: constant, or from a schedule.
pub(crate) enum Rate {
    /// A constant rate, stored as the bits of an f64.
    Constant(AtomicU64),
    Schedule(Box<dyn Schedule>),
}

impl Rate {
    /// Returns the rate of the step after `finished` completed steps.
    pub(crate) fn after(&self, finished: u64) -> f64 {
        match self {
            Rate::Constant(bits) => f64::from_bits(bits.load(Ordering::Relaxed)),
            Rate::Schedule(schedule) => schedule.rate(finished),
        }
    }

    /// Acts like [`after`](Rate::after), but returns an error if the schedule panics, or if the rate is negative or not
    /// finite.
    pub(crate) fn for_step(&self, finished: u64, operation: &'static str) -> Result<f64> {
        let learning_rate =
            catch_unwind(AssertUnwindSafe(|| self.after(finished))).map_err(|panic| panicked(&*panic))?;
        require(learning_rate, operation)?;
        Ok(learning_rate)
    }

    /// Returns the constant rate, which is saved in checkpoints; `None` if there is a schedule.
    pub(crate) fn constant(&self) -> Option<f64> {
        match self {
            Rate::Constant(_) => Some(self.after(0)),
            Rate::Schedule(_) => None,
        }
    }

    pub(crate) fn set(&self, learning_rate: f64) -> Result<()> {
        let Rate::Constant(bits) = self else {
            let reason = "this optimizer's learning rate follows a schedule; create one without a schedule to set the rate";
            return Err(Error::invalid("set_learning_rate", reason));
        };
        require(learning_rate, "set_learning_rate")?;
        bits.store(learning_rate.to_bits(), Ordering::Relaxed);
        Ok(())
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.constant() {
            Some(learning_rate) => write!(f, "{learning_rate}"),
            None => f.write_str("a schedule"),
        }
    }
}

pub(crate) fn require(learning_rate: f64, operation: &'static str) -> Result<()> {
    if learning_rate.is_finite() && learning_rate >= 0. {
        return Ok(());
    }
    let reason = format!("the learning rate must be finite and not negative, not {learning_rate}");
    Err(Error::invalid(operation, reason))
}

/// Returns an error if the learning rates of the workers differ.
///
/// # Errors
/// - [`Error::InvalidArgument`]: two rates differ. The error lists the rates of all workers.
pub(crate) fn require_same(operation: &'static str, rates: &[f64]) -> Result<()> {
    if rates.iter().all(|rate| rate.to_bits() == rates[0].to_bits()) {
        return Ok(());
    }
    let rates: Vec<_> = rates.iter().map(ToString::to_string).collect();
    let reason = format!(
        "the workers have different learning rates ({}, by worker): set the same on all, or give all of them the same \
         schedule",
        rates.join(", ")
    );
    Err(Error::invalid(operation, reason))
}
