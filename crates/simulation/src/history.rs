//! The history of a simulation, in readable form.

use std::fmt;
use std::time::Duration;

/// The lines of the history, which begin with their times.
#[derive(Debug, Default)]
pub struct History {
    kept: bool,
    lines: Vec<String>,
}

impl History {
    /// Creates an empty history. Lines are only recorded if `kept` is `true`.
    pub fn new(kept: bool) -> Self {
        Self { kept, lines: Vec::new() }
    }

    /// Adds a line about `who`, if lines are recorded. `what` returns its text.
    pub fn note(&mut self, now: Duration, who: impl fmt::Display, what: impl FnOnce() -> String) {
        if self.kept {
            self.lines.push(format!("{:>11.6} s  {who}: {}", now.as_secs_f64(), what()));
        }
    }

    /// Returns all lines, in order.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
