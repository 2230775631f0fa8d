//! The history of a simulation, in readable form.

use std::fmt;
use std::time::Duration;

/// The lines of the history, with their times. They are only recorded on request.
#[derive(Debug, Default)]
pub struct History {
    kept: bool,
    lines: Vec<String>,
}

impl History {
    /// Creates an empty history.
    pub fn new(kept: bool) -> Self {
        Self { kept, lines: Vec::new() }
    }

    /// Adds a line about a process.
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
