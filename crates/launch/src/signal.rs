//! Signals by name.

use std::fmt;

/// A signal that can be sent to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// The terminal is gone.
    Hangup,
    /// Ctrl-C.
    Interrupt,
    /// Asks for the end.
    Terminate,
    /// Ends a process that does not end by itself. No process can refuse it.
    Kill,
    /// Suspends. No process can refuse it.
    Stop,
    /// Goes on after [`Signal::Stop`].
    Continue,
    /// For programs' own use.
    User1,
    /// For programs' own use.
    User2,
}

impl Signal {
    /// Its name without `SIG`, as `kill -s` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Hangup => "HUP",
            Signal::Interrupt => "INT",
            Signal::Terminate => "TERM",
            Signal::Kill => "KILL",
            Signal::Stop => "STOP",
            Signal::Continue => "CONT",
            Signal::User1 => "USR1",
            Signal::User2 => "USR2",
        }
    }

    /// The exit code of a job that it ended, as shells count: 128 and its number.
    pub(crate) fn exit_code(self) -> i32 {
        // Those of all Unix systems; the others end no job.
        128 + match self {
            Signal::Hangup => 1,
            Signal::Interrupt => 2,
            Signal::Kill => 9,
            _ => 15,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIG{}", self.name())
    }
}
