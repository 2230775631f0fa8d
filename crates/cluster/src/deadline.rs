//! Until when a wait may last. The one place of the project that reads the clock.

#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

/// How long a wait lasts where the user has not said otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The moment until which a wait may last.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Instant>,
    timeout: Duration,
}

impl Deadline {
    /// A deadline `timeout` from now. One too far away for the clock never comes.
    pub fn after(timeout: Duration) -> Self {
        Self { at: Instant::now().checked_add(timeout), timeout }
    }

    /// How long the wait was meant to last, for messages.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The moment itself; `None` where it never comes.
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// How long is left; zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// The seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passed_deadline_has_nothing_left() {
        let deadline = Deadline::after(Duration::ZERO);
        assert!(deadline.has_passed());
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }

    #[test]
    fn a_deadline_beyond_the_clock_never_comes() {
        let deadline = Deadline::after(Duration::MAX);
        assert!(!deadline.has_passed());
        assert_eq!(deadline.timeout(), Duration::MAX);
    }
}
