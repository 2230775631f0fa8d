//! Variables on servers: creation, and search for one that exists.

use super::super::links::{Ask, unexpected};
use super::super::{Links, Makes, ParameterServers, Place, Where};
use super::{Initial, Shard, Sharded};
use distribute_base::{Error, Result};
use distribute_cluster::Deadline;
use distribute_log::heard;
use distribute_ps_tables::{Contents, LAYOUT_TABLE, Request, Response, TableInfo, TableKind, TableSpec};
use distribute_tensor::DType;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const OPERATION: &str = "creating a variable";

/// The pauses between two requests while waiting for a table: the first and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// The largest number of tables that a warning names.
const NAMED: usize = 10;

/// The tables that are known while variables are created one after another.
#[derive(Debug, Default)]
pub(crate) struct Making {
    /// The tables of each server, when all of them were last listed.
    listed: Vec<HashMap<String, TableInfo>>,
    /// The tables that this process has requested, answered or not.
    asked: HashSet<String>,
    /// Whether a warning about existing tables was logged.
    told: bool,
    /// The tables that existed when this process created its first variable, with their numbers of rows.
    before: Option<HashMap<String, usize>>,
    /// Whether other processes create the same variables.
    pub(crate) is_shared: bool,
    /// Whether the wait for the current variable has timed out.
    has_waited: bool,
}

/// The wait for a variable that another process makes.
#[derive(Clone, Copy)]
enum Wait {
    /// No wait: no process creates it.
    No,
    /// A wait of at most this time.
    For(Duration),
    /// No further wait: this time is over.
    Over(Duration),
}

impl Making {
    /// Requests the list of tables of all servers.
    fn list(&mut self, links: &Links) -> Result<()> {
        let servers = 0..links.count();
        let asks = servers.map(|server| Ask { server, request: Request::List, bytes: 0 }).collect();
        let lists =
            links.ask(OPERATION, asks)?.into_iter().enumerate().map(|(server, answer)| match answer {
                Response::Tables(tables) => {
                    Ok(tables.into_iter().map(|info| (info.name.clone(), info)).collect())
                }
                other => Err(unexpected(OPERATION, server, &other)),
            });
        self.listed = lists.collect::<Result<_>>()?;
        Ok(())
    }
}

impl Making {
    /// Returns the server that has each table of a variable, if there is one. With `patience`, waits up to that time
    /// for all of them.
    pub(crate) fn find(
        &mut self,
        place: &Place,
        links: &Links,
        patience: Option<Duration>,
    ) -> Result<Vec<Option<usize>>> {
        self.has_waited = false;
        let deadline = Deadline::after(patience.unwrap_or_default());
        let [mut pause, longest] = PAUSES;
        loop {
            let found = self.servers_of(place);
            if found.iter().all(Option::is_some) {
                return Ok(found);
            }
            self.list(links)?;
            let found = self.servers_of(place);
            let all = found.iter().all(Option::is_some);
            if all || deadline.has_passed() {
                self.has_waited = !all && patience.is_some();
                return Ok(found);
            }
            std::thread::park_timeout(pause.min(deadline.remaining()));
            pause = longest.min(pause * 2);
        }
    }

    fn servers_of(&self, place: &Place) -> Vec<Option<usize>> {
        let server = |table: String| self.listed.iter().position(|tables| tables.contains_key(&table));
        place.tables().map(server).collect()
    }
}

impl Making {
    /// Refuses a variable that was partitioned into another number of shards before: its rows would be searched on
    /// other servers.
    fn refuse_other_cut(&mut self, variable: &Sharded, is_dynamic: bool) -> Result<()> {
        if self.before.is_none() {
            self.list(&variable.links)?;
            let all = self.listed.iter().flat_map(HashMap::values);
            self.before = Some(all.map(|info| (info.name.clone(), info.rows)).collect());
        }
        let tables: Vec<&str> = variable.shards.iter().map(|shard| shard.table.as_str()).collect();
        let found = self.before.as_ref().and_then(|before| other_cut(&tables, is_dynamic, before));
        found.map_or(Ok(()), |found| {
            let reason = format!(
                "variable {}: servers have it as {found}, and here it is {}; take the partitioner that it was made with, or empty the \
                 folders of all servers and restore a checkpoint",
                variable.name,
                some(&tables)
            );
            Err(Error::invalid(OPERATION, reason))
        })
    }
}

/// Returns the names of the tables of a variable if it was partitioned in another way before. `before` has the rows of
/// all tables.
fn other_cut(tables: &[&str], is_dynamic: bool, before: &HashMap<String, usize>) -> Option<String> {
    let first = tables.first()?;
    let name = first.strip_suffix("/part_0").unwrap_or(first);
    let is_of_it = |table: &&str| {
        let part = table.strip_prefix(name).and_then(|rest| rest.strip_prefix("/part_"));
        *table == name || part.is_some_and(|part| part.parse::<usize>().is_ok())
    };
    let mut found: Vec<&str> = before.keys().map(String::as_str).filter(is_of_it).collect();
    let is_more = found.iter().any(|table| !tables.contains(table));
    // Tables are also missing if an attempt to create them was interrupted, but then none has a row of an id. For a
    // dense variable, each shard has other rows than before, which the server refuses.
    let is_less = is_dynamic
        && tables.iter().any(|table| !before.contains_key(*table))
        && found.iter().any(|table| before.get(*table).is_some_and(|rows| *rows > 0));
    found.sort_unstable();
    (is_more || is_less).then(|| some(&found))
}

impl Sharded {
    /// Creates a variable, or finds one that another process has created in the same way.
    pub fn create(
        servers: &ParameterServers,
        (name, dims, dtype): (&str, &[usize], DType),
        initial: &Initial,
        to: Where,
    ) -> Result<Self> {
        servers.place((name, dims, dtype), to, |place, making| {
            let variable = Self::placed(servers.links().clone(), name, dims.to_vec(), dtype, place);
            match servers.makes() {
                Makes::Missing => variable.make(initial, making)?,
                makes @ (Makes::None | Makes::Present) => {
                    let kind = match initial {
                        Initial::Ids(..) => TableKind::Dynamic,
                        Initial::Value(_) | Initial::Drawn(_) => TableKind::Dense,
                    };
                    let wait = match makes {
                        // CC-3
                        Makes::Present => Wait::No,
                        // The wait took place when the location was chosen.
                        _ if std::mem::take(&mut making.has_waited) => Wait::Over(servers.patience()),
                        _ => Wait::For(servers.patience()),
                    };
                    variable.await_made(making, kind, wait)?;
                }
                // CC-11
                Makes::Refused => {
                    let reason = format!(
                        "variable {name}: a function that makes a dataset makes no variables; make it in one that is given to \
                         create_per_worker_value"
                    );
                    return Err(Error::invalid(OPERATION, reason));
                }
            }
            Ok(variable)
        })
    }

    fn make(&self, initial: &Initial, making: &mut Making) -> Result<()> {
        let create = |(number, shard): (usize, &Shard)| {
            let contents = match initial {
                Initial::Value(value) => Contents::Values(self.part(value, number)?),
                Initial::Drawn(initializer) => Contents::Drawn {
                    shape: self.dims.clone(),
                    dtype: self.dtype,
                    initializer: *initializer,
                    partition: self.cut,
                    shard: number,
                },
                Initial::Ids(initializer, options) => Contents::Dynamic {
                    row_shape: self.dims.get(1..).unwrap_or_default().to_vec(),
                    dtype: self.dtype,
                    initializer: *initializer,
                    options: *options,
                },
            };
            let bytes = if matches!(initial, Initial::Value(_)) { self.bytes(shard.rows) } else { 0 };
            let spec = TableSpec { name: shard.table.clone(), contents, rule: None };
            Ok(Ask { server: shard.server, request: Request::Create(spec), bytes })
        };
        let asks = self.shards.iter().enumerate().map(create).collect::<Result<_>>()?;
        making.refuse_other_cut(self, matches!(initial, Initial::Ids(..)))?;
        // A failed attempt may have created some of them.
        let first: Vec<bool> =
            self.shards.iter().map(|shard| making.asked.insert(shard.table.clone())).collect();
        let answers = self.links.ask(OPERATION, asks)?;
        let (mut found, mut new) = (Vec::new(), Vec::new());
        for ((shard, answer), _) in self.shards.iter().zip(answers).zip(first).filter(|(_, first)| *first) {
            match answer {
                Response::Made { new: true } => new.push(shard.table.as_str()),
                Response::Made { new: false } => found.push(shard.table.as_str()),
                other => return Err(unexpected(OPERATION, shard.server, &other)),
            }
        }
        self.tell(&found, &new, making)
    }

    /// Logs a warning about tables that existed before.
    fn tell(&self, found: &[&str], new: &[&str], making: &mut Making) -> Result<()> {
        // If other processes create the same variables, existing tables are expected.
        if found.is_empty() || making.is_shared {
            return Ok(());
        }
        if !new.is_empty() {
            heard(|| {
                tracing::warn!(
                    "variable {}: servers had {} and not {}, which begin anew: unless a connection was lost meanwhile, its values \
                     are of two trainings; restore a checkpoint, or empty the folders of all servers and start again",
                    self.name,
                    some(found),
                    some(new)
                );
            });
        }
        if std::mem::replace(&mut making.told, true) {
            return Ok(());
        }
        making.list(&self.links)?;
        let all = making.listed.iter().flat_map(HashMap::keys).map(String::as_str);
        let mut all: Vec<&str> = all
            .filter(|table| *table != LAYOUT_TABLE)
            .filter(|table| found.contains(table) || !making.asked.contains(*table))
            .collect();
        all.sort_unstable();
        heard(|| {
            tracing::warn!(
                "servers have tables of a training before, which this one goes on with as they are: {}; to begin anew, empty the \
                 folders of all servers and start them again",
                some(&all)
            );
        });
        Ok(())
    }

    // C8: servers are asked again for what was not there.
    /// Waits until another process has created it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: it was not created in time, or has another shape, dtype or kind.
    fn await_made(&self, making: &mut Making, kind: TableKind, wait: Wait) -> Result<()> {
        let deadline = Deadline::after(match wait {
            Wait::For(patience) => patience,
            Wait::No | Wait::Over(_) => Duration::ZERO,
        });
        let [mut pause, longest] = PAUSES;
        loop {
            if self.is_listed(making, kind)? {
                return Ok(());
            }
            making.list(&self.links)?;
            if self.is_listed(making, kind)? {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(self.missing(making, kind, wait));
            }
            std::thread::park_timeout(pause.min(deadline.remaining()));
            pause = longest.min(pause * 2);
        }
    }

    /// Whether servers had all its tables when they were last listed.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a table has another shape, dtype or kind.
    fn is_listed(&self, making: &Making, kind: TableKind) -> Result<bool> {
        for shard in &self.shards {
            let tables = making.listed.get(shard.server);
            let Some(info) = tables.and_then(|tables| tables.get(&shard.table)) else { return Ok(false) };
            let dims = self.dims_of(shard, kind);
            if info.kind != kind || info.shape != dims || info.dtype != self.dtype {
                let found = format!("there is one of {}", described(info.kind, info.dtype, &info.shape));
                return Err(self.wanting(shard, kind, &found));
            }
        }
        Ok(true)
    }

    fn missing(&self, making: &Making, kind: TableKind, wait: Wait) -> Error {
        let patience = match wait {
            Wait::For(patience) | Wait::Over(patience) => patience,
            Wait::No => {
                let reason = format!(
                    "variable {}: it is not there, and a scheduled function makes no variables, since it may run on any worker, and \
                     again; make it before, in the coordinator's scope or in a function that is given to create_per_worker_value",
                    self.name
                );
                return Error::invalid(OPERATION, reason);
            }
        };
        let has = |shard: &&Shard| {
            making.listed.get(shard.server).is_some_and(|tables| tables.contains_key(&shard.table))
        };
        match self.shards.iter().find(|shard| !has(shard)) {
            Some(shard) => {
                self.wanting(shard, kind, &format!("there has been none of this name for {patience:?}"))
            }
            None => Error::invalid(OPERATION, format!("variable {} has no table", self.name)),
        }
    }

    fn wanting(&self, shard: &Shard, kind: TableKind, found: &str) -> Error {
        let reason = format!(
            "variable {}: ps {} has to have a table {} of {}, but {found}; the chief makes variables, which other workers \
             wait for, and all make the same in the same order, with the same partitioner",
            self.name,
            shard.server,
            shard.table,
            described(kind, self.dtype, &self.dims_of(shard, kind))
        );
        Error::invalid(OPERATION, reason)
    }

    fn dims_of(&self, shard: &Shard, kind: TableKind) -> Vec<usize> {
        let mut dims = self.dims.clone();
        if kind == TableKind::Dynamic {
            // The shape of a table of ids is that of a row.
            return dims.split_off(dims.len().min(1));
        }
        dims.first_mut().into_iter().for_each(|rows| *rows = shard.rows);
        dims
    }
}

fn described(kind: TableKind, dtype: DType, dims: &[usize]) -> String {
    match kind {
        TableKind::Dense => format!("{dtype}{dims:?}"),
        TableKind::Dynamic => format!("ids, of rows {dtype}{dims:?}"),
    }
}

/// Returns the first of some names, and the number of the others.
fn some(names: &[&str]) -> String {
    match names.len().checked_sub(NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..NAMED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-73
    #[test]
    fn a_variable_that_was_cut_in_another_way_is_told_from_one_that_was_made_by_half() {
        let before = |tables: &[(&str, usize)]| -> HashMap<String, usize> {
            tables.iter().map(|(name, rows)| ((*name).to_owned(), *rows)).collect()
        };
        let ids = before(&[("ids/part_0", 5), ("ids/part_1", 0), ("other/part_7", 1), ("ids_1", 3)]);
        let two = ["ids/part_0", "ids/part_1"];
        for is_dynamic in [false, true] {
            assert_eq!(other_cut(&two, is_dynamic, &ids), None);
            assert_eq!(other_cut(&["ids"], is_dynamic, &ids), Some("ids/part_0, ids/part_1".to_owned()));
            assert_eq!(
                other_cut(&["ids/part_0"], is_dynamic, &ids),
                Some("ids/part_0, ids/part_1".to_owned())
            );
            assert_eq!(other_cut(&["new"], is_dynamic, &ids), None);
        }
        let three = ["ids/part_0", "ids/part_1", "ids/part_2"];
        assert_eq!(other_cut(&three, true, &ids), Some("ids/part_0, ids/part_1".to_owned()));
        assert_eq!(other_cut(&three, false, &ids), None);
        assert_eq!(other_cut(&two, true, &before(&[("ids", 0)])), Some("ids".to_owned()));
        // An interrupted creation.
        assert_eq!(other_cut(&two, true, &before(&[("ids/part_0", 0)])), None);
    }
}
