//! The changes of closures, which are run again where a worker was lost, and are made once.

use super::ParameterServers;
use super::links::{Ask, unexpected};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Origin, Request, Response, Tables};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The closure that is being run, and the number of what it does next to servers.
#[derive(Debug)]
pub(super) struct Numbering {
    origin: Origin,
    next: u64,
    /// What has counted steps of the closure, and how many.
    steps: Vec<(Arc<AtomicU64>, u64)>,
}

impl Numbering {
    pub fn new(origin: Origin) -> Self {
        Self { origin, next: 0, steps: Vec::new() }
    }

    /// A step was made, which `finished` has counted.
    pub fn made_step(&mut self, finished: &Arc<AtomicU64>) {
        match self.steps.iter_mut().find(|(counted, _)| Arc::ptr_eq(counted, finished)) {
            Some((_, steps)) => *steps += 1,
            None => self.steps.push((finished.clone(), 1)),
        }
    }

    /// The closure has ended well: nothing takes its steps back.
    pub fn keep_steps(&mut self) {
        self.steps.clear();
    }

    /// Has servers make changes once.
    ///
    /// They are numbered by operations, and not for each table: another execution of the closure may have other rows,
    /// and not reach a table that this one has reached, but goes through the same operations.
    pub fn mark(&mut self, asks: &mut [Ask]) {
        // Mostly each table is changed once in an operation.
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
    /// A closure that has not ended well is run again, here or elsewhere, and makes its steps then: counted twice they
    /// would be later ones than servers have applied, of which rules such as Adam's know the number.
    fn drop(&mut self) {
        for (finished, steps) in self.steps.drain(..) {
            // One may have been restored meanwhile that has made fewer.
            let _ = finished.fetch_update(Relaxed, Relaxed, |finished| Some(finished.saturating_sub(steps)));
        }
    }
}

/// While this is there, what its strategy changes on parameter servers are changes of a closure: see
/// [`ParameterServers::run_closure`].
///
/// If it is dropped, and has not [ended](Self::end), the steps that optimizers have made meanwhile count no more in
/// their `finished_steps`: the closure is to be run again.
#[derive(Debug)]
#[must_use = "changes are those of the closure until this is dropped"]
pub struct RunningClosure<'a>(&'a ParameterServers);

impl RunningClosure<'_> {
    /// Waits until servers have acknowledged all that the closure has changed, also where values may be stale: it has
    /// ended well then, and nothing of it can be lost any more.
    ///
    /// # Errors
    /// That of an update which was not.
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
    /// Until what is given is dropped, all that the strategy changes on servers are changes of a closure: gradients,
    /// and what is written to variables. When the closure is run again, by this worker or another one, each of them
    /// that was made before is acknowledged, and not made. They are told from each other by the order in which the
    /// strategy starts them; so a closure has to do the same each time, with whatever values and examples. Of an update
    /// that is still under way at the end, the closure stays the one that has started it.
    ///
    /// A server refuses them when the closure has ended, as what another worker has told it says, or another job has
    /// begun: see [`Error::is_stale`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the strategy runs a closure already.
    pub fn run_closure(&self, origin: Origin) -> Result<RunningClosure<'_>> {
        if self.links().run(Some(Numbering::new(origin))) {
            return Ok(RunningClosure(self));
        }
        let reason = "the strategy runs another closure; run one after another, or have a strategy for each";
        Err(Error::invalid("run_closure", reason))
    }

    /// Begins a job, whose number is greater than all that servers know, and gives it: for the [`Origin`] of its
    /// closures. When it returns, nothing is changed any more by closures of jobs before, wherever they still run.
    ///
    /// # Errors
    /// [`Error::Server`]; [`Error::InvalidArgument`] if another coordinator has begun one at the same time. Then some
    /// servers may have the new job, and it can be begun again.
    pub fn begin_job(&self) -> Result<u64> {
        const OPERATION: &str = "begin_job";
        let newest = self.ask_for_job(0)?;
        // Another one that begins now takes another number.
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

    /// Begins a job on all servers, and gives the greatest that one of them knows.
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
        // What only asks, and what may be done again, has no number: an execution may do without.
        let create = Request::Create(TableSpec::values("a", HostTensor::scalar(0f32)));
        let others = [Request::List, create, Request::Remove { table: "a".into() }];
        let others: Vec<Ask> = others.map(|request| Ask { server: 0, request, bytes: 0 }).into();
        assert_eq!(numbers(others), [None; 3]);
        assert_eq!(numbers(vec![write(0, "a"), write(0, "b"), write(0, "a")]), [Some(2), Some(2), Some(3)]);
        assert_eq!(numbers(vec![write(0, "b")]), [Some(4)]);
    }
}
