//! Creating variables on parameter servers, and finding those that exist.

// - INV-63: enforced here. Tests: `between_graph/variables.rs`, `between_graph/training.rs`.

use super::super::channels::{ServerRequest, unexpected};
use super::super::{Channels, CreationPolicy, ParameterServers, PlacementRequest, TablePlacement};
use super::{Initial, Shard, Sharded};
use distribute_base::{Error, Result};
use distribute_cluster::Deadline;
use distribute_log::warn_or_stderr;
use distribute_optim::StochasticRounding;
use distribute_ps_tables::{Contents, LAYOUT_TABLE, Request, Response, TableInfo, TableKind, TableSpec};
use distribute_tensor::DType;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const OPERATION: &str = "creating a variable";

/// The shortest and the longest pause between two requests while this process waits for a table.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// The minimum rate at which a server creates a table, in bytes per second.
const SLOWEST_CREATION: usize = 4 << 20;

/// The maximum number of tables that a warning names.
const MAX_NAMED: usize = 10;

/// The existing tables, as far as this process knows them. All creations of variables share this state, and run one
/// after another.
#[derive(Debug, Default)]
pub(crate) struct CreationState {
    /// The tables on each server when they were last listed.
    listed: Vec<HashMap<String, TableInfo>>,
    /// The tables that this process has asked servers to create, even if they have not answered.
    asked: HashSet<String>,
    /// Whether the warning about existing tables was logged.
    warned: bool,
    /// The tables that existed when this process created its first variable, with the number of rows of each.
    before: Option<HashMap<String, usize>>,
    /// Whether other processes create the same variables.
    pub(crate) is_shared: bool,
    /// Whether the wait for the current variable has timed out.
    has_waited: bool,
}

/// The time to wait for a variable that another process creates.
#[derive(Clone, Copy)]
enum Wait {
    /// No time, because no process creates the variable.
    No,
    /// At most this time.
    For(Duration),
    /// No more time, because this time has already passed.
    Over(Duration),
}

impl CreationState {
    /// Requests the lists of tables from all servers, and stores them in `listed`.
    fn list(&mut self, channels: &Channels) -> Result<()> {
        let servers = 0..channels.count();
        let requests =
            servers.map(|server| ServerRequest { server, request: Request::List, bytes: 0 }).collect();
        let lists =
            channels.ask(OPERATION, requests)?.into_iter().enumerate().map(|(server, answer)| match answer {
                Response::Tables(tables) => {
                    Ok(tables.into_iter().map(|info| (info.name.clone(), info)).collect())
                }
                other => Err(unexpected(OPERATION, server, &other)),
            });
        self.listed = lists.collect::<Result<_>>()?;
        Ok(())
    }
}

impl CreationState {
    /// Returns the index of the server of each table of a variable; `None` for tables that do not exist. If `patience`
    /// is given, waits at most that time for all tables.
    pub(crate) fn find(
        &mut self,
        place: &TablePlacement,
        channels: &Channels,
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
            self.list(channels)?;
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

    fn servers_of(&self, place: &TablePlacement) -> Vec<Option<usize>> {
        let server = |table: String| self.listed.iter().position(|tables| tables.contains_key(&table));
        place.tables().map(server).collect()
    }
}

impl CreationState {
    /// Checks that an earlier process did not partition the variable in a different way, because its rows would be
    /// looked up on the wrong servers. Compares it with the tables that existed when this method was first called.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable was partitioned in a different way.
    /// - [`Error::Server`]: a server did not list its tables.
    fn reject_other_partition(&mut self, variable: &Sharded, is_dynamic: bool) -> Result<()> {
        if self.before.is_none() {
            self.list(&variable.channels)?;
            let all = self.listed.iter().flat_map(HashMap::values);
            self.before = Some(all.map(|info| (info.name.clone(), info.rows)).collect());
        }
        let tables: Vec<&str> = variable.shards.iter().map(|shard| shard.table.as_str()).collect();
        let found = self.before.as_ref().and_then(|before| other_partition(&tables, is_dynamic, before));
        found.map_or(Ok(()), |found| {
            let reason = format!(
                "variable {}: on the servers it is {found}, but here it is {}; use the partitioner that it \
                 was created with, or empty the folders of all servers and restore a checkpoint",
                variable.name,
                list_names(&tables)
            );
            Err(Error::invalid(OPERATION, reason))
        })
    }
}

/// Returns the names of a variable's existing tables if the variable was partitioned in a different way before, and
/// otherwise `None`. `tables` are the names of the variable's tables, and `is_dynamic` is whether its rows have ids.
/// `before` contains the number of rows of every existing table.
fn other_partition(tables: &[&str], is_dynamic: bool, before: &HashMap<String, usize>) -> Option<String> {
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
    (is_more || is_less).then(|| list_names(&found))
}

impl Sharded {
    /// Creates a variable, or finds one that another process has created in the same way. With `rounding`, servers
    /// store its values in bf16.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: this process does not create the variable, and no other process has created it in
    ///   time or in the same way; or an earlier process has partitioned it in a different way.
    /// - [`Error::Server`]: a server did not answer, or has a table with the same name and a different specification.
    /// - The errors of the partitioner and of the placement.
    pub fn create(
        servers: &ParameterServers,
        (name, dims, dtype): (&str, &[usize], DType),
        initial: &Initial,
        to: PlacementRequest,
        rounding: Option<StochasticRounding>,
    ) -> Result<Self> {
        servers.place((name, dims, dtype), to, |place, creation| {
            let variable = Self::placed(servers.channels().clone(), name, dims.to_vec(), dtype, place);
            match servers.creation_policy() {
                CreationPolicy::CreateMissing => variable.create_tables(initial, rounding, creation)?,
                creation_policy @ (CreationPolicy::Wait | CreationPolicy::RequireExisting) => {
                    let kind = match initial {
                        Initial::Ids(..) => TableKind::Dynamic,
                        Initial::Value(_) | Initial::Initialized(_) => TableKind::Dense,
                    };
                    let wait = match creation_policy {
                        // CC-3
                        CreationPolicy::RequireExisting => Wait::No,
                        // The wait took place when the location was chosen.
                        _ if std::mem::take(&mut creation.has_waited) => Wait::Over(servers.patience()),
                        _ => Wait::For(servers.patience()),
                    };
                    variable.wait_until_created(creation, kind, wait)?;
                }
                // CC-11
                CreationPolicy::Refuse => {
                    let reason = format!(
                        "variable {name}: a function that creates a dataset cannot create variables; \
                         create it in a function passed to create_per_worker_value"
                    );
                    return Err(Error::invalid(OPERATION, reason));
                }
            }
            Ok(variable)
        })
    }

    fn create_tables(
        &self,
        initial: &Initial,
        rounding: Option<StochasticRounding>,
        creation: &mut CreationState,
    ) -> Result<()> {
        let create = |(number, shard): (usize, &Shard)| {
            let contents = match initial {
                Initial::Value(value) => Contents::Values(self.shard_value(value, number)?),
                Initial::Initialized(initializer) => Contents::Initialized {
                    shape: self.dims.clone(),
                    dtype: self.dtype,
                    initializer: *initializer,
                    partition: self.partition,
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
            let spec = TableSpec { name: shard.table.clone(), contents, rule: None, rounding };
            Ok(ServerRequest { server: shard.server, request: Request::Create(spec), bytes })
        };
        let requests = self.shards.iter().enumerate().map(create).collect::<Result<_>>()?;
        creation.reject_other_partition(self, matches!(initial, Initial::Ids(..)))?;
        // A failed attempt may have created some of them.
        let first: Vec<bool> =
            self.shards.iter().map(|shard| creation.asked.insert(shard.table.clone())).collect();
        // The timeout alone would limit the size of tables. The loss of a server is noticed much earlier.
        let deadline = Deadline::after(self.channels.timeout().saturating_add(self.creation_time(initial)));
        let answers = self.channels.start(requests, deadline).wait(OPERATION)?;
        let (mut found, mut new) = (Vec::new(), Vec::new());
        for ((shard, answer), _) in self.shards.iter().zip(answers).zip(first).filter(|(_, first)| *first) {
            match answer {
                Response::Created { new: true } => new.push(shard.table.as_str()),
                Response::Created { new: false } => found.push(shard.table.as_str()),
                other => return Err(unexpected(OPERATION, shard.server, &other)),
            }
        }
        self.warn_existing(&found, &new, creation)
    }

    /// Returns the maximum time that a server takes for the values of a shard. Rows of ids are created later.
    fn creation_time(&self, initial: &Initial) -> Duration {
        let bytes = match initial {
            Initial::Value(_) | Initial::Initialized(_) => {
                self.shards.iter().map(|shard| self.bytes(shard.rows)).max().unwrap_or(0)
            }
            Initial::Ids(..) => 0,
        };
        Duration::from_secs((bytes / SLOWEST_CREATION) as u64)
    }

    /// Logs a warning if only some of the tables already existed, and, once for all variables, a warning that lists
    /// existing tables. Logs nothing if other processes create the same variables.
    fn warn_existing(&self, found: &[&str], new: &[&str], creation: &mut CreationState) -> Result<()> {
        // If other processes create the same variables, existing tables are expected.
        if found.is_empty() || creation.is_shared {
            return Ok(());
        }
        if !new.is_empty() {
            warn_or_stderr(|| {
                tracing::warn!(
                    "variable {}: servers had {} but not {}, which start with new values: unless a \
                     connection was lost, its values belong to two training runs; restore a checkpoint, or \
                     empty the folders of all servers and start again",
                    self.name,
                    list_names(found),
                    list_names(new)
                );
            });
        }
        if std::mem::replace(&mut creation.warned, true) {
            return Ok(());
        }
        creation.list(&self.channels)?;
        let all = creation.listed.iter().flat_map(HashMap::keys).map(String::as_str);
        let mut all: Vec<&str> = all
            .filter(|table| *table != LAYOUT_TABLE)
            .filter(|table| found.contains(table) || !creation.asked.contains(*table))
            .collect();
        all.sort_unstable();
        warn_or_stderr(|| {
            tracing::warn!(
                "servers have tables of an earlier training run, with which this one continues: {}; to start \
                 from new values, empty the folders of all servers and start them again",
                list_names(&all)
            );
        });
        Ok(())
    }

    // C8: servers are asked again for what was not there.
    /// Waits until another process has created the variable, at most as long as `wait` permits.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable was not created in time, or has a different shape, dtype or kind.
    /// - [`Error::Server`]: a server did not list its tables.
    fn wait_until_created(&self, creation: &mut CreationState, kind: TableKind, wait: Wait) -> Result<()> {
        let deadline = Deadline::after(match wait {
            Wait::For(patience) => patience,
            Wait::No | Wait::Over(_) => Duration::ZERO,
        });
        let [mut pause, longest] = PAUSES;
        loop {
            if self.is_listed(creation, kind)? {
                return Ok(());
            }
            creation.list(&self.channels)?;
            if self.is_listed(creation, kind)? {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(self.missing(creation, kind, wait));
            }
            std::thread::park_timeout(pause.min(deadline.remaining()));
            pause = longest.min(pause * 2);
        }
    }

    /// Returns `true` if all tables of the variable existed when tables were last listed.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a table has a different shape, dtype or kind.
    fn is_listed(&self, creation: &CreationState, kind: TableKind) -> Result<bool> {
        for shard in &self.shards {
            let tables = creation.listed.get(shard.server);
            let Some(info) = tables.and_then(|tables| tables.get(&shard.table)) else { return Ok(false) };
            let dims = self.dims_of(shard, kind);
            if info.kind != kind || info.shape != dims || info.dtype != self.dtype {
                let found = format!("there is a table of {}", describe(info.kind, info.dtype, &info.shape));
                return Err(self.mismatch(shard, kind, &found));
            }
        }
        Ok(true)
    }

    fn missing(&self, creation: &CreationState, kind: TableKind, wait: Wait) -> Error {
        let patience = match wait {
            Wait::For(patience) | Wait::Over(patience) => patience,
            Wait::No => {
                let reason = format!(
                    "variable {}: it does not exist, and a scheduled function cannot create variables \
                     because it may run on any worker and be retried; create it before, in the \
                     coordinator's scope or in a function passed to create_per_worker_value",
                    self.name
                );
                return Error::invalid(OPERATION, reason);
            }
        };
        let has = |shard: &&Shard| {
            creation.listed.get(shard.server).is_some_and(|tables| tables.contains_key(&shard.table))
        };
        match self.shards.iter().find(|shard| !has(shard)) {
            Some(shard) => {
                let found = format!("no variable of this name was created within {patience:?}");
                self.mismatch(shard, kind, &found)
            }
            None => Error::invalid(OPERATION, format!("variable {} has no table", self.name)),
        }
    }

    fn mismatch(&self, shard: &Shard, kind: TableKind, found: &str) -> Error {
        let reason = format!(
            "variable {}: ps {} must have a table {} of {}, but {found}; the chief creates variables and \
             other workers wait for them, so all must create the same ones in the same order, with the same \
             partitioner",
            self.name,
            shard.server,
            shard.table,
            describe(kind, self.dtype, &self.dims_of(shard, kind))
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

fn describe(kind: TableKind, dtype: DType, dims: &[usize]) -> String {
    match kind {
        TableKind::Dense => format!("{dtype}{dims:?}"),
        TableKind::Dynamic => format!("ids, of rows {dtype}{dims:?}"),
    }
}

/// Lists the first names in a text, followed by the number of the others.
fn list_names(names: &[&str]) -> String {
    match names.len().checked_sub(MAX_NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MAX_NAMED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_base::internal::lock;
    use distribute_cluster::World;
    use distribute_ps_tables::{
        Channel, ChannelError, Initializer, LocalChannel, PartitionStrategy, Started, TablePolicy,
    };
    use distribute_tensor::HostTensor;
    use distribute_tensor::random::Distribution;
    use std::sync::{Arc, Mutex};

    /// A server that creates nothing, and the timeout of each creation.
    #[derive(Debug)]
    struct Timed(LocalChannel, Arc<Mutex<Vec<Duration>>>);

    impl Channel for Timed {
        fn server(&self) -> &str {
            self.0.server()
        }

        fn start(&self, request: Request, timeout: Duration) -> std::result::Result<Started, ChannelError> {
            if matches!(request, Request::Create(_)) {
                lock(&self.1).push(timeout);
                let name = format!("table {}", lock(&self.1).len());
                let spec = TableSpec::values(name, HostTensor::scalar(0f32));
                return self.0.start(Request::Create(spec), timeout);
            }
            self.0.start(request, timeout)
        }
    }

    #[test]
    fn the_creation_of_a_larger_table_may_take_longer() {
        let timeouts = Arc::<Mutex<Vec<Duration>>>::default();
        let channel = |server| {
            let channel = LocalChannel::new(server, Arc::default());
            Arc::new(Timed(channel, timeouts.clone())) as Arc<dyn Channel>
        };
        let policy = TablePolicy { min_bytes: 0, partition: PartitionStrategy::Mod, all_weights: false };
        let minute = Duration::from_secs(60);
        let channels = vec![channel(0), channel(1)];
        let servers =
            ParameterServers::of_tables(channels, (minute, minute), policy, World::default()).unwrap();
        let create = |name: &str, rows: usize| {
            let initializer = Initializer::new(Distribution::Constant(0.), 7, name);
            let to = servers.location(rows, Some(rows << 7), PlacementRequest::Anywhere);
            let initial = Initial::Initialized(initializer);
            Sharded::create(&servers, (name, &[rows, 32], DType::F32), &initial, to, None).unwrap();
            std::mem::take(&mut *lock(&timeouts))
        };
        assert!(create("small", 1000).iter().all(|timeout| *timeout <= minute));
        // 512 MiB for each server: two minutes more.
        let large = create("large", 8 << 20);
        assert!(large.len() == 2 && large.iter().all(|timeout| *timeout > 2 * minute), "{large:?}");
    }

    // INV-73
    #[test]
    fn a_variable_with_other_shards_is_distinguished_from_a_partially_created_one() {
        let before = |tables: &[(&str, usize)]| -> HashMap<String, usize> {
            tables.iter().map(|(name, rows)| ((*name).to_owned(), *rows)).collect()
        };
        let ids = before(&[("ids/part_0", 5), ("ids/part_1", 0), ("other/part_7", 1), ("ids_1", 3)]);
        let two = ["ids/part_0", "ids/part_1"];
        for is_dynamic in [false, true] {
            assert_eq!(other_partition(&two, is_dynamic, &ids), None);
            assert_eq!(
                other_partition(&["ids"], is_dynamic, &ids),
                Some("ids/part_0, ids/part_1".to_owned())
            );
            assert_eq!(
                other_partition(&["ids/part_0"], is_dynamic, &ids),
                Some("ids/part_0, ids/part_1".to_owned())
            );
            assert_eq!(other_partition(&["new"], is_dynamic, &ids), None);
        }
        let three = ["ids/part_0", "ids/part_1", "ids/part_2"];
        assert_eq!(other_partition(&three, true, &ids), Some("ids/part_0, ids/part_1".to_owned()));
        assert_eq!(other_partition(&three, false, &ids), None);
        assert_eq!(other_partition(&two, true, &before(&[("ids", 0)])), Some("ids".to_owned()));
        // An interrupted creation.
        assert_eq!(other_partition(&two, true, &before(&[("ids/part_0", 0)])), None);
    }
}
