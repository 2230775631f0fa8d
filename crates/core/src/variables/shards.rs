//! The shards of a variable; its rows by their ids, and slices of it, wherever they are.

use super::about::about;
use super::variable::Variable;
use distribute_base::{DeviceName, Error, Result};
use distribute_ps_client::internal::Sharded;
use distribute_ps_tables::PartitionStrategy;
use distribute_tensor::{HostTensor, Index, Selection};
use std::ops::Range;

/// A shard of a variable, or all of a variable without shards: see [`Variable::shards`].
#[doc(alias = "ShardedVariable.variables")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name, such as `w/part_0`.
    pub name: String,
    /// Its rows of the variable. If rows are dealt out in turn, the range is from its first to its last row; if
    /// rows are ids, the range is empty.
    pub rows: Range<usize>,
    /// Its shape.
    pub dims: Vec<usize>,
    /// The device that it is on.
    pub device: DeviceName,
}

impl Variable {
    /// Returns the shards of the variable, each on a separate device. A variable that is not partitioned over
    /// parameter servers is its only shard.
    pub fn shards(&self) -> Vec<Shard> {
        if let Some(ids) = self.ids() {
            let dims: Vec<usize> =
                std::iter::once(&0).chain(ids.tables().dims().iter().skip(1)).copied().collect();
            let shard = |shard: &distribute_ps_client::internal::Shard| Shard {
                name: shard.table.clone(),
                rows: 0..0,
                dims: dims.clone(),
                device: DeviceName::of_server(shard.server),
            };
            return ids.tables().shards().iter().map(shard).collect();
        }
        let Some(sharded) = self.remote().map(|remote| remote.tables()) else {
            let (rows, dims) = (0..self.dims().first().copied().unwrap_or(1), self.dims().to_vec());
            let device = self.devices().first().copied().unwrap_or(DeviceName::cpu(0));
            return vec![Shard { name: self.name().to_string(), rows, dims, device }];
        };
        let one = |(number, rows): (usize, Range<usize>)| {
            let shard = sharded.shards().get(number)?;
            let mut dims = self.dims().to_vec();
            if let Some(height) = dims.first_mut() {
                *height = shard.rows();
            }
            Some(Shard { name: shard.table.clone(), rows, dims, device: DeviceName::of_server(shard.server) })
        };
        sharded.ranges().into_iter().enumerate().filter_map(one).collect()
    }

    /// Whether it is partitioned into shards.
    #[doc(alias = "ShardedVariable")]
    pub fn is_sharded(&self) -> bool {
        self.is_dynamic() || self.remote().is_some_and(|remote| remote.tables().cut().is_some())
    }

    /// Combines the rows of several variables on parameter servers into one variable, with these as its shards,
    /// in this order. The shards remain usable: a write to either is a write to both.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there is no variable; one is not on parameter servers, has shards itself
    ///   or belongs to another strategy; or dtypes differ, or shapes in more than the number of rows.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::{LocalCluster, ParameterServerStrategy, Variable, params::PartitionStrategy};
    /// let cluster = LocalCluster::new(1, 2)?;
    /// let strategy = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build()?;
    /// let part = |name: &str, rows: Vec<f32>| Variable::new(name, HostTensor::vector(rows));
    /// let parts = strategy.scope(|| Ok([part("a", vec![1., 2.])?, part("b", vec![3.])?]))?;
    /// let both = Variable::of_shards("both", &parts, PartitionStrategy::Div)?;
    /// assert_eq!(both.dims(), [3]);
    /// assert_eq!(both.gather(&[2, 0])?, HostTensor::vector(vec![3f32, 1.]));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "ShardedVariable")]
    pub fn of_shards(
        name: impl Into<String>,
        shards: &[Variable],
        dealt: PartitionStrategy,
    ) -> Result<Variable> {
        const OPERATION: &str = "Variable::of_shards";
        let name = name.into();
        let Some(first) = shards.first() else {
            return Err(Error::invalid(OPERATION, format!("{name}: there is no shard; give one at least")));
        };
        let parts = shards.iter().map(|shard| match shard.remote().and_then(|remote| remote.numbered()) {
            Some(tables) if shard.strategy() == first.strategy() => Ok(tables),
            _ => {
                let reason = format!(
                    "{name}: {} is not on the parameter servers of {}",
                    shard.name(),
                    first.strategy()
                );
                Err(Error::invalid(OPERATION, reason))
            }
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        first.over(Sharded::joined(&name, dealt, &parts)?, name)
    }

    /// Removes a variable from its parameter servers, with its slots, for all workers. Code that uses it
    /// afterwards gets an error, so drop it, and its model and optimizer.
    ///
    /// Dropping a variable doesn't do this: other workers may be using it, and this program may continue with
    /// it after a restart. No other variable of the same strategy gets its name.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable is not on parameter servers.
    /// - [`Error::Server`]: a server failed. Some shards may be removed already.
    pub fn remove_from_servers(&self) -> Result<()> {
        let remote = self.require_remote("remove_from_servers")?;
        self.writing(|| remote.tables().remove())
    }

    /// Returns the rows of some ids, in their order; an id may occur more than once. If the variable is on
    /// parameter servers, only these rows are fetched, each once.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is no row. The error has its position.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    /// - [`Error::MixedStrategies`]: called in another strategy's context.
    #[doc(alias = "sparse_read")]
    #[doc(alias = "tf.gather")]
    pub fn gather(&self, ids: &[i64]) -> Result<HostTensor> {
        const OPERATION: &str = "gather";
        let place = self.place(OPERATION, false)?;
        self.strategy().await_updates()?;
        self.nearest_or_first(&place)?.read_rows(OPERATION, ids).map_err(about(self.name()))
    }

    /// Returns a slice of the value, by the rules of Python: `v[2:8:3, 0]` is `v.slice(&[Index::slice(Some(2),
    /// Some(8), 3), Index::At(0)])`. If the variable is on parameter servers, only these rows are fetched.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: an index is outside its axis, there are more indices than axes, or a step is 0.
    /// - The errors of [`gather`](Variable::gather).
    ///
    /// ```
    /// # use distribute::{prelude::*, Variable, tensor::Index};
    /// let v = Variable::new("v", HostTensor::vector((0..10).collect::<Vec<i64>>()))?;
    /// assert_eq!(v.slice(&[(7..).into()])?, HostTensor::vector(vec![7i64, 8, 9]));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "__getitem__")]
    pub fn slice(&self, indices: &[Index]) -> Result<HostTensor> {
        const OPERATION: &str = "slice";
        let selection = Selection::new(indices, self.dims()).map_err(Error::tensor(OPERATION))?;
        if self.dims().is_empty() {
            let whole = self.gather_whole(OPERATION)?;
            return selection.of(&whole).map_err(Error::tensor(OPERATION));
        }
        let rows: Vec<i64> = selection.rows().iter().map(|row| *row as i64).collect();
        selection.of_rows(&self.gather(&rows)?).map_err(Error::tensor(OPERATION))
    }

    fn gather_whole(&self, operation: &'static str) -> Result<HostTensor> {
        let place = self.place(operation, false)?;
        self.strategy().await_updates()?;
        self.nearest_or_first(&place)?.read()?.to_host().map_err(Error::tensor(operation))
    }
}
