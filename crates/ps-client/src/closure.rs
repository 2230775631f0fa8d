//! The changes that closures make on servers. A closure runs again if its worker fails, but each change is applied
//! once.

use super::ParameterServers;
use super::links::{Ask, unexpected};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Origin, Request, Response, Tables};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The closure that is running, and the number of its next change on servers.
#[derive(Debug)]
pub(super) struct Numbering {
    origin: Origin,
    next: u64,
    /// The counters that have counted steps of the closure, each with the number of these steps.
    steps: Vec<(Arc<AtomicU64>, u64)>,
}

impl Numbering {
    pub fn new(origin: Origin) -> Self {
        Self { origin, next: 0, steps: Vec::new() }
    }

    /// Records that `finished` has counted a step.
    pub fn made_step(&mut self, finished: &Arc<AtomicU64>) {
        match self.steps.iter_mut().find(|(counted, _)| Arc::ptr_eq(counted, finished)) {
            Some((_, steps)) => *steps += 1,
            None => self.steps.push((finished.clone(), 1)),
        }
    }

    /// Keeps the counted steps when the closure has succeeded.
    pub fn keep_steps(&mut self) {
        self.steps.clear();
    }

    /// Numbers the changes, so that servers apply each of them once.
    ///
    /// Operations are numbered, not the changes of each table. Another execution of the closure may have other rows
    /// and skip a table that this one has reached, but it performs the same operations.
    pub fn mark(&mut self, asks: &mut [Ask]) {
        // Usually an operation changes each table once.
        let mut before: HashMap<(usize, String), u64> = HashMap::new();
        let mut numbers = 0;
        for Ask { server, request, .. } in asks.iter_mut().filter(|ask| ask.request.can_be_once()) {
            let table = request.table().unwrap_or_default().to_owned();
            let of_table = before.entry((*server, table)).or_default();
            let number = self.next + *of_table;
            *of_table += 1;
            numbers = numbers.max(*of_table);
            let change = Box::new(std::mem::replace(request, Request::List));
            *request = Request::Once { origin: self.origin, number, change };
        }
        self.next += numbers;
    }
}

impl Drop for Numbering {
    /// Takes back the steps of a closure that has not succeeded. It runs again and makes them then. If they were
    /// counted twice, the step number would be ahead of the updates on servers, and rules such as Adam use that
    /// number.
    fn drop(&mut self) {
        for (finished, steps) in self.steps.drain(..) {
            // A checkpoint with fewer steps may have been restored in between.
            let _ = finished.fetch_update(Relaxed, Relaxed, |finished| Some(finished.saturating_sub(steps)));
        }
    }
}

/// A guard: while it exists, the changes that its strategy makes on parameter servers belong to a closure. See
/// [`ParameterServers::run_closure`].
///
/// If it is dropped before [`end`](Self::end), the optimizers' `finished_steps` no longer count the steps of the
/// closure, because the closure will run again.
#[derive(Debug)]
#[must_use = "changes are those of the closure until this is dropped"]
pub struct RunningClosure<'a>(&'a ParameterServers);

impl RunningClosure<'_> {
    /// Waits until servers have acknowledged all changes of the closure, even if values may be stale. The closure has
    /// then succeeded, and none of its changes can be lost.
    ///
    /// # Errors
    /// Returns the error of the first update that was not acknowledged.
    pub fn end(self) -> Result<()> {
        self.0.session().flush()?;
        self.0.links().keep_steps();
        Ok(())
    }
}

impl Drop for RunningClosure<'_> {
    fn drop(&mut self) {
        self.0.links().run(None);
    }
}

impl ParameterServers {
    /// Assigns all changes that the strategy makes on servers to a closure until the returned guard is dropped:
    /// gradients and writes to variables.
    ///
    /// If the closure runs again, on this worker or another one, servers acknowledge the changes that were already
    /// made but do not apply them again. Changes are identified by the order in which the strategy starts them. A
    /// closure must therefore perform the same operations each time. Values and examples may differ. An update that is
    /// still in flight when the guard is dropped remains a change of this closure.
    ///
    /// A server refuses the changes if the closure has already ended on another worker, or if another job has begun:
    /// see [`Error::is_stale`].
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the strategy is already running a closure.
    pub fn run_closure(&self, origin: Origin) -> Result<RunningClosure<'_>> {
        if self.links().run(Some(Numbering::new(origin))) {
            return Ok(RunningClosure(self));
        }
        let reason = "the strategy runs another closure; run one after another, or have a strategy for each";
        Err(Error::invalid("run_closure", reason))
    }

    /// Begins a job and returns its number, which is greater than that of every job that servers know. Use it for the
    /// [`Origin`] of its closures. After this returns, closures of earlier jobs can no longer change anything, even if
    /// they are still running.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer. It can be tried again.
    /// - [`Error::InvalidArgument`]: another coordinator has begun a job at the same time. Some servers may have the
    ///   new job. It can be tried again.
    pub fn begin_job(&self) -> Result<u64> {
        const OPERATION: &str = "begin_job";
        let newest = self.ask_for_job(0)?;
        // A random number: another coordinator that begins a job at the same time gets another one.
        let job = Tables::job_after(newest, RandomState::new().hash_one(newest));
        let found = self.ask_for_job(job)?;
        if found != job {
            let reason = format!(
                "another coordinator has begun job {found:x} meanwhile, and this was to be {job:x}; end one of both"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        Ok(job)
    }

    /// Begins a job on all servers, and returns the greatest number that any of them knows.
    fn ask_for_job(&self, job: u64) -> Result<u64> {
        const OPERATION: &str = "begin_job";
        let ask = |server| Ask { server, request: Request::BeginJob { job }, bytes: 0 };
        let answers = self.links().ask(OPERATION, (0..self.count()).map(ask).collect())?;
        let newest = answers.into_iter().enumerate().map(|(server, answer)| match answer {
            Response::Job { newest } => Ok(newest),
            other => Err(unexpected(OPERATION, server, &other)),
        });
        newest.reduce(|all, one| Ok(all?.max(one?))).unwrap_or(Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::TableSpec;
    use distribute_tensor::{HostTensor, Write};

    fn write(server: usize, table: &str) -> Ask {
        let value = HostTensor::scalar(1f32);
        Ask { server, request: Request::Write { table: table.into(), how: Write::Add, value }, bytes: 4 }
    }

    // INV-59
    #[test]
    fn changes_are_numbered_by_operations_and_others_are_left_as_they_are() {
        let origin = Origin { job: 7, closure: 5, floor: 3 };
        let mut running = Numbering::new(origin);
        let mut numbers = |mut asks: Vec<Ask>| {
            running.mark(&mut asks);
            let number = |ask: Ask| match ask.request {
                Request::Once { origin: found, number, change } => {
                    assert_eq!(found, origin);
                    assert!(matches!(*change, Request::Write { .. }));
                    Some(number)
                }
                _ => None,
            };
            asks.into_iter().map(number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(vec![write(0, "a"), write(1, "a"), write(0, "b")]), [Some(0); 3]);
        assert_eq!(numbers(vec![write(1, "b")]), [Some(1)]);
        // Reads, and requests that may be repeated, get no number: another execution may skip them.
        let create = Request::Create(TableSpec::values("a", HostTensor::scalar(0f32)));
        let others = [Request::List, create, Request::Remove { table: "a".into() }];
        let others: Vec<Ask> = others.map(|request| Ask { server: 0, request, bytes: 0 }).into();
        assert_eq!(numbers(others), [None; 3]);
        assert_eq!(numbers(vec![write(0, "a"), write(0, "b"), write(0, "a")]), [Some(2), Some(2), Some(3)]);
        assert_eq!(numbers(vec![write(0, "b")]), [Some(4)]);
    }
}
