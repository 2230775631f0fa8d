//! The learning rate of a step.

use distribute_base::internal::panicked;
use distribute_base::{Error, Result};
use distribute_optim::Schedule;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that was set, or a schedule.
pub(crate) enum Rate {
    /// The bits of an f64.
    Set(AtomicU64),
    Schedule(Box<dyn Schedule>),
}

impl Rate {
    /// Returns the rate of the step after this number of finished ones.
    pub(crate) fn after(&self, finished: u64) -> f64 {
        match self {
            Rate::Set(bits) => f64::from_bits(bits.load(Ordering::Relaxed)),
            Rate::Schedule(schedule) => schedule.rate(finished),
        }
    }

    /// Returns the rate of a step, like [`after`](Rate::after), if a schedule may panic.
    pub(crate) fn of_step(&self, finished: u64, operation: &'static str) -> Result<f64> {
        let learning_rate =
            catch_unwind(AssertUnwindSafe(|| self.after(finished))).map_err(|panic| panicked(&*panic))?;
        require(learning_rate, operation)?;
        Ok(learning_rate)
    }

    /// The number that was set, where there is no schedule: all of it that a checkpoint has to hold.
    pub(crate) fn by_hand(&self) -> Option<f64> {
        match self {
            Rate::Set(_) => Some(self.after(0)),
            Rate::Schedule(_) => None,
        }
    }

    pub(crate) fn set(&self, learning_rate: f64) -> Result<()> {
        let Rate::Set(bits) = self else {
            let reason =
                "this optimizer's learning rate follows a schedule; make one without to set it by hand";
            return Err(Error::invalid("set_learning_rate", reason));
        };
        require(learning_rate, "set_learning_rate")?;
        bits.store(learning_rate.to_bits(), Ordering::Relaxed);
        Ok(())
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by_hand() {
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
