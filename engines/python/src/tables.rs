//! The shards of a variable, and the operations on them.

use crate::arrays::{elements, numbers};
use crate::calls::{Calls, unexpected};
use crate::errors::{Error, Result};
use distribute_cluster::fnv1a;
use distribute_optim::RuleSpec;
use distribute_ps_tables::{
    Contents, DynamicOptions, HashPartition, Initializer, PartitionStrategy, Push, PushResult, Request,
    Response, RowLocation, RowPartition, TableInfo, TableKind, TableSpec, shard_name, variable_of,
};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, Element, HostTensor, Write};

/// The minimum size in bytes of a shard, if the number of shards is not given. Smaller variables are on one server.
const MIN_SHARD: usize = 256 << 10;

/// The division of a variable's rows among the shards.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    Dense(RowPartition),
    Dynamic(HashPartition),
}

/// A variable, whose shards are tables on the servers.
#[derive(Debug)]
pub struct Shards {
    pub name: String,
    /// The shape of a dense variable, or of a row of a dynamic one.
    pub dims: Vec<usize>,
    pub dtype: DType,
    pub rows: Rows,
    /// The server of each shard, and the name of its table.
    pub tables: Vec<(usize, String)>,
}

/// The initial contents of a new variable.
#[derive(Clone)]
pub enum Initial {
    Value(HostTensor),
    Initialized(Initializer),
    Ids(Initializer, DynamicOptions),
}

/// Lists the variables' tables on all servers, each with the index of its server. Names that begin with `~` are not
/// variables.
pub fn list(calls: &Calls) -> Result<Vec<(usize, TableInfo)>> {
    let answers = calls.all((0..calls.servers()).map(|server| (server, Request::List)).collect())?;
    let mut all = Vec::new();
    for (server, answer) in answers.into_iter().enumerate() {
        let Response::Tables(tables) = answer else { return Err(unexpected(&answer)) };
        all.extend(
            tables.into_iter().filter(|table| !table.name.starts_with('~')).map(|table| (server, table)),
        );
    }
    Ok(all)
}

impl Shards {
    /// Finds a variable among the tables of all servers. Returns `None` if there is none of this name.
    ///
    /// # Errors
    /// - [`Error::Other`]: the tables of this name are not all parts of one variable.
    pub fn find(name: &str, strategy: PartitionStrategy, all: &[(usize, TableInfo)]) -> Result<Option<Self>> {
        let mut found: Vec<_> = all
            .iter()
            .filter_map(|(server, table)| {
                let (of, part) = variable_of(&table.name);
                let is_it = table.name == name || (of == name && part.is_some());
                is_it.then(|| (if table.name == name { 0 } else { part.unwrap_or(0) }, *server, table))
            })
            .collect();
        found.sort_by_key(|(part, ..)| *part);
        let Some((.., first)) = found.first() else { return Ok(None) };
        let broken = |what: String| Error::Other(format!("variable {name}: {what}"));
        if found.iter().enumerate().any(|(i, (part, ..))| i != *part) {
            let parts: Vec<_> = found.iter().map(|(.., table)| table.name.as_str()).collect();
            return Err(broken(format!(
                "the servers have {}, which are not all of its parts",
                parts.join(", ")
            )));
        }
        let shards = found.len();
        let rows = match first.kind {
            TableKind::Dynamic => Rows::Dynamic(HashPartition::new(shards)),
            TableKind::Dense => {
                let partition =
                    RowPartition::new(strategy, found.iter().map(|(.., table)| table.rows).sum(), shards);
                if let Some((part, _, table)) =
                    found.iter().find(|(part, _, table)| partition.len(*part) != table.rows)
                {
                    return Err(broken(format!(
                        "part {part} has {} rows, but an even partition has {} there",
                        table.rows,
                        partition.len(*part)
                    )));
                }
                Rows::Dense(partition)
            }
        };
        let mut dims = first.shape.clone();
        if let (Rows::Dense(partition), Some(height)) = (rows, dims.first_mut()) {
            *height = partition.rows();
        }
        let tables = found.iter().map(|(_, server, table)| (*server, table.name.clone())).collect();
        Ok(Some(Self { name: name.to_owned(), dims, dtype: first.dtype, rows, tables }))
    }

    /// Creates a variable, or finds the existing one if it was created with the same arguments.
    ///
    /// # Errors
    /// - [`Error::Argument`]: the shape is too large.
    /// - [`Error::Channel`]: a server has another variable of this name, or does not respond.
    pub fn create(
        calls: &Calls,
        (name, dims, dtype): (&str, &[usize], DType),
        (initial, rule): (&Initial, Option<RuleSpec>),
        (shards, strategy): (Option<usize>, PartitionStrategy),
    ) -> Result<Self> {
        let servers = calls.servers();
        let elements = dims.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bytes().unwrap_or(1)));
        let bytes =
            bytes.ok_or_else(|| Error::Argument(format!("{name}: the shape {dims:?} is too large")))?;
        let is_dynamic = matches!(initial, Initial::Ids(..));
        let fitting = if is_dynamic { servers } else { servers.min((bytes / MIN_SHARD).max(1)) };
        let rows = dims.first().copied().unwrap_or(1);
        let wanted = shards.unwrap_or(fitting);
        let of = if is_dynamic {
            Rows::Dynamic(HashPartition::new(wanted))
        } else {
            Rows::Dense(RowPartition::new(strategy, rows, wanted))
        };
        let count = match of {
            Rows::Dense(partition) => partition.shards(),
            Rows::Dynamic(partition) => partition.shards(),
        };
        let named = |shard| {
            if count == 1 && shards.is_none_or(|shards| shards == 1) {
                name.to_owned()
            } else {
                shard_name(name, shard)
            }
        };
        // Variables on one server are spread over the servers by their names.
        let first = fnv1a(name.bytes()) as usize;
        let tables: Vec<_> =
            (0..count).map(|shard| (first.wrapping_add(shard) % servers, named(shard))).collect();
        let new = Self { name: name.to_owned(), dims: dims.to_vec(), dtype, rows: of, tables };
        // Tables stay where another program has placed them.
        let new = match Self::find(name, strategy, &list(calls)?)? {
            Some(found) if found.tables.len() == count => Self { tables: found.tables, ..new },
            Some(found) => {
                let text = format!(
                    "variable {name} exists with {} shards of shape {:?}, and was to be created with {count} of shape {dims:?}",
                    found.tables.len(),
                    found.dims
                );
                return Err(Error::Argument(text));
            }
            None => new,
        };
        let mut requests = Vec::new();
        for (shard, (server, table)) in new.tables.iter().enumerate() {
            let contents = match (initial, of) {
                (Initial::Value(value), _) => Contents::Values(new.part_of(value, shard)?),
                (Initial::Initialized(initializer), Rows::Dense(partition)) => Contents::Initialized {
                    shape: dims.to_vec(),
                    dtype,
                    initializer: *initializer,
                    partition,
                    shard,
                },
                (Initial::Ids(initializer, options), _) => Contents::Dynamic {
                    row_shape: dims.to_vec(),
                    dtype,
                    initializer: *initializer,
                    options: *options,
                },
                (Initial::Initialized(_), Rows::Dynamic(_)) => {
                    return Err(Error::Argument(format!("{name}: ids and a shape")));
                }
            };
            let spec = TableSpec { name: table.clone(), contents, rule: None, rounding: None };
            requests.push((*server, Request::Create(spec)));
        }
        calls.all(requests)?;
        if let Some(rule) = rule {
            new.set_rule(calls, &rule)?;
        }
        Ok(new)
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.tables.len()
    }

    /// Returns the shape of a row.
    pub fn row_dims(&self) -> &[usize] {
        match self.rows {
            Rows::Dense(_) => self.dims.get(1..).unwrap_or_default(),
            Rows::Dynamic(_) => &self.dims,
        }
    }

    fn width(&self) -> usize {
        self.row_dims().iter().product()
    }

    /// Sets the update rule of all shards.
    pub fn set_rule(&self, calls: &Calls, rule: &RuleSpec) -> Result<()> {
        self.each(calls, |_, table| Ok(Some(Request::SetRule { table, rule: rule.clone() }))).map(drop)
    }

    /// Sends a request to each shard for which `request` returns one. Returns the responses, each with the index of its
    /// shard.
    pub fn each(
        &self,
        calls: &Calls,
        request: impl Fn(usize, String) -> Result<Option<Request>>,
    ) -> Result<Vec<(usize, Response)>> {
        let (mut shards, mut requests) = (Vec::new(), Vec::new());
        for (shard, (server, table)) in self.tables.iter().enumerate() {
            if let Some(request) = request(shard, table.clone())? {
                shards.push(shard);
                requests.push((*server, request));
            }
        }
        Ok(shards.into_iter().zip(calls.all(requests)?).collect())
    }

    /// Returns the partition of a dense variable, or an error of `operation` for a dynamic one.
    fn partition(&self, operation: &str) -> Result<RowPartition> {
        match self.rows {
            Rows::Dense(partition) => Ok(partition),
            Rows::Dynamic(_) => Err(Error::Argument(format!(
                "{operation}: {} has rows by ids: use look_up, push_rows and state",
                self.name
            ))),
        }
    }

    /// Returns the rows of one shard, from a tensor with the rows of the complete variable.
    fn part_of(&self, value: &HostTensor, shard: usize) -> Result<HostTensor> {
        let partition = self.partition("assign")?;
        if value.dims() != self.dims {
            let text =
                format!("{} has the shape {:?}, and the value {:?}", self.name, self.dims, value.dims());
            return Err(Error::Argument(text));
        }
        if self.tables.len() == 1 {
            return Ok(value.clone());
        }
        let rows: Vec<usize> =
            (0..partition.len(shard)).map(|row| partition.row(RowLocation { shard, row })).collect();
        Ok(value.take_rows(&rows)?)
    }

    /// Joins the tensors of all shards, in the order of the shards, into the tensor of the complete variable.
    pub fn whole(&self, mut parts: Vec<HostTensor>) -> Result<HostTensor> {
        let partition = self.partition("pull")?;
        match parts.pop() {
            Some(only) if parts.is_empty() => return Ok(only),
            last => parts.extend(last),
        }
        let mut dims = parts.first().map(|part| part.dims().to_vec()).unwrap_or_default();
        if let Some(height) = dims.first_mut() {
            *height = partition.rows();
        }
        let width: usize = dims.get(1..).unwrap_or_default().iter().product();
        fn put<T: Element + Copy + Default>(
            parts: &[HostTensor],
            partition: RowPartition,
            width: usize,
        ) -> Buffer {
            let mut whole = vec![T::default(); partition.rows() * width];
            for (shard, part) in parts.iter().enumerate() {
                let part: &[T] = elements(part.buffer());
                if partition.strategy() == PartitionStrategy::Div {
                    let start = partition.row(RowLocation { shard, row: 0 }) * width;
                    whole[start..start + part.len()].copy_from_slice(part);
                    continue;
                }
                for (row, values) in part.chunks_exact(width.max(1)).enumerate() {
                    let at = partition.row(RowLocation { shard, row }) * width;
                    whole[at..at + width].copy_from_slice(values);
                }
            }
            T::into_buffer(whole)
        }
        let buffer = numbers!(self.dtype, T => put::<T>(&parts, partition, width), other => {
            return Err(Error::Argument(format!("{}: {} is not supported here", self.name, other.name())));
        });
        Ok(HostTensor::from_buffer(buffer, dims)?)
    }

    /// Reads the complete dense variable.
    pub fn pull(&self, calls: &Calls) -> Result<HostTensor> {
        self.partition("pull")?;
        let read = |_, table| Ok(Some(Request::Read { table, known: None, may_round: false }));
        let values = self.each(calls, read)?.into_iter().map(|(_, answer)| match answer {
            Response::Value(read) => Ok(read.value),
            other => Err(unexpected(&other)),
        });
        self.whole(values.collect::<Result<_>>()?)
    }

    /// Writes the complete dense variable.
    pub fn assign(&self, calls: &Calls, how: Write, value: &HostTensor) -> Result<()> {
        let write =
            |shard, table| Ok(Some(Request::Write { table, how, value: self.part_of(value, shard)? }));
        self.each(calls, write).map(drop)
    }

    /// Checks a gradient that must be finite before any shard applies it, because otherwise some shards would apply it
    /// and others refuse it.
    fn require_finite(&self, operation: &'static str, push: Push, gradient: &HostTensor) -> Result<()> {
        let finite = match gradient.dtype() {
            _ if !push.is_finite() => true,
            DType::F32 => elements::<f32>(gradient.buffer()).iter().all(|x| x.is_finite()),
            DType::F64 => elements::<f64>(gradient.buffer()).iter().all(|x| x.is_finite()),
            _ => true,
        };
        if finite {
            return Ok(());
        }
        let text =
            format!("{operation}: the gradient of {} has NaN or infinity; nothing was sent", self.name);
        Err(Error::NotFinite(text))
    }

    /// Pushes a gradient of the complete dense variable.
    pub fn push(&self, calls: &Calls, push: Push, gradient: &HostTensor) -> Result<()> {
        self.require_finite("push", push, gradient)?;
        let request =
            |shard, table| Ok(Some(Request::Push { table, push, gradient: self.part_of(gradient, shard)? }));
        self.each(calls, request).map(drop)
    }

    /// Returns the rows or ids of each shard, and their positions in `ids`.
    pub fn split(&self, operation: &'static str, ids: &[i64]) -> Result<Vec<(Vec<i64>, Vec<usize>)>> {
        let count = 0..self.tables.len();
        Ok(match self.rows {
            Rows::Dense(partition) => {
                let split = partition.split(operation, ids)?;
                let rows = |shard| split.of(shard).iter().map(|row| *row as i64).collect();
                count.map(|shard| (rows(shard), split.positions(shard).to_vec())).collect()
            }
            Rows::Dynamic(partition) => {
                let split = partition.split(ids);
                count.map(|shard| (split.of(shard).to_vec(), split.positions(shard).to_vec())).collect()
            }
        })
    }

    /// Reads rows, in the order of the ids.
    pub fn look_up(&self, calls: &Calls, ids: &[i64]) -> Result<HostTensor> {
        let split = self.split("look_up", ids)?;
        let read = |shard: usize, table| {
            let rows: &Vec<i64> = &split[shard].0;
            Ok((!rows.is_empty()).then(|| Request::ReadRows { table, rows: rows.clone() }))
        };
        let answers = self.each(calls, read)?;
        let width = self.width();
        fn put<T: Element + Copy + Default>(
            answers: &[(usize, HostTensor)],
            split: &[(Vec<i64>, Vec<usize>)],
            (rows, width): (usize, usize),
        ) -> Buffer {
            let mut all = vec![T::default(); rows * width];
            for (shard, part) in answers {
                let part: &[T] = elements(part.buffer());
                for (values, at) in part.chunks_exact(width.max(1)).zip(&split[*shard].1) {
                    all[at * width..(at + 1) * width].copy_from_slice(values);
                }
            }
            T::into_buffer(all)
        }
        let answers = answers.into_iter().map(|(shard, answer)| match answer {
            Response::Rows(rows)
                if rows.len() == split[shard].0.len() * width && rows.dtype() == self.dtype =>
            {
                Ok((shard, rows))
            }
            other => Err(unexpected(&other)),
        });
        let mut answers = answers.collect::<Result<Vec<_>>>()?;
        let dims: Vec<usize> = [ids.len()].into_iter().chain(self.row_dims().iter().copied()).collect();
        if self.tables.len() == 1
            && let Some((_, rows)) = answers.pop()
        {
            return Ok(rows.reshape(dims)?);
        }
        let buffer = numbers!(self.dtype, T => put::<T>(&answers, &split, (ids.len(), width)), other => {
            return Err(Error::Argument(format!("{}: {} is not supported here", self.name, other.name())));
        });
        Ok(HostTensor::from_buffer(buffer, dims)?)
    }

    /// Splits `values`, which has one row for each id, among the shards. Returns the ids and the rows of each shard.
    fn parts(
        &self,
        operation: &'static str,
        ids: &[i64],
        values: &HostTensor,
    ) -> Result<Vec<(Vec<i64>, HostTensor)>> {
        let expected: Vec<usize> = [ids.len()].into_iter().chain(self.row_dims().iter().copied()).collect();
        if values.dims() != expected {
            let text = format!(
                "{operation}: rows of {} have the shape {expected:?}, and these {:?}",
                self.name,
                values.dims()
            );
            return Err(Error::Argument(text));
        }
        let split = self.split(operation, ids)?;
        if split.len() == 1 {
            return Ok(split.into_iter().map(|(rows, _)| (rows, values.clone())).collect());
        }
        let part = |(rows, positions): (Vec<i64>, Vec<usize>)| Ok((rows, values.take_rows(&positions)?));
        split.into_iter().map(part).collect()
    }

    /// Writes some rows of a dense variable.
    pub fn scatter(&self, calls: &Calls, how: Write, ids: &[i64], values: &HostTensor) -> Result<()> {
        self.partition("scatter")?;
        let parts = self.parts("scatter", ids, values)?;
        let write = |shard: usize, table| {
            let (rows, values) = parts[shard].clone();
            Ok((!rows.is_empty()).then_some(Request::WriteRows { table, how, rows, values }))
        };
        self.each(calls, write).map(drop)
    }

    /// Pushes a gradient of some rows.
    pub fn push_rows(
        &self,
        calls: &Calls,
        push: Push,
        ids: &[i64],
        gradient: &HostTensor,
    ) -> Result<PushResult> {
        self.require_finite("push_rows", push, gradient)?;
        let parts = self.parts("push_rows", ids, gradient)?;
        let request = |shard: usize, table| {
            let (rows, gradient) = parts[shard].clone();
            // A counted push is a step of all shards.
            Ok((!rows.is_empty() || push.is_counted()).then_some(Request::PushRows {
                table,
                push,
                rows,
                gradient,
            }))
        };
        let mut all = PushResult::default();
        for (_, answer) in self.each(calls, request)? {
            let Response::Pushed(pushed) = answer else { return Err(unexpected(&answer)) };
            all = PushResult {
                rows: all.rows + pushed.rows,
                created: all.created + pushed.created,
                waiting: all.waiting + pushed.waiting,
                full: all.full + pushed.full,
                evicted: all.evicted + pushed.evicted,
            };
        }
        Ok(all)
    }
}
