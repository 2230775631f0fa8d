//! Changes on parameter servers by closures. A closure runs again if its worker fails, but each of its changes is
//! applied only once.

use super::ParameterServers;
use super::channels::{ServerRequest, unexpected};
use super::closure_sequence::ClosureSequence;
use distribute_base::{Error, Result};
use distribute_ps_tables::{Origin, Request, Response, Tables};
use std::hash::{BuildHasher, RandomState};

/// A guard for the time in which the changes that a strategy makes on parameter servers belong to a closure. See
/// [`ParameterServers::run_closure`].
///
/// If the guard is dropped before [`end`](Self::end) has succeeded, the closure's steps are subtracted from the
/// optimizers' `finished_steps`, because the closure will run again.
#[derive(Debug)]
#[must_use = "changes belong to the closure until this guard is dropped"]
pub struct RunningClosure<'a>(&'a ParameterServers);

impl RunningClosure<'_> {
    /// Waits until servers have acknowledged all changes of the closure, including updates in flight. The closure has
    /// then succeeded, and its steps remain counted. If a step is running, does not wait for updates in flight.
    ///
    /// # Errors
    /// Returns the error of the first update that failed, or an error if another thread does not finish writing values
    /// in time. In both cases, the closure has not succeeded.
    pub fn end(self) -> Result<()> {
        self.0.session().flush()?;
        self.0.channels().commit_steps();
        Ok(())
    }
}

impl Drop for RunningClosure<'_> {
    fn drop(&mut self) {
        self.0.channels().run(None);
    }
}

impl ParameterServers {
    /// Assigns all changes that the strategy makes on parameter servers, such as gradients and writes to variables, to
    /// a closure until the returned guard is dropped. An update that is then still in flight also belongs to the
    /// closure.
    ///
    /// The closure may run again, on this worker or on another one. Servers then acknowledge changes that were already
    /// applied, without applying them again. Changes are identified by the order in which the strategy starts them. A
    /// closure must therefore perform the same operations each time; values and examples may differ.
    ///
    /// A server rejects the changes if the closure has already finished on another worker, or if another job
    /// has begun: see [`ErrorKind::Stale`](distribute_base::ErrorKind::Stale).
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the strategy is already running a closure.
    pub fn run_closure(&self, origin: Origin) -> Result<RunningClosure<'_>> {
        if self.channels().run(Some(ClosureSequence::new(origin))) {
            return Ok(RunningClosure(self));
        }
        let reason = "the strategy already runs a closure; run one after another, or use a strategy for \
                      each";
        Err(Error::invalid("run_closure", reason))
    }

    /// Begins a job, and returns its number, which is greater than the number of any job that the servers know. Use it
    /// in the [`Origin`] of the job's closures. Once this has returned, closures of earlier jobs can no longer change
    /// anything, even if they are still running.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer. The call can be repeated.
    /// - [`Error::InvalidArgument`]: another coordinator began a job at the same time. Some servers may have accepted
    ///   this job. The call can be repeated.
    pub fn begin_job(&self) -> Result<u64> {
        const OPERATION: &str = "begin_job";
        let newest = self.request_job(0)?;
        // A random number: another coordinator that begins a job at the same time gets another one.
        let job = Tables::job_after(newest, RandomState::new().hash_one(newest));
        let found = self.request_job(job)?;
        if found != job {
            let reason = format!(
                "another coordinator has begun job {found:x}, but this one tried to begin job {job:x}; \
                 stop one of them"
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        Ok(job)
    }

    /// Begins job `job` on all servers; 0 begins no job. Returns the greatest number of a job that any server knows.
    fn request_job(&self, job: u64) -> Result<u64> {
        const OPERATION: &str = "begin_job";
        let ask = |server| ServerRequest { server, request: Request::BeginJob { job }, bytes: 0 };
        let answers = self.channels().ask(OPERATION, (0..self.count()).map(ask).collect())?;
        let newest = answers.into_iter().enumerate().map(|(server, answer)| match answer {
            Response::Job { newest } => Ok(newest),
            other => Err(unexpected(OPERATION, server, &other)),
        });
        newest.reduce(|all, one| Ok(all?.max(one?))).unwrap_or(Ok(0))
    }
}
