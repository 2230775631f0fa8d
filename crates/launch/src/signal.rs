//! [`Signal`]: the signals that can be sent to tasks.

use std::fmt;

/// A signal that can be sent to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGHUP: the terminal was closed.
    Hangup,
    /// SIGINT: the user pressed Ctrl-C.
    Interrupt,
    /// SIGTERM: a request to exit.
    Terminate,
    /// SIGKILL: kills the process, which cannot ignore it.
    Kill,
    /// SIGSTOP: suspends the process, which cannot ignore it.
    Stop,
    /// SIGCONT: resumes the process after [`Signal::Stop`].
    Continue,
    /// SIGUSR1, which has no fixed meaning.
    User1,
    /// SIGUSR2, which has no fixed meaning.
    User2,
}

impl Signal {
    /// Returns the name of the signal without `SIG`, as `kill -s` accepts it.
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

    /// Returns the exit code of a job that the signal has ended, which is 128 plus the number of the signal, as in
    /// shells.
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
