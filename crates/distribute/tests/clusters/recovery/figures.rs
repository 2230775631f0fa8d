//! The measured and the guaranteed times until a fault is noticed and until the training continues.

use crate::recovery::cell::Fault;
use std::fmt;
use std::time::Duration;

/// The guaranteed time until a fault that the system reports is noticed.
const RESET: Duration = Duration::from_millis(200);
/// The guaranteed time until a fault is noticed by missing heartbeats.
const SILENCE: Duration = Duration::from_secs(3);
/// The guaranteed time from the moment when a fault is noticed to the next step, without the start of a process.
const NEXT_STEP: Duration = Duration::from_secs(5);

/// The times that were measured for a fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// The time from the fault to the last error on another worker.
    pub noticed: Option<Duration>,
    /// The time from the fault, or from its end if it is temporary, to the next step of all workers, without the start
    /// of a process.
    pub next_step: Option<Duration>,
    /// The time that a process takes to start.
    pub start: Option<Duration>,
    /// The time from the notice to the checkpoint.
    pub saved: Option<Duration>,
}

impl Figures {
    /// Returns whether the times exceed the guaranteed ones by at most `slack`.
    pub fn are_kept(&self, fault: Fault, slack: Duration) -> bool {
        let within =
            |took: Option<Duration>, promised: Duration| took.is_none_or(|took| took <= promised + slack);
        let noticed = if fault.is_silent() { SILENCE } else { RESET };
        let next_step = if fault == Fault::LinkSilent { SILENCE + NEXT_STEP } else { NEXT_STEP };
        within(self.noticed, noticed) && within(self.next_step, next_step)
    }

    /// Returns the larger of each pair of times.
    pub fn larger(self, other: Self) -> Self {
        Self {
            noticed: self.noticed.max(other.noticed),
            next_step: self.next_step.max(other.next_step),
            start: self.start.max(other.start),
            saved: self.saved.max(other.saved),
        }
    }
}

impl fmt::Display for Figures {
    /// Prints the times until the fault is noticed and until the next step, in milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        match *self {
            Self { noticed: Some(noticed), next_step: Some(next), .. } => {
                write!(f, "{:.0}, {:.0}", ms(noticed).ceil(), ms(next).ceil())
            }
            Self { saved: Some(saved), .. } => write!(f, "{:.0}", ms(saved).ceil()),
            _ => write!(f, "goes on"),
        }
    }
}
