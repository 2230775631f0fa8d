//! [`Tables`]: all tables of one server.

use super::budget::Budget;
use super::creations::Creations;
use super::entry::Entry;
use super::exactly_once::ExactlyOnce;
use super::image::TableImage;
use super::request::Request;
use super::response::Response;
use super::spec::{AnyTable, LAYOUT_TABLE, TableSpec};
use super::usage::{Counters, ReadCounters, Usage};
use crate::{ClosureChanges, Error, Result};
use distribute_optim::RuleSpec;
use distribute_tensor::HostTensor;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of low-order bits of a job's number, which are random. The other bits count jobs.
const JOB_RANDOM_BITS: u32 = 32;

/// The maximum number of jobs by which a new job may exceed the latest job of this server. The jobs in between have
/// begun only on other servers.
const MAX_JOB_DISTANCE: u64 = 1 << 16;

/// The tables of one parameter server, by name. They execute the server's requests, without a socket.
///
/// Any number of threads may make requests at the same time. Each request is executed on the calling thread.
///
/// ```
/// use distribute_ps_tables::{Request, Response, TableSpec, Tables};
/// use distribute_tensor::HostTensor;
///
/// let tables = Tables::new();
/// let create = Request::Create(TableSpec::values("bias", HostTensor::vector(vec![1f32, 2.])));
/// assert_eq!(tables.handle(&create)?, Response::Created { new: true });
/// assert_eq!(tables.handle(&create)?, Response::Created { new: false });
/// let rows = Request::ReadRows { table: "bias".into(), rows: vec![1] };
/// assert_eq!(tables.handle(&rows)?, Response::Rows(HostTensor::vector(vec![2f32])));
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Debug)]
pub struct Tables {
    pub(super) all: RwLock<BTreeMap<String, Arc<Entry>>>,
    /// The next [`Version::created`]. It starts at a random number, so that it differs from those of other processes.
    created: AtomicU64,
    /// The greatest number of a job that has begun. It changes only while `all` is locked.
    job: AtomicU64,
    counters: Counters,
    creations: Creations,
    pub(super) budget: Budget,
}

impl Default for Tables {
    fn default() -> Self {
        let created = AtomicU64::new(RandomState::new().build_hasher().finish());
        let (counters, creations, budget) = Default::default();
        Self { all: RwLock::default(), created, job: AtomicU64::new(0), counters, creations, budget }
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
    /// - [`Error::NoSuchTable`]: there is no table with this name.
    /// - [`Error::Exists`]: the table exists with a different specification.
    /// - [`Error::NestedBatch`]: a batch contains a batch.
    /// - [`Error::NotOnce`]: the request cannot be executed exactly once for a closure.
    /// - [`Error::JobTooGreat`]: the number of a job is much greater than that of the latest job.
    /// - The errors of [`check`](Self::check), of creating a table, and of the table's operation.
    ///
    /// If this fails, nothing has changed.
    pub fn handle(&self, request: &Request) -> Result<Response> {
        self.check(request)?;
        self.execute(request)
    }

    /// Executes a request that was [checked](Self::check) before.
    ///
    /// # Errors
    /// Returns the errors of [`handle`](Self::handle), except those of [`check`](Self::check).
    pub fn execute(&self, request: &Request) -> Result<Response> {
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
                if (job >> JOB_RANDOM_BITS).saturating_sub(newest >> JOB_RANDOM_BITS) > MAX_JOB_DISTANCE {
                    return Err(Error::JobTooGreat { job: *job, newest });
                }
                Ok(Response::Job { newest: self.begin_job(*job) })
            }
            Request::Once { origin, number, change } => {
                request.check()?;
                let entry = self.entry(operation, change.table().unwrap_or_default())?;
                let applied = entry.exactly_once.apply(*origin, *number, || entry.handle(change))?;
                if applied.is_some() {
                    self.count(change);
                }
                Ok(applied.unwrap_or_else(|| Response::repeated(change)))
            }
            of_a_table => {
                let done = self.entry(operation, request.table().unwrap_or_default())?.handle(of_a_table)?;
                self.count(of_a_table);
                Ok(done)
            }
        }
    }

    /// Returns rows of a table and their values, in ascending order: all rows, or those among `rows` that exist.
    /// Servers use this to send changed rows.
    ///
    /// # Errors
    /// - [`Error::NoSuchTable`]: there is no table with this name.
    /// - [`Error::Row`]: a row does not exist, and the table is dense.
    pub fn existing(&self, table: &str, rows: Option<Vec<i64>>) -> Result<(Vec<i64>, HostTensor)> {
        self.entry("changed", table)?.existing(rows)
    }

    /// Returns those of `rows` that exist in a table. Returns all of them if the table is dense, and none if there is
    /// no such table.
    pub fn existing_rows(&self, table: &str, rows: Vec<i64>) -> Vec<i64> {
        self.find(table).map(|entry| entry.existing_rows(Some(rows))).unwrap_or_default()
    }

    /// Returns the rule of a table, or `None` if there is no such table or rule.
    pub fn rule(&self, table: &str) -> Option<RuleSpec> {
        self.find(table)?.info().rule
    }

    /// Returns the response to a request whose change was already applied.
    pub fn repeated(&self, request: &Request) -> Response {
        match request {
            Request::BeginJob { .. } => Response::Job { newest: self.job() },
            change => Response::repeated(change),
        }
    }

    /// Returns the greatest number of a job that has begun; 0 if there is none.
    pub fn job(&self) -> u64 {
        self.job.load(Ordering::Acquire)
    }

    /// Restores the greatest number of a job that has begun, unless the current one is greater.
    pub fn restore_job(&self, job: u64) {
        self.begin_job(job);
    }

    /// Returns a number for the job after `newest`. Its lower 32 bits are those of `random`, so that two programs that
    /// begin a job at the same time get different numbers.
    pub fn job_after(newest: u64, random: u64) -> u64 {
        let turn = (newest >> JOB_RANDOM_BITS).saturating_add(1).min(u64::MAX >> JOB_RANDOM_BITS);
        turn << JOB_RANDOM_BITS | random & ((1 << JOB_RANDOM_BITS) - 1)
    }

    fn begin_job(&self, job: u64) -> u64 {
        let (newest, all) = {
            // Tables that are created from here on belong to this job.
            let all = self.all.write();
            let newest = self.job.fetch_max(job, Ordering::AcqRel).max(job);
            (newest, all.values().cloned().collect::<Vec<_>>())
        };
        all.iter().for_each(|entry| entry.exactly_once.begin(newest));
        newest
    }

    /// Returns the total size of all tables in bytes: see [`TableInfo::bytes`](crate::TableInfo::bytes).
    pub fn bytes(&self) -> usize {
        let all: Vec<_> = self.all.read().values().cloned().collect();
        all.iter().map(|entry| entry.info().bytes).sum()
    }

    /// Returns the usage: the tables, except that of the layout, and the numbers of rows that were read and pushed
    /// since this value was created. The fields about folders and copies have default values, which a server replaces.
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

    /// Counts the rows that an executed request has read or pushed.
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

    /// Returns an image of a table; `None` if there is no such table. The image may or may not include concurrent
    /// changes.
    ///
    /// # Errors
    /// - [`Error::NoMemory`]: there is not enough memory for the image.
    pub fn image(&self, name: &str) -> Result<Option<TableImage>> {
        let entry = self.all.read().get(name).cloned();
        entry.map(|entry| entry.image()).transpose()
    }

    /// Restores a table from an image, replacing an existing table of the same name. The restored table gets a new
    /// [version](super::Version::created).
    ///
    /// # Errors
    /// Returns the errors of creating a table and of restoring it.
    pub fn restore_image(&self, image: TableImage) -> Result<()> {
        let table = image.create()?;
        let created = self.created.fetch_add(1, Ordering::Relaxed);
        let TableImage { name, fingerprint, described, closures, .. } = image;
        let exactly_once = ExactlyOnce::new(closures);
        let reads = ReadCounters::default();
        let entry = Entry { table, created, fingerprint, described, exactly_once, reads };
        self.all.write().insert(name, Arc::new(entry));
        Ok(())
    }

    /// Removes all tables, and resets the number of the job to 0.
    pub fn clear(&self) {
        let mut all = self.all.write();
        all.clear();
        self.job.store(0, Ordering::Release);
    }

    fn create(&self, spec: &TableSpec) -> Result<Response> {
        self.create_by(spec, TableSpec::create)
    }

    /// Creates a table by calling `make`, unless the table exists. Concurrent calls for the same table wait for the
    /// first, so that only one `make` is running.
    pub(super) fn create_by(
        &self,
        spec: &TableSpec,
        make: impl FnOnce(&TableSpec) -> Result<AnyTable>,
    ) -> Result<Response> {
        let fingerprint = spec.fingerprint();
        if let Some(entry) = self.find(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        let _turn = self.creations.turn(&spec.name);
        if let Some(entry) = self.find(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        // Other tables are used meanwhile, because this takes long for a large table.
        let table = make(spec)?;
        let mut all = self.all.write();
        // An image may have been restored under this name.
        if let Some(entry) = all.get(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        let created = self.created.fetch_add(1, Ordering::Relaxed);
        let exactly_once = ExactlyOnce::new(ClosureChanges::new(self.job()));
        let (described, reads) = (spec.describe(), ReadCounters::default());
        let entry = Entry { table, created, fingerprint, described, exactly_once, reads };
        all.insert(spec.name.clone(), Arc::new(entry));
        Ok(Response::Created { new: true })
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.all.read().get(name).cloned()
    }

    fn entry(&self, operation: &'static str, name: &str) -> Result<Arc<Entry>> {
        self.find(name).ok_or_else(|| Error::NoSuchTable { operation, table: name.to_owned() })
    }
}
