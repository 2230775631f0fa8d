//! Teams that are lent to runs. A run starts threads only if no idle team fits.

use super::Team;
use super::stack::on_large_stack;
use super::worker::{self, Kind, Start};
use crate::sync::crowd::{AtWork, at_work, cores};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};

/// The number of most recently used idle teams that are kept, whatever their size.
const KEPT: usize = 4;

/// Idle teams whose replicas have threads of one kind.
pub struct Teams {
    kind: Kind,
    /// The most recently used one last.
    idle: Mutex<Vec<Arc<Team>>>,
}

impl Teams {
    /// Returns the teams whose replicas have one thread each, shared by all runs without other settings.
    pub fn shared() -> &'static Self {
        static SHARED: Teams = Teams { kind: Kind::PLAIN, idle: Mutex::new(Vec::new()) };
        &SHARED
    }

    /// Creates teams whose replicas have `threads` threads each; `start` is called on each thread when it starts.
    /// Replica 0 also runs on a thread of the team, not on the caller's. The threads exit when this is dropped.
    pub fn new(threads: usize, start: Option<Start>) -> Self {
        Self { kind: Kind { threads: threads.max(1), start }, idle: Mutex::new(Vec::new()) }
    }

    /// Borrows an idle team of `size` members for `body`, or makes one. Each run has a team of its own, so runs may
    /// nest and be concurrent.
    ///
    /// `body`, and member 0 of what it runs, are called on this thread, on a large stack. They are called on a thread
    /// of the team instead if its members have several threads each, or if this thread serves a rayon pool of the
    /// program: such a thread would pick up other work of its pool in the middle of `body`, while it waits for a
    /// parallel operation.
    ///
    /// # Errors
    /// If the system refuses a thread or the memory for a stack.
    pub fn borrow<R: Send>(&self, size: usize, body: impl FnOnce(&Arc<Team>) -> R + Send) -> io::Result<R> {
        let loan = self.lend(size)?;
        let team = &loan.team;
        if self.is_elsewhere() {
            return team.hosted(&self.kind, || body(team));
        }
        let _alone = worker::alone();
        on_large_stack(|| body(team))
    }

    /// Calls `work`, the closure of a lone replica, on the thread that [`borrow`](Self::borrow) would use.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn alone<R: Send>(&self, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        if self.is_elsewhere() {
            return self.lend(1)?.team.hosted(&self.kind, work);
        }
        on_large_stack(work)
    }

    fn is_elsewhere(&self) -> bool {
        self.kind.threads > 1 || self.kind.start.is_some() || worker::serves_others()
    }

    fn lend(&self, size: usize) -> io::Result<Loan<'_>> {
        let idle = {
            let mut idle = lock(&self.idle);
            idle.iter().rposition(|team| team.size() == size).map(|at| idle.remove(at))
        };
        let team = match idle {
            Some(team) => team,
            None => Arc::new(Team::of(size, &self.kind)?),
        };
        Ok(Loan { teams: self, _at_work: at_work(team.size()), team })
    }

    fn take_back(&self, team: Arc<Team>) {
        let mut idle = lock(&self.idle);
        idle.push(team);
        if idle.len() <= KEPT {
            return;
        }
        let surplus = idle.len() - kept(idle.iter().rev().map(|team| team.threads()), cores());
        let surplus: Vec<_> = idle.drain(..surplus).collect();
        drop(idle);
        // Without the lock, because their threads end here.
        drop(surplus);
    }
}

impl std::fmt::Debug for Teams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Teams").field("threads", &self.kind.threads).finish_non_exhaustive()
    }
}

/// Returns the number of idle teams to keep, given the number of threads of each, most recently used first: [`KEPT`]
/// in any case, and more while they have no more threads in total than the machine has cores.
fn kept(threads_of_latest: impl Iterator<Item = usize>, cores: usize) -> usize {
    let mut threads = 0;
    let within = |(at, of_team): &(usize, usize)| {
        threads += of_team;
        *at < KEPT || threads <= cores
    };
    threads_of_latest.enumerate().take_while(within).count()
}

/// Gives the team back, even if the run panics: all members have left by then.
struct Loan<'a> {
    teams: &'a Teams,
    team: Arc<Team>,
    _at_work: AtWork,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.teams.take_back(self.team.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_teams_are_kept_as_far_as_the_machine_has_cores_and_a_few_in_any_case() {
        assert_eq!(kept([7; 40].into_iter(), 2), KEPT);
        assert_eq!(kept([7; 40].into_iter(), 64), 9);
        assert_eq!(kept([1; 40].into_iter(), 16), 16);
        assert_eq!(kept([1; 3].into_iter(), 1), 3);
        // A team larger than the machine is reused, too.
        assert_eq!(kept([500, 1, 1, 1, 1].into_iter(), 8), KEPT);
    }
}
