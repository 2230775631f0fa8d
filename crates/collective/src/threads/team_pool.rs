//! [`TeamPool`]: idle teams, which runs acquire. A run starts threads only if no idle team is suitable.

use super::Team;
use super::stack::on_large_stack;
use super::worker::{self, Start, ThreadSettings};
use crate::sync::active_members::{ActiveMembers, add_active_members, cores};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};

/// The minimum number of idle teams to keep, if there are that many. These are the most recently used ones.
const MIN_IDLE: usize = 4;

/// A pool of idle teams that have the same thread settings.
pub struct TeamPool {
    settings: ThreadSettings,
    /// The idle teams, the most recently used one last.
    idle: Mutex<Vec<Arc<Team>>>,
}

impl TeamPool {
    /// Returns the pool of teams whose replicas have one thread each. All runs without other settings share it.
    pub fn shared() -> &'static Self {
        static SHARED: TeamPool = TeamPool { settings: ThreadSettings::PLAIN, idle: Mutex::new(Vec::new()) };
        &SHARED
    }

    /// Creates a pool of teams whose replicas have `threads` threads each. `start` is called on each thread when it
    /// starts. If `threads` is more than 1 or there is a `start`, replica 0 also runs on a thread of the team, and not
    /// on the caller's thread. The threads exit when the pool is dropped.
    pub fn new(threads: usize, start: Option<Start>) -> Self {
        Self { settings: ThreadSettings { threads: threads.max(1), start }, idle: Mutex::new(Vec::new()) }
    }

    /// Acquires an idle team of `size` members for `body`, or creates one. Each run has its own team, so runs may be
    /// nested or concurrent.
    ///
    /// `body`, and member 0 of the runs that it starts, are called on this thread, on a large stack. They are called on
    /// a thread of the team instead if the pool was created with several threads or a `start`. The same applies if this
    /// thread belongs to a rayon pool of the program, because it would run other work of that pool while it waits for a
    /// parallel operation in `body`.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or cannot allocate memory for a stack, or if the team
    /// would need more than [`MAX_THREADS`](worker::MAX_THREADS) threads.
    pub fn with_team<R: Send>(
        &self,
        size: usize,
        body: impl FnOnce(&Arc<Team>) -> R + Send,
    ) -> io::Result<R> {
        let acquired = self.acquire(size)?;
        let team = &acquired.team;
        if self.runs_on_own_thread() {
            return team.run_offloaded(&self.settings, || body(team));
        }
        let _alone = worker::mark_single_threaded();
        on_large_stack(|| body(team))
    }

    /// Calls `work`, the closure of a single replica, on the thread that [`with_team`](Self::with_team) would use for
    /// `body`.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or cannot allocate memory for a stack.
    pub fn run_single<R: Send>(&self, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        if self.runs_on_own_thread() {
            return self.acquire(1)?.team.run_offloaded(&self.settings, work);
        }
        on_large_stack(work)
    }

    fn runs_on_own_thread(&self) -> bool {
        self.settings.threads > 1 || self.settings.start.is_some() || worker::serves_foreign_pool()
    }

    fn acquire(&self, size: usize) -> io::Result<AcquiredTeam<'_>> {
        let idle = {
            let mut idle = lock(&self.idle);
            idle.iter().rposition(|team| team.size() == size).map(|at| idle.remove(at))
        };
        let team = match idle {
            Some(team) => team,
            None => Arc::new(Team::with_settings(size, &self.settings)?),
        };
        Ok(AcquiredTeam { pool: self, _active: add_active_members(team.size()), team })
    }

    fn release(&self, team: Arc<Team>) {
        let mut idle = lock(&self.idle);
        idle.push(team);
        if idle.len() <= MIN_IDLE {
            return;
        }
        let surplus = idle.len() - teams_to_keep(idle.iter().rev().map(|team| team.threads()), cores());
        let surplus: Vec<_> = idle.drain(..surplus).collect();
        drop(idle);
        // Without the lock, because their threads end here.
        drop(surplus);
    }
}

impl std::fmt::Debug for TeamPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TeamPool").field("threads", &self.settings.threads).finish_non_exhaustive()
    }
}

/// Returns the number of idle teams to keep. `threads_of_latest` contains the number of threads of each team, most
/// recently used first. The result is at least [`MIN_IDLE`], and more while the total number of threads does not exceed
/// the number of cores.
fn teams_to_keep(threads_of_latest: impl Iterator<Item = usize>, cores: usize) -> usize {
    let mut threads = 0;
    let within = |(at, of_team): &(usize, usize)| {
        threads += of_team;
        *at < MIN_IDLE || threads <= cores
    };
    threads_of_latest.enumerate().take_while(within).count()
}

/// A guard that returns a team to the pool when it is dropped, even after a panic. All members have left the run by
/// then.
struct AcquiredTeam<'a> {
    pool: &'a TeamPool,
    team: Arc<Team>,
    _active: ActiveMembers,
}

impl Drop for AcquiredTeam<'_> {
    fn drop(&mut self) {
        self.pool.release(self.team.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_teams_are_kept_as_far_as_the_machine_has_cores_and_a_few_in_any_case() {
        assert_eq!(teams_to_keep([7; 40].into_iter(), 2), MIN_IDLE);
        assert_eq!(teams_to_keep([7; 40].into_iter(), 64), 9);
        assert_eq!(teams_to_keep([1; 40].into_iter(), 16), 16);
        assert_eq!(teams_to_keep([1; 3].into_iter(), 1), 3);
        // A team larger than the machine is also reused.
        assert_eq!(teams_to_keep([500, 1, 1, 1, 1].into_iter(), 8), MIN_IDLE);
    }
}
