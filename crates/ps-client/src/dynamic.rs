//! [`Dynamic`]: a variable on parameter servers whose rows have 64-bit ids.

use super::channels::{ServerRequest, unexpected};
use super::sharded::{self, Initial, REQUEST_BYTES, RowRead, Sharded, UniqueRows};
use super::{ParameterServers, PlacementRequest};
use distribute_base::Result;
use distribute_log::warn_or_stderr;
use distribute_optim::StochasticRounding;
use distribute_ps_tables::{
    DynamicOptions, DynamicState, HashPartition, Initializer, Push, Request, Response, RowPartition, State,
    TableInfo, UniqueIds,
};
use distribute_tensor::{DType, HostTensor};
use std::borrow::Cow;
use std::cmp::Reverse;

/// The maximum number of ids in a request that lists the rows to keep.
const MAX_IDS: usize = 1 << 20;

/// A variable whose rows are in a dynamic table on each server, or in a single one. A hash of the id determines the
/// server of a row.
#[derive(Clone, Debug)]
pub struct Dynamic {
    /// The tables as the shards of a variable, in which each table counts as one row.
    tables: Sharded,
    partition: HashPartition,
    options: DynamicOptions,
}

impl Dynamic {
    /// Creates a variable, or finds one that another process has created in the same way. It has a table on each
    /// server, or only one, on the server of another variable.
    ///
    /// # Errors
    /// Returns the errors of [`Sharded::create`].
    pub fn create(
        servers: &ParameterServers,
        (name, row, dtype): (&str, &[usize], DType),
        (initializer, options): (Initializer, DynamicOptions),
        to: PlacementRequest,
        rounding: Option<StochasticRounding>,
    ) -> Result<Self> {
        let (count, to) = match to {
            PlacementRequest::NextTo(server) => (1, PlacementRequest::NextTo(server)),
            PlacementRequest::Anywhere | PlacementRequest::PartitionedAs(_) => {
                let count = servers.count();
                (count, PlacementRequest::PartitionedAs(RowPartition::div(count, count)))
            }
        };
        let dims: Vec<usize> = std::iter::once(&count).chain(row).copied().collect();
        let initial = Initial::Ids(initializer, options);
        let tables = Sharded::create(servers, (name, &dims, dtype), &initial, to, rounding)?;
        Ok(Self { tables, partition: HashPartition::new(count), options })
    }

    /// Returns the tables on the servers.
    pub fn tables(&self) -> &Sharded {
        &self.tables
    }

    /// Returns the index of the shard that stores the row of an id.
    pub(crate) fn shard(&self, id: i64) -> usize {
        self.partition.shard(id)
    }

    /// Returns the options for creating and evicting rows.
    pub fn options(&self) -> DynamicOptions {
        self.options
    }

    /// Reads the rows of `ids`. A row whose id is repeated is read once.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the rows on a server have a different
    ///   shape or dtype.
    pub fn read_unique(&self, operation: &'static str, ids: &[i64]) -> Result<UniqueRows> {
        self.row_read(operation, ids).send(operation)
    }

    /// Prepares a read of the rows of `ids`, without sending it. A row whose id is repeated is read once.
    pub fn row_read(&self, operation: &'static str, ids: &[i64]) -> RowRead<'_> {
        Self::row_read_of(Cow::Borrowed(self), operation, ids)
    }

    /// Equivalent to [`row_read`](Self::row_read), except that the read may own the variable.
    pub(crate) fn row_read_of<'a>(of: Cow<'a, Self>, operation: &'static str, ids: &[i64]) -> RowRead<'a> {
        let unique = UniqueIds::new(ids);
        let split = of.partition.split(unique.ids());
        let asked: Vec<usize> = (0..split.shards()).filter(|shard| !split.of(*shard).is_empty()).collect();
        let ask = |shard: &usize| {
            let ids = split.of(*shard).to_vec();
            of.request_to(*shard, ids.len(), |table| Request::ReadRows { table, rows: ids })
        };
        let (channels, requests) = (of.tables.channels().clone(), asked.iter().map(ask).collect());
        RowRead::new(&channels, requests, move |answers| {
            let mut parts = Vec::with_capacity(asked.len());
            let mut places = vec![0; unique.ids().len()];
            let mut next = 0;
            for (shard, answer) in asked.iter().zip(answers) {
                match answer {
                    Response::Rows(rows) => {
                        parts.push(of.validate(operation, *shard, split.of(*shard).len(), rows)?)
                    }
                    other => return Err(of.unexpected(operation, *shard, &other)),
                }
                for position in split.positions(*shard) {
                    places[*position] = next;
                    next += 1;
                }
            }
            let none = || Ok(HostTensor::zeros(of.tables.dtype(), of.rows_shape(0))?);
            Ok(UniqueRows { rows: sharded::joined(parts, none)?, places: unique.spread(&places, 1) })
        })
    }

    /// Returns the requests that apply a gradient to the rows of `ids`, which must be distinct. `gradient(positions)`
    /// returns the gradients of the ids at these positions in `ids`.
    ///
    /// # Errors
    /// Returns the error of `gradient`.
    pub fn push(
        &self,
        push: Push,
        ids: &[i64],
        gradient: impl Fn(&[usize]) -> Result<HostTensor>,
    ) -> Result<Vec<ServerRequest>> {
        let split = self.partition.split(ids);
        let mut requests = Vec::new();
        for shard in (0..split.shards()).filter(|shard| !split.of(*shard).is_empty()) {
            let gradient = gradient(split.positions(shard))?;
            let rows = split.of(shard).to_vec();
            requests.push(self.request_to(shard, rows.len(), |table| Request::PushRows {
                table,
                push,
                rows,
                gradient,
            }));
        }
        Ok(requests)
    }

    /// Reads all ids that have a row, in ascending order, with their values and slots.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): a server has lost its table.
    pub fn rows(&self, operation: &'static str) -> Result<DynamicState> {
        let mut parts = vec![DynamicState {
            ids: Vec::new(),
            used: Vec::new(),
            values: HostTensor::zeros(self.tables.dtype(), self.rows_shape(0))?,
            slots: Vec::new(),
        }];
        for (shard, info) in self.infos(operation)?.into_iter().enumerate() {
            for part in 0..info.parts {
                let ask = self
                    .request_to(shard, info.rows / info.parts, |table| Request::StatePart { table, part });
                match self.tables.channels().ask(operation, vec![ask])?.pop() {
                    Some(Response::State(State::Ids(state))) => parts.push(state),
                    other => return Err(self.unexpected(operation, shard, &other.unwrap_or(Response::Done))),
                }
            }
        }
        merge(parts)
    }

    /// Returns the properties of the table on each server.
    pub(super) fn infos(&self, operation: &'static str) -> Result<Vec<TableInfo>> {
        let shards = self.tables.shards();
        let requests = shards.iter().map(|shard| ServerRequest {
            server: shard.server,
            request: Request::List,
            bytes: 0,
        });
        let answers = self.tables.channels().ask(operation, requests.collect())?;
        let info = |(number, answer): (usize, Response)| match answer {
            Response::Tables(all) => {
                let found = all.into_iter().find(|info| info.name == shards[number].table);
                found.ok_or_else(|| {
                    let reason = format!("{} has no table {}", self.location(number), shards[number].table);
                    distribute_base::Error::invalid(operation, reason)
                })
            }
            other => Err(self.unexpected(operation, number, &other)),
        };
        answers.into_iter().enumerate().map(info).collect()
    }

    /// Returns `true` if this worker sends the changes of an id's row. In lock step, each id is one of exactly one
    /// worker.
    pub fn is_own(&self, id: i64) -> bool {
        self.tables.channels().sends_changes(self.tables.shards()[self.shard(id)].server)
    }

    /// Removes the rows of all ids that are [own](Self::is_own) ones, except those of `ids`.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer. Some of the rows may have been
    ///   removed.
    pub fn keep_own(&self, operation: &'static str, ids: &[i64]) -> Result<()> {
        let split = self.partition.split(ids);
        (0..split.shards()).try_for_each(|shard| self.keep(operation, shard, split.of(shard).to_vec()))
    }

    /// Sets the values of `ids`. `used` contains the [uses](DynamicState::used) of each id. Slots of existing rows do
    /// not change; new rows get initial slots. Returns the number of rows for which a server does not have space. These
    /// are the ones that would be evicted first, of those that are set in one call.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer. Some of the rows may have been
    ///   set.
    pub fn set_values(
        &self,
        operation: &'static str,
        ids: &[i64],
        used: &[u64],
        values: impl Fn(&[usize]) -> Result<HostTensor>,
    ) -> Result<usize> {
        let split = self.partition.split(ids);
        let mut left_out = 0;
        for shard in 0..split.shards() {
            // The ids that are evicted last come first, so that they are there if not all of them fit.
            let mut positions = split.positions(shard).to_vec();
            positions.sort_unstable_by_key(|at| (Reverse(used[*at]), Reverse(ids[*at])));
            for some in positions.chunks(self.rows_per_request(1)) {
                let values = values(some)?;
                let (ids, used) = some.iter().map(|at| (ids[*at], used[*at])).unzip();
                left_out += self.restore(operation, shard, State::IdValues { ids, used, values })?;
            }
        }
        Ok(left_out)
    }

    /// Creates rows for `ids`, with zeros as values, if the number of rows is limited. If there is not enough space,
    /// the rows that would be evicted first are left out. [`set_values`](Self::set_values) can then be called for some
    /// of the ids after another.
    ///
    /// # Errors
    /// Returns the errors of [`set_values`](Self::set_values).
    pub fn reserve(&self, operation: &'static str, ids: &[i64], used: &[u64]) -> Result<()> {
        if self.options.max_rows.is_none() {
            return Ok(());
        }
        let zeros = |some: &[usize]| Ok(HostTensor::zeros(self.tables.dtype(), self.rows_shape(some.len()))?);
        self.set_values(operation, ids, used, zeros).map(drop)
    }

    /// Sets the slots of `ids`. Ids without a row get one. Returns the number of rows for which a server does not have
    /// space.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer. Some of the slots may have been
    ///   set.
    pub fn set_slots(
        &self,
        operation: &'static str,
        ids: &[i64],
        slots: &[(String, HostTensor)],
    ) -> Result<usize> {
        let split = self.partition.split(ids);
        let mut left_out = 0;
        for shard in 0..split.shards() {
            for some in split.positions(shard).chunks(self.rows_per_request(slots.len())) {
                let slots = slots.iter().map(|(name, slot)| Ok((name.clone(), slot.take_rows(some)?)));
                let slots = slots.collect::<Result<_>>()?;
                let ids = some.iter().map(|at| ids[*at]).collect();
                left_out += self.restore(operation, shard, State::IdSlots { ids, slots })?;
            }
        }
        Ok(left_out)
    }

    /// Logs a warning if rows were not restored because there was no space for them.
    pub fn warn_left_out(&self, left_out: usize) {
        if left_out > 0 {
            warn_or_stderr(|| {
                tracing::warn!(
                    "variable {}: {left_out} rows were not restored because a server has reached max_rows",
                    self.tables.name()
                );
            });
        }
    }

    /// Removes all rows of a shard except those of `ids`.
    fn keep(&self, operation: &'static str, shard: usize, mut ids: Vec<i64>) -> Result<()> {
        ids.sort_unstable();
        let mut first = i64::MIN;
        let mut rest = ids.as_slice();
        loop {
            let (some, others) = rest.split_at(rest.len().min(MAX_IDS));
            // Up to the first id of the next message.
            let last = others.first().map_or(i64::MAX, |next| next - 1);
            let keep = |table| Request::Keep { table, between: (first, last), ids: some.to_vec() };
            self.tables.channels().ask(operation, vec![self.request_to(shard, some.len(), keep)])?;
            let Some(next) = others.first() else { return Ok(()) };
            (first, rest) = (*next, others);
        }
    }

    fn restore(&self, operation: &'static str, shard: usize, state: State) -> Result<usize> {
        let request = |table| Request::Restore { table, state };
        match self
            .tables
            .channels()
            .ask(operation, vec![self.request_to(shard, self.rows_per_request(1), request)])?
            .pop()
        {
            Some(Response::Restored { left_out }) => Ok(left_out),
            other => Err(self.unexpected(operation, shard, &other.unwrap_or(Response::Done))),
        }
    }

    /// Returns a request to the server of a shard. `rows` is the number of rows that the request sends or reads, from
    /// which its size is estimated.
    pub(super) fn request_to(
        &self,
        shard: usize,
        rows: usize,
        request: impl FnOnce(String) -> Request,
    ) -> ServerRequest {
        let shard = &self.tables.shards()[shard];
        ServerRequest {
            server: shard.server,
            request: request(shard.table.clone()),
            bytes: self.tables.bytes(rows),
        }
    }

    /// Returns the maximum number of rows in a request if each row consists of `tensors` tensors.
    fn rows_per_request(&self, tensors: usize) -> usize {
        (REQUEST_BYTES / self.tables.bytes(tensors.max(1)).max(1)).max(1)
    }

    fn validate(
        &self,
        operation: &'static str,
        shard: usize,
        count: usize,
        rows: HostTensor,
    ) -> Result<HostTensor> {
        if rows.dims() == self.rows_shape(count) && rows.dtype() == self.tables.dtype() {
            return Ok(rows);
        }
        let reason = format!("{} sent {} for {count} ids", self.location(shard), rows.describe());
        Err(distribute_base::Error::invalid(operation, reason))
    }

    fn location(&self, shard: usize) -> String {
        format!("ps {}", self.tables.shards()[shard].server)
    }

    pub(super) fn unexpected(
        &self,
        operation: &'static str,
        shard: usize,
        found: &Response,
    ) -> distribute_base::Error {
        unexpected(operation, self.tables.shards()[shard].server, found)
    }

    fn rows_shape(&self, rows: usize) -> Vec<usize> {
        let row = self.tables.dims().get(1..).unwrap_or_default();
        std::iter::once(&rows).chain(row).copied().collect()
    }
}

/// Merges parts of tables, and sorts their rows by id. The first part determines the dtype and the shape of a row; it
/// may be empty.
fn merge(parts: Vec<DynamicState>) -> Result<DynamicState> {
    // Parts without rows may have been read before there were slots.
    let names: Vec<String> = parts
        .iter()
        .find(|part| !part.slots.is_empty())
        .map(|part| part.slots.iter().map(|(name, _)| name.clone()).collect())
        .unwrap_or_default();
    let some: Vec<&DynamicState> = parts
        .iter()
        .enumerate()
        .filter(|(i, part)| *i == 0 || !part.ids.is_empty())
        .map(|(_, part)| part)
        .collect();
    let values = HostTensor::concat(&some.iter().map(|part| &part.values).collect::<Vec<_>>(), 0)?;
    let slot = |number: usize| {
        // Parts without slots have no rows.
        let all = parts.iter().filter_map(|part| Some(&part.slots.get(number)?.1));
        HostTensor::concat(&all.collect::<Vec<_>>(), 0)
    };
    let slots = names.into_iter().enumerate().map(|(i, name)| Ok((name, slot(i)?))).collect::<Result<_>>()?;
    let ids: Vec<i64> = some.iter().flat_map(|part| part.ids.iter().copied()).collect();
    let used: Vec<u64> = some.iter().flat_map(|part| part.used.iter().copied()).collect();
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_unstable_by_key(|at| ids[*at]);
    Ok(DynamicState { ids, used, values, slots }.take(&order)?)
}
