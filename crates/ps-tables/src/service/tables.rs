//! All tables of one server.

use super::budget::Budget;
use super::entry::Entry;
use super::image::TableImage;
use super::once::Once;
use super::request::Request;
use super::response::Response;
use super::spec::{LAYOUT_TABLE, TableSpec};
use super::usage::{Counters, Usage};
use crate::{ClosureChanges, Error, Result};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The upper bits of a job's number count jobs, and continue from the greatest number of all servers. The lower
/// bits are random.
const TURN: u32 = 32;

/// The number of jobs that may have begun on other servers since the last one on this server.
const FURTHEST: u64 = 1 << 16;

/// The tables of one parameter server, by name: the server's implementation, without a socket.
///
/// Any number of threads may send requests at once. Each request is executed on the calling thread.
///
/// ```
/// use distribute_ps_tables::{Request, Response, TableSpec, Tables};
/// use distribute_tensor::HostTensor;
///
/// let tables = Tables::new();
/// let create = Request::Create(TableSpec::values("bias", HostTensor::vector(vec![1f32, 2.])));
/// assert_eq!(tables.handle(&create)?, Response::Made { new: true });
/// assert_eq!(tables.handle(&create)?, Response::Made { new: false });
/// let rows = Request::ReadRows { table: "bias".into(), rows: vec![1] };
/// assert_eq!(tables.handle(&rows)?, Response::Rows(HostTensor::vector(vec![2f32])));
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Debug)]
pub struct Tables {
    pub(super) all: RwLock<BTreeMap<String, Arc<Entry>>>,
    /// The next [`Version::made`]. It starts at a random number, so that no other process has used it.
    made: AtomicU64,
    /// The greatest job that has begun. It is written with `all` locked.
    job: AtomicU64,
    counters: Counters,
    pub(super) budget: Budget,
}

impl Default for Tables {
    fn default() -> Self {
        let made = AtomicU64::new(RandomState::new().build_hasher().finish());
        let (counters, budget) = (Counters::default(), Budget::default());
        Self { all: RwLock::default(), made, job: AtomicU64::new(0), counters, budget }
    }
}

impl Tables {
    /// Creates an empty set of tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Executes a request.
    ///
    /// # Errors
    /// - [`Error::NoSuchTable`]: there is no such table.
    /// - [`Error::Exists`]: the table exists with another specification.
    /// - The errors of the table's operation and of [`check`](Self::check).
    ///
    /// After an error nothing has changed.
    pub fn handle(&self, request: &Request) -> Result<Response> {
        self.check(request)?;
        self.carry_out(request)
    }

    /// Executes a request that was [checked](Self::check) before.
    ///
    /// # Errors
    /// Returns the errors of [`handle`](Self::handle), except those of [`check`](Self::check).
    pub fn carry_out(&self, request: &Request) -> Result<Response> {
        let operation = request.operation();
        match request {
            Request::Batch(all) => {
                request.check()?;
                Ok(Response::Batch(all.iter().map(|one| Ok(self.handle(one)?)).collect()))
            }
            Request::Create(spec) => self.create(spec),
            Request::Remove { table } => {
                self.all.write().remove(table);
                Ok(Response::Done)
            }
            Request::List => {
                let all: Vec<_> = self.all.read().values().cloned().collect();
                Ok(Response::Tables(all.iter().map(|entry| entry.info()).collect()))
            }
            Request::Usage => Ok(Response::Usage(self.usage())),
            Request::BeginJob { job } => {
                let newest = self.job();
                // INV-59: the highest numbers would leave none for later jobs.
                if (job >> TURN).saturating_sub(newest >> TURN) > FURTHEST {
                    return Err(Error::JobTooGreat { job: *job, newest });
                }
                Ok(Response::Job { newest: self.begin_job(*job) })
            }
            Request::Once { origin, number, change } => {
                request.check()?;
                let entry = self.entry(operation, change.table().unwrap_or_default())?;
                let made = entry.once.make(*origin, *number, || entry.handle(change))?;
                if made.is_some() {
                    self.count(change);
                }
                Ok(made.unwrap_or_else(|| Response::repeated(change)))
            }
            of_a_table => {
                let done = self.entry(operation, request.table().unwrap_or_default())?.handle(of_a_table)?;
                self.count(of_a_table);
                Ok(done)
            }
        }
    }

    /// Returns the response to a change that was already made for the same request.
    pub fn repeated(&self, request: &Request) -> Response {
        match request {
            Request::BeginJob { .. } => Response::Job { newest: self.job() },
            change => Response::repeated(change),
        }
    }

    /// Returns the greatest job that has begun; 0 if there is none.
    pub fn job(&self) -> u64 {
        self.job.load(Ordering::Acquire)
    }

    /// Restores the greatest job that has begun.
    pub fn restore_job(&self, job: u64) {
        self.begin_job(job);
    }

    /// Returns a number for the job after `newest`. If two programs begin a job at the same time, the lower
    /// 32 bits of `drawn` differ.
    pub fn job_after(newest: u64, drawn: u64) -> u64 {
        let turn = (newest >> TURN).saturating_add(1).min(u64::MAX >> TURN);
        turn << TURN | drawn & ((1 << TURN) - 1)
    }

    fn begin_job(&self, job: u64) -> u64 {
        let (newest, all) = {
            // Tables that are created from here on belong to this job.
            let all = self.all.write();
            let newest = self.job.fetch_max(job, Ordering::AcqRel).max(job);
            (newest, all.values().cloned().collect::<Vec<_>>())
        };
        all.iter().for_each(|entry| entry.once.begin(newest));
        newest
    }

    /// Returns the number of bytes of all tables, values and slots.
    pub fn bytes(&self) -> usize {
        let all: Vec<_> = self.all.read().values().cloned().collect();
        all.iter().map(|entry| entry.info().bytes).sum()
    }

    /// Returns the tables, and the number of rows that were read and pushed since this was created.
    pub fn usage(&self) -> Usage {
        let all: Vec<_> = self.all.read().values().cloned().collect();
        let infos: Vec<_> =
            all.iter().map(|entry| entry.info()).filter(|info| info.name != LAYOUT_TABLE).collect();
        let mut usage = Usage {
            tables: infos.len() as u64,
            rows_read: Counters::of(&self.counters.read),
            rows_pushed: Counters::of(&self.counters.pushed),
            ..Usage::default()
        };
        for info in infos {
            usage.rows += info.rows as u64;
            usage.bytes += info.bytes as u64;
        }
        usage
    }

    /// Counts the rows of an executed request.
    fn count(&self, request: &Request) {
        match request {
            Request::ReadRows { rows, .. } => Counters::add(&self.counters.read, rows.len()),
            Request::PushRows { rows, .. } => Counters::add(&self.counters.pushed, rows.len()),
            _ => {}
        }
    }

    /// Returns the names of all tables.
    pub fn names(&self) -> Vec<String> {
        self.all.read().keys().cloned().collect()
    }

    /// Returns an image of a table; `None` if there is no such table. Concurrent changes may or may not be
    /// included.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: there is not enough memory for it.
    pub fn image(&self, name: &str) -> Result<Option<TableImage>> {
        let entry = self.all.read().get(name).cloned();
        entry.map(|entry| entry.image()).transpose()
    }

    /// Restores a table, in place of one of the same name. It gets a new [version](super::Version::made).
    ///
    /// # Errors
    /// Returns the errors of creating a table and of restoring it.
    pub fn restore_image(&self, image: TableImage) -> Result<()> {
        let table = image.make()?;
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        let TableImage { name, fingerprint, described, closures, .. } = image;
        let entry = Entry { table, made, fingerprint, described, once: Once::new(closures) };
        self.all.write().insert(name, Arc::new(entry));
        Ok(())
    }

    /// Removes all tables, and forgets which job has begun.
    pub fn clear(&self) {
        let mut all = self.all.write();
        all.clear();
        self.job.store(0, Ordering::Release);
    }

    fn create(&self, spec: &TableSpec) -> Result<Response> {
        let fingerprint = spec.fingerprint();
        if let Some(entry) = self.all.read().get(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        // Created without the lock, because this takes long for a large table. If several threads create it,
        // one table is kept.
        let table = spec.make()?;
        let mut all = self.all.write();
        if let Some(entry) = all.get(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        let once = Once::new(ClosureChanges::new(self.job()));
        let entry = Entry { table, made, fingerprint, described: spec.describe(), once };
        all.insert(spec.name.clone(), Arc::new(entry));
        Ok(Response::Made { new: true })
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.all.read().get(name).cloned()
    }

    fn entry(&self, operation: &'static str, name: &str) -> Result<Arc<Entry>> {
        self.find(name).ok_or_else(|| Error::NoSuchTable { operation, table: name.to_owned() })
    }
}
