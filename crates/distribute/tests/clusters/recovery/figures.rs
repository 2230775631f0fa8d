//! How long it takes until a fault is noticed, and until the training goes on: what was measured, and what is promised.

use crate::recovery::cell::Fault;
use std::fmt;
use std::time::Duration;

/// Until a fault is noticed that the system tells of.
const RESET: Duration = Duration::from_millis(200);
/// Until one is that only heartbeats tell of.
const SILENCE: Duration = Duration::from_secs(3);
/// Until the next step after that, without the start of a process.
const NEXT_STEP: Duration = Duration::from_secs(5);

/// How long what took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// From the fault to the error on the last of the others.
    pub noticed: Option<Duration>,
    /// From the fault, or its end where it ends by itself, to the next step of all, without the start of a process.
    pub next_step: Option<Duration>,
    /// How long a process takes until it runs.
    pub start: Option<Duration>,
    /// From the notice to the checkpoint.
    pub saved: Option<Duration>,
}

impl Figures {
    /// Whether they are no longer than is promised, and `slack`.
    pub fn are_kept(&self, fault: Fault, slack: Duration) -> bool {
        let within =
            |took: Option<Duration>, promised: Duration| took.is_none_or(|took| took <= promised + slack);
        let noticed = if fault.is_silent() { SILENCE } else { RESET };
        let next_step = if fault == Fault::LinkSilent { SILENCE + NEXT_STEP } else { NEXT_STEP };
        within(self.noticed, noticed) && within(self.next_step, next_step)
    }

    /// The larger of each.
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
    /// In milliseconds: until it is noticed, and until the next step.
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
