//! Signals by name.

use std::fmt;

/// A signal that can be sent to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// The terminal is closed.
    Hangup,
    /// Ctrl-C.
    Interrupt,
    /// A request to exit.
    Terminate,
    /// A signal that a process cannot ignore, which ends it.
    Kill,
    /// A signal that a process cannot ignore, which suspends it.
    Stop,
    /// A signal that resumes a process after [`Signal::Stop`].
    Continue,
    /// A signal for use by programs.
    User1,
    /// A second signal for use by programs.
    User2,
}

impl Signal {
    /// Returns the name without `SIG`, as `kill -s` accepts it.
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

    /// Returns the exit code of a job that the signal has ended, like shells: 128 plus the number of the
    /// signal.
    pub(crate) fn exit_code(self) -> i32 {
        // Numbers that are the same on all Unix systems; the other signals do not end a job.
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
