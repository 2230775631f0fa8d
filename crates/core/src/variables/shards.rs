//! The shards of a variable, and access to its rows and slices in any storage location.

use super::error::with_name;
use super::variable::Variable;
use distribute_base::{DeviceName, Error, Result};
use distribute_ps_client::internal::Sharded;
use distribute_ps_tables::PartitionStrategy;
use distribute_tensor::{HostTensor, Index, Selection};
use std::ops::Range;

/// A shard of a variable. A variable without shards is described as a single shard. See [`Variable::shards`].
#[doc(alias = "ShardedVariable.variables")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The name of the shard, such as `w/part_0`.
    pub name: String,
    /// The rows of the variable that the shard contains. If rows are assigned to shards in turn, the range extends from
    /// the shard's first row to its last row. If rows are identified by ids, the range is empty.
    pub rows: Range<usize>,
    /// The shape of the shard.
    pub dims: Vec<usize>,
    /// The device that stores the shard.
    pub device: DeviceName,
}

impl Variable {
    /// Returns the shards of the variable. A variable that is not partitioned over parameter servers has one
    /// shard, which is the variable itself.
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

    /// Returns `true` if the variable is partitioned into shards, or [is dynamic](Self::is_dynamic).
    #[doc(alias = "ShardedVariable")]
    pub fn is_sharded(&self) -> bool {
        self.is_dynamic() || self.remote().is_some_and(|remote| remote.tables().partition().is_some())
    }

    /// Combines several variables on parameter servers into one variable. The given variables become its shards, in
    /// order. They remain usable: a write to a shard changes the combined variable, and vice versa.
    ///
    /// If a shard does not have the number of rows that `partition` assigns to it, every read of rows fetches the
    /// complete variable, and single rows cannot be written.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `shards` is empty, dtypes differ, or shapes differ in more than the number of
    ///   rows; or a variable is a scalar, is not on parameter servers, has shards itself, or belongs to a different
    ///   strategy.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::{LocalCluster, ParameterServerStrategy, Variable, parameter_server::PartitionStrategy};
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
        partition: PartitionStrategy,
    ) -> Result<Variable> {
        const OPERATION: &str = "Variable::of_shards";
        let name = name.into();
        let Some(first) = shards.first() else {
            return Err(Error::invalid(OPERATION, format!("{name}: there is no shard; pass at least one")));
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
        let remotes = shards.iter().filter_map(|shard| shard.remote().cloned()).collect();
        first.with_tables(Sharded::join(&name, partition, &parts)?, name, remotes)
    }

    /// Removes the variable and its slots from the parameter servers, for all workers. Any later use returns an error,
    /// so drop the variable together with its model and optimizer.
    ///
    /// Dropping a variable does not remove it from the servers: other workers may be using it, and this
    /// program may continue with it after a restart. Its name is not reused for other variables of the
    /// strategy.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable is not on parameter servers.
    /// - [`Error::Server`]: a server failed. Some shards may already have been removed.
    pub fn remove_from_servers(&self) -> Result<()> {
        let remote = self.require_remote("remove_from_servers")?;
        self.writing(|| remote.tables().remove())
    }

    /// Returns the rows with the given ids, in the order of `ids`. An id may occur more than once. If the variable is
    /// on parameter servers, only these rows are fetched, each only once; [`of_shards`](Variable::of_shards) describes
    /// an exception.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is not the index of a row, and the variable [is not dynamic](Self::is_dynamic). The
    ///   error contains the position of the id.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    /// - [`Error::MixedStrategies`]: called in another strategy's context.
    /// - [`Error::Server`]: a parameter server failed.
    #[doc(alias = "sparse_read")]
    #[doc(alias = "tf.gather")]
    pub fn gather(&self, ids: &[i64]) -> Result<HostTensor> {
        const OPERATION: &str = "gather";
        let site = self.access_site(OPERATION, false)?;
        self.strategy().await_updates()?;
        self.nearest_or_first(&site)?.read_rows(OPERATION, ids).map_err(with_name(self.name()))
    }

    /// Returns a slice of the value, with the semantics of Python: `v[2:8:3, 0]` is
    /// `v.slice(&[Index::slice(Some(2), Some(8), 3), Index::At(0)])`. If the variable is on parameter
    /// servers, only the rows in the slice are fetched.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: an index is out of bounds, there are more indices than axes, or a step is 0.
    /// - The errors of [`gather`](Variable::gather).
    ///
    /// ```
    /// # use distribute::{prelude::*, tensor::Index};
    /// let v = Variable::new("v", HostTensor::vector((0..10).collect::<Vec<i64>>()))?;
    /// assert_eq!(v.slice(&[(7..).into()])?, HostTensor::vector(vec![7i64, 8, 9]));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "__getitem__")]
    pub fn slice(&self, indices: &[Index]) -> Result<HostTensor> {
        const OPERATION: &str = "slice";
        let selection = Selection::new(indices, self.dims()).map_err(Error::tensor(OPERATION))?;
        if self.dims().is_empty() {
            let whole = self.gather_from_complete(OPERATION)?;
            return selection.of(&whole).map_err(Error::tensor(OPERATION));
        }
        let rows: Vec<i64> = selection.rows().iter().map(|row| *row as i64).collect();
        selection.of_rows(&self.gather(&rows)?).map_err(Error::tensor(OPERATION))
    }

    fn gather_from_complete(&self, operation: &'static str) -> Result<HostTensor> {
        let site = self.access_site(operation, false)?;
        self.strategy().await_updates()?;
        self.nearest_or_first(&site)?.read()?.to_host().map_err(Error::tensor(operation))
    }
}
