//! Process groups. A program and all processes that it starts are stopped and resumed together, so they do not run
//! while others are measured. They do not outlive the benchmark.

#[cfg(unix)]
use distribute::cluster::Deadline;
#[cfg(unix)]
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::Result;
#[cfg(unix)]
use std::io::{Error, ErrorKind};
use std::process::Command;
#[cfg(unix)]
use std::time::Duration;

/// The group of processes that a program leads.
pub struct Group(u32);

/// The environment variable with the id of the parent process, for [`end_with_parent`].
const PARENT: &str = "DISTRIBUTE_BENCH_PARENT";

/// Ensures that this process, which a `Program` started, is killed when its parent exits for any reason. Only Linux
/// supports this. On other systems, the process continues until the end of its round.
///
/// # Errors
/// - The errors of the operating system.
/// - An error if the parent has already exited.
pub fn end_with_parent() -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getppid, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have exited before that.
        let parent = getppid().map(|parent| parent.to_string());
        if std::env::var(PARENT).is_ok_and(|expected| parent.as_ref() != Some(&expected)) {
            return Err(std::io::Error::other("the process that has started this one has ended"));
        }
    }
    Ok(())
}

/// The maximum time until a signal takes effect. On a busy machine, a process must first be scheduled before it stops.
#[cfg(unix)]
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

impl Group {
    /// Makes the program of `command` lead its own group, and passes it the id of this process.
    pub fn lead(command: &mut Command) -> &mut Command {
        command.env(PARENT, std::process::id().to_string());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        command
    }

    /// Returns the group that the process `leader` leads. The process must be a child of this one whose exit status has
    /// not been read.
    pub fn of(leader: u32) -> Self {
        Self(leader)
    }
}

#[cfg(unix)]
impl Group {
    /// Stops all processes. Returns when the leader has stopped or exited.
    ///
    /// # Errors
    /// Returns an error if the group has no processes, or if the leader does not stop within 10 seconds.
    pub fn stop(&self) -> Result<()> {
        let leader = self.send(Signal::STOP)?;
        let deadline = Deadline::after(ARRIVES_WITHIN);
        // `NOWAIT` keeps the child's state, so the thread that waits for its end still finds it.
        let options =
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(leader), options)?.is_none() {
            if deadline.has_passed() {
                let reason =
                    format!("process {} has not stopped within {} s", self.0, ARRIVES_WITHIN.as_secs());
                return Err(Error::new(ErrorKind::TimedOut, reason));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Resumes all stopped processes.
    ///
    /// # Errors
    /// Returns an error if the group has no processes.
    pub fn resume(&self) -> Result<()> {
        self.send(Signal::CONT).map(drop)
    }

    /// Kills all processes, even if they are stopped.
    ///
    /// # Errors
    /// Returns an error if the group has no processes.
    pub fn kill(&self) -> Result<()> {
        self.send(Signal::KILL).map(drop)
    }

    fn send(&self, signal: Signal) -> Result<Pid> {
        let leader = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        let leader = leader.ok_or_else(|| Error::other(format!("{} is no process", self.0)))?;
        kill_process_group(leader, signal)?;
        Ok(leader)
    }
}

/// The fallback for other systems, where these methods do nothing. Processes that are stopped continue to run, and
/// [`Program`](super::program::Program) kills only the program itself.
#[cfg(not(unix))]
impl Group {
    pub fn stop(&self) -> Result<()> {
        Ok(())
    }

    pub fn resume(&self) -> Result<()> {
        Ok(())
    }

    pub fn kill(&self) -> Result<()> {
        Ok(())
    }
}
