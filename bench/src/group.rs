//! A program and all that it starts, stopped and continued as one: so nothing of it runs while others are measured. And
//! nothing of it runs on when who measures has ended.

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

/// Which process has started this one, for [`end_with_parent`].
const PARENT: &str = "DISTRIBUTE_BENCH_PARENT";

/// Has this process, which was started by a `Program`, killed when the one that has started it ends,
/// however that ends. Only Linux can; elsewhere it goes on to the end of its round.
///
/// # Errors
/// Those of the system, and that the other one has ended already.
pub fn end_with_parent() -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getppid, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before that.
        let parent = getppid().map(|parent| parent.to_string());
        if std::env::var(PARENT).is_ok_and(|expected| parent.as_ref() != Some(&expected)) {
            return Err(std::io::Error::other("the process that has started this one has ended"));
        }
    }
    Ok(())
}

/// How long a signal may take to arrive: on a busy machine a process has to be scheduled to stop.
#[cfg(unix)]
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

impl Group {
    /// Has the program that will be started lead a group of its own, and know who has started it.
    pub fn lead(command: &mut Command) -> &mut Command {
        command.env(PARENT, std::process::id().to_string());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        command
    }

    /// The group led by the process of this number, a child of this one that has not been waited for.
    pub fn of(leader: u32) -> Self {
        Self(leader)
    }
}

#[cfg(unix)]
impl Group {
    /// Stops all of them, and returns when the leader has stopped or ended.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn stop(&self) -> Result<()> {
        let leader = self.send(Signal::STOP)?;
        let deadline = Deadline::after(ARRIVES_WITHIN);
        // It stays a child that has stopped or ended: the thread that waits for its end finds it so.
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

    /// Has them go on where they were stopped.
    ///
    /// # Errors
    /// When there are none.
    pub fn resume(&self) -> Result<()> {
        self.send(Signal::CONT).map(drop)
    }

    /// Ends all of them, stopped or not.
    ///
    /// # Errors
    /// When there are none.
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

/// Elsewhere all run on, and the program is killed alone.
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
