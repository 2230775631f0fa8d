//! All tables of one server.

use super::image::TableImage;
use super::request::{Request, State};
use super::response::{Response, TableInfo, TableKind, Version, VersionedValue};
use super::spec::{AnyTable, TableSpec};
use crate::lock::{read, write};
use crate::{DynamicTable, Error, Pushed, Result, Table};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// The tables of one parameter server, by name: what it does, without a socket.
///
/// Any number of threads may ask at once. Each request is carried out on the thread that asks.
///
/// ```
/// use distribute_params::{Request, Response, TableSpec, Tables};
/// use distribute_tensor::HostTensor;
///
/// let tables = Tables::new();
/// let create = Request::Create(TableSpec::values("bias", HostTensor::vector(vec![1f32, 2.])));
/// assert_eq!(tables.handle(&create)?, Response::Made { new: true });
/// assert_eq!(tables.handle(&create)?, Response::Made { new: false });
/// let rows = Request::ReadRows { table: "bias".into(), rows: vec![1] };
/// assert_eq!(tables.handle(&rows)?, Response::Rows(HostTensor::vector(vec![2f32])));
/// # Ok::<(), distribute_params::Error>(())
/// ```
#[derive(Debug)]
pub struct Tables {
    all: RwLock<BTreeMap<String, Arc<Entry>>>,
    /// The next [`Version::made`]; random at first, so that no other process has had it.
    made: AtomicU64,
}

/// What is done with a dense table in place of what is for ids.
const ROWS: &str = "give it rows";

#[derive(Debug)]
struct Entry {
    table: AnyTable,
    /// See [`Version::made`].
    made: u64,
    /// What [`TableSpec::fingerprint`] was, and the specification in words.
    fingerprint: u64,
    described: String,
}

impl Default for Tables {
    fn default() -> Self {
        Self { all: RwLock::default(), made: AtomicU64::new(RandomState::new().build_hasher().finish()) }
    }
}

impl Tables {
    /// No tables yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does what is asked for.
    ///
    /// # Errors
    /// [`Error`], as the table's operation has it; [`Error::NoSuchTable`], [`Error::Exists`]. Nothing has changed then.
    pub fn handle(&self, request: &Request) -> Result<Response> {
        let operation = request.operation();
        match request {
            Request::Batch(all) => {
                request.check()?;
                Ok(Response::Batch(all.iter().map(|one| Ok(self.handle(one)?)).collect()))
            }
            Request::Create(spec) => self.create(spec),
            Request::Remove { table } => {
                write(&self.all).remove(table);
                Ok(Response::Done)
            }
            Request::List => {
                let all: Vec<_> = read(&self.all).values().cloned().collect();
                Ok(Response::Tables(all.iter().map(|entry| entry.info()).collect()))
            }
            Request::SetRule { table, rule } => {
                self.entry(operation, table)?.table.set_rule(rule)?;
                Ok(Response::Done)
            }
            Request::Read { table, known } => {
                let entry = self.entry(operation, table)?;
                let table = entry.dense(operation, "read its rows by their ids")?;
                let known = known.filter(|known| known.made == entry.made).map(|known| known.writes);
                let read = match known {
                    Some(known) => table.read_if_changed(known)?,
                    None => Some(table.read()?),
                };
                Ok(read.map_or(Response::Unchanged, |read| {
                    let version = Version { made: entry.made, writes: read.version };
                    Response::Value(VersionedValue { version, value: read.value })
                }))
            }
            Request::ReadRows { table, rows } => {
                Ok(Response::Rows(match &self.entry(operation, table)?.table {
                    AnyTable::Dense(table) => table.read_rows(&rows_of(operation, table, rows)?)?,
                    AnyTable::Dynamic(table) => table.read_rows(rows)?,
                }))
            }
            Request::Write { table, how, value } => {
                let entry = self.entry(operation, table)?;
                entry.dense(operation, "its rows are changed by gradients alone")?.write(*how, value)?;
                Ok(Response::Done)
            }
            Request::WriteRows { table, how, rows, values } => {
                let entry = self.entry(operation, table)?;
                let table = entry.dense(operation, "its rows are changed by gradients alone")?;
                table.write_rows(*how, &rows_of(operation, table, rows)?, values)?;
                Ok(Response::Done)
            }
            Request::Push { table, push, gradient } => {
                let entry = self.entry(operation, table)?;
                entry.dense(operation, "push the gradient of ids")?.push(*push, gradient)?;
                Ok(Response::Done)
            }
            Request::PushRows { table, push, rows, gradient } => {
                Ok(Response::Pushed(match &self.entry(operation, table)?.table {
                    AnyTable::Dense(table) => {
                        table.push_rows(*push, &rows_of(operation, table, rows)?, gradient)?;
                        Pushed::default()
                    }
                    AnyTable::Dynamic(table) => table.push_rows(*push, rows, gradient)?,
                }))
            }
            Request::StateRows { table, rows } => {
                let entry = self.entry(operation, table)?;
                let state = entry.dense(operation, "ask for its parts")?.state_rows(rows.clone())?;
                let (values, slots) = (state.values, state.slots);
                Ok(Response::State(State::Rows { first: rows.start, values, slots }))
            }
            Request::StatePart { table, part } => {
                let entry = self.entry(operation, table)?;
                let table = entry.dynamic(operation, "ask for its rows")?;
                if *part >= table.parts() {
                    let (table, parts) = (table.name().to_owned(), table.parts());
                    return Err(Error::NoPart { operation, table, parts, part: *part });
                }
                Ok(Response::State(State::Ids(table.state(*part)?)))
            }
            Request::Restore { table, state } => {
                let entry = self.entry(operation, table)?;
                let left_out = match state {
                    State::Rows { first, values, slots } => {
                        entry.dense(operation, "give it ids")?.restore_rows(*first, values, slots)?;
                        0
                    }
                    State::Slots { first, slots } => {
                        entry.dense(operation, "give it ids")?.restore_slots(*first, slots)?;
                        0
                    }
                    State::Ids(state) => entry.dynamic(operation, ROWS)?.restore(state)?,
                    State::IdSlots { ids, slots } => {
                        entry.dynamic(operation, ROWS)?.restore_slots(ids, slots)?
                    }
                    State::IdValues { ids, used, values } => {
                        entry.dynamic(operation, ROWS)?.restore_values(ids, used, values)?
                    }
                };
                Ok(Response::Restored { left_out })
            }
            Request::Evict { table, now } => {
                let entry = self.entry(operation, table)?;
                Ok(Response::Evicted(entry.dynamic(operation, "its rows stay")?.evict(*now)))
            }
            Request::Keep { table, between, ids } => {
                let entry = self.entry(operation, table)?;
                Ok(Response::Evicted(entry.dynamic(operation, "its rows stay")?.keep(*between, ids)))
            }
        }
    }

    /// How many bytes all tables take, values and slots.
    pub fn bytes(&self) -> usize {
        let all: Vec<_> = read(&self.all).values().cloned().collect();
        all.iter().map(|entry| entry.info().bytes).sum()
    }

    /// The names of all tables.
    pub fn names(&self) -> Vec<String> {
        read(&self.all).keys().cloned().collect()
    }

    /// A copy of all there is of a table; `None` if there is no such table. Changes that are made meanwhile are in it or not.
    ///
    /// # Errors
    /// [`Error::Tensor`] where there is no memory for it.
    pub fn image(&self, name: &str) -> Result<Option<TableImage>> {
        let entry = read(&self.all).get(name).cloned();
        entry
            .map(|entry| TableImage::of(&entry.table, entry.fingerprint, entry.described.clone()))
            .transpose()
    }

    /// Puts a table there, in place of one of the same name. Its [version](Version::made) is a new one.
    ///
    /// # Errors
    /// [`Error`], as those of making a table and of restoring it.
    pub fn restore_image(&self, image: TableImage) -> Result<()> {
        let table = image.make()?;
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { table, made, fingerprint: image.fingerprint, described: image.described };
        write(&self.all).insert(image.name, Arc::new(entry));
        Ok(())
    }

    /// Removes all tables.
    pub fn clear(&self) {
        write(&self.all).clear();
    }

    fn create(&self, spec: &TableSpec) -> Result<Response> {
        let fingerprint = spec.fingerprint();
        if let Some(entry) = read(&self.all).get(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        // Made without the lock: that takes long for a large one. Of several, one is kept.
        let table = spec.make()?;
        let mut all = write(&self.all);
        if let Some(entry) = all.get(&spec.name) {
            return entry.same(spec, fingerprint);
        }
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { table, made, fingerprint, described: spec.describe() };
        all.insert(spec.name.clone(), Arc::new(entry));
        Ok(Response::Made { new: true })
    }

    fn entry(&self, operation: &'static str, name: &str) -> Result<Arc<Entry>> {
        let entry = read(&self.all).get(name).cloned();
        entry.ok_or_else(|| Error::NoSuchTable { operation, table: name.to_owned() })
    }
}

impl Entry {
    fn same(&self, spec: &TableSpec, fingerprint: u64) -> Result<Response> {
        if self.fingerprint == fingerprint {
            return Ok(Response::Made { new: false });
        }
        let (table, present, found) = (spec.name.clone(), self.described.clone(), spec.describe());
        Err(Error::Exists { table, present, found })
    }

    fn dense(&self, operation: &'static str, instead: &'static str) -> Result<&Table> {
        match &self.table {
            AnyTable::Dense(table) => Ok(table),
            AnyTable::Dynamic(table) => {
                let (table, kind) = (table.name().to_owned(), "dynamic");
                Err(Error::WrongKind { operation, table, kind, instead })
            }
        }
    }

    fn dynamic(&self, operation: &'static str, instead: &'static str) -> Result<&DynamicTable> {
        match &self.table {
            AnyTable::Dynamic(table) => Ok(table),
            AnyTable::Dense(table) => {
                let (table, kind) = (table.name().to_owned(), "dense");
                Err(Error::WrongKind { operation, table, kind, instead })
            }
        }
    }

    fn info(&self) -> TableInfo {
        match &self.table {
            AnyTable::Dense(table) => TableInfo {
                name: table.name().to_owned(),
                kind: TableKind::Dense,
                shape: table.dims().to_vec(),
                dtype: table.dtype(),
                rows: table.rows(),
                parts: 0,
                bytes: table.bytes(),
                rule: table.rule().and_then(|rule| rule.spec()),
            },
            AnyTable::Dynamic(table) => TableInfo {
                name: table.name().to_owned(),
                kind: TableKind::Dynamic,
                shape: table.row_dims().to_vec(),
                dtype: table.dtype(),
                rows: table.len(),
                parts: table.parts(),
                bytes: table.bytes(),
                rule: table.rule().and_then(|rule| rule.spec()),
            },
        }
    }
}

/// Rows as a dense table counts them.
fn rows_of(operation: &'static str, table: &Table, rows: &[i64]) -> Result<Vec<usize>> {
    let row = |(position, id): (usize, &i64)| {
        usize::try_from(*id).map_err(|_| Error::Id { operation, id: *id, position, rows: table.rows() })
    };
    rows.iter().enumerate().map(row).collect()
}
