//! Changes that closures make on parameter servers. A closure runs again if its worker fails, but each of its
//! changes is applied only once.

use super::ParameterServers;
use super::channels::{ServerRequest, unexpected};
use super::closure_sequence::ClosureSequence;
use distribute_base::{Error, Result};
use distribute_ps_tables::{Origin, Request, Response, Tables};
use std::hash::{BuildHasher, RandomState};

/// A guard: while it exists, the changes that its strategy makes on parameter servers belong to a closure.
/// See [`ParameterServers::run_closure`].
///
/// If the guard is dropped, and [`end`](Self::end) has not succeeded, the closure's steps are subtracted from the
/// optimizers' `finished_steps`, because the closure will run again.
#[derive(Debug)]
#[must_use = "changes belong to the closure until this guard is dropped"]
pub struct RunningClosure<'a>(&'a ParameterServers);

impl RunningClosure<'_> {
    /// Waits until servers have acknowledged all changes of the closure, including updates in flight. The closure has
    /// then succeeded, and its steps remain counted. Does not wait while a step is running.
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
    /// Assigns all changes that the strategy makes on parameter servers, such as gradients and writes to
    /// variables, to a closure. This lasts until the returned guard is dropped.
    ///
    /// The closure may run again, on this worker or on another one. Servers then acknowledge the changes that
    /// have already been applied, but do not apply them again. Changes are identified by the order in which
    /// the strategy starts them. A closure must therefore perform the same operations each time; values and
    /// examples may differ. An update that is still in flight when the guard is dropped still belongs to this
    /// closure.
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

    /// Begins a job, and returns its number, which is greater than that of every job that the servers know. Use the
    /// number in the [`Origin`] of the job's closures. After this method has returned, closures of earlier jobs can no
    /// longer change anything, even if they are still running.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer. The call can be repeated.
    /// - [`Error::InvalidArgument`]: another coordinator began a job at the same time. Some servers may have
    ///   accepted the new job. The call can be repeated.
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

    /// Begins job `job` on all servers, or none if `job` is 0. Returns the greatest job number that any server knows.
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
