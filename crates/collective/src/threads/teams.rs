//! Teams that are lent to runs: a run starts threads only where no idle team fits.

use super::Team;
use super::stack::on_large_stack;
use super::worker::{self, Kind, Start};
use crate::sync::crowd::{AtWork, at_work, cores};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};

/// Idle teams that are kept whatever their size, the latest ones.
const KEPT: usize = 4;

/// The teams of runs whose replicas have threads of one kind.
pub struct Teams {
    kind: Kind,
    /// The latest last.
    idle: Mutex<Vec<Arc<Team>>>,
}

impl Teams {
    /// Teams whose replicas have one thread each: those of all runs that want nothing else.
    pub fn shared() -> &'static Self {
        static SHARED: Teams = Teams { kind: Kind::PLAIN, idle: Mutex::new(Vec::new()) };
        &SHARED
    }

    /// Teams whose replicas have `threads` threads each; `start` is called on each when it starts. Replica 0 is on a thread of
    /// the team, too, and not on the caller's. Their threads end when this is dropped.
    pub fn new(threads: usize, start: Option<Start>) -> Self {
        Self { kind: Kind { threads: threads.max(1), start }, idle: Mutex::new(Vec::new()) }
    }

    /// Borrows an idle team of `size` members for `body`, or makes one. Runs may nest and run side by side: each has its own.
    ///
    /// `body` is called on this thread, on a large stack, and so is member 0 of what it runs; on a thread of the team where these teams are of
    /// several threads a member, and where this thread serves a rayon pool of the program's. Such a thread would else take up
    /// other work of its pool in the middle of `body`, while it waits for a parallel operation in it.
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

    /// Calls `work`, a replica that is alone, where [`borrow`](Self::borrow) would.
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
        // Without the lock: their threads end here.
        drop(surplus);
    }
}

impl std::fmt::Debug for Teams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Teams").field("threads", &self.kind.threads).finish_non_exhaustive()
    }
}

/// How many idle teams to keep, of which the latest have so many threads: [`KEPT`] in any case, and of the others what has no
/// more threads than the machine has cores.
fn kept(threads_of_latest: impl Iterator<Item = usize>, cores: usize) -> usize {
    let mut threads = 0;
    let within = |(at, of_team): &(usize, usize)| {
        threads += of_team;
        *at < KEPT || threads <= cores
    };
    threads_of_latest.enumerate().take_while(within).count()
}

/// Gives the team back also when the run panics: all members have left by then.
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
        // A team of the whole machine and more is used again, too.
        assert_eq!(kept([500, 1, 1, 1, 1].into_iter(), 8), KEPT);
    }
}
