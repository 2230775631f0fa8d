//! What has happened, for those who read it.

use std::fmt;
use std::time::Duration;

/// Lines with their times. Only kept where somebody wants to read them.
#[derive(Debug, Default)]
pub struct History {
    kept: bool,
    lines: Vec<String>,
}

impl History {
    /// An empty history.
    pub fn new(kept: bool) -> Self {
        Self { kept, lines: Vec::new() }
    }

    /// A process did this.
    pub fn note(&mut self, now: Duration, who: impl fmt::Display, what: impl FnOnce() -> String) {
        if self.kept {
            self.lines.push(format!("{:>11.6} s  {who}: {}", now.as_secs_f64(), what()));
        }
    }

    /// All lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
