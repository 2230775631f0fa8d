//! The creation of per-replica values, and access to the local components of distributed values.

use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_values::{Distributed, PerReplica};
use std::fmt;

impl Strategy {
    /// Returns the components of a value that belong to this process. For a [`PerReplica`] these are all of its
    /// values, in order. For a nested structure there is one structure per local replica; for a `Mirrored` or a
    /// variable, one copy or handle per local replica. Any other value is returned as the only component.
    ///
    /// # Errors
    /// - [`Error::Parts`](distribute_base::Error::Parts): the value was created for a different number of
    ///   replicas.
    #[doc(alias = "tf.distribute.Strategy.experimental_local_results")]
    pub fn local_results<D: Distributed>(&self, value: D) -> Result<Vec<D::Local>> {
        let replicas = self.world().replicas();
        let results = value.local_results(replicas);
        let mut parts = value.split(replicas).map_err(|error| error.of_argument("local_results", "value"))?;
        parts.truncate(results);
        Ok(parts)
    }

    /// Creates one value per local replica by calling `value` once for each, in the order of replica ids, on the
    /// calling thread. Returns the first error of `value`.
    ///
    /// The values may be equal on all replicas, depend on the number of replicas, or come from an array:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ones = strategy.distribute_values_from_function(|_| Ok(1f32))?;
    /// assert_eq!(strategy.local_results(ones)?, [1., 1.]);
    /// let counts = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync))?;
    /// assert_eq!(strategy.local_results(counts)?, [2, 2]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let array = [3f32, 2., 1.];
    /// let values = strategy.distribute_values_from_function(|ctx| Ok(array[ctx.replica_id_in_sync_group]))?;
    /// assert_eq!(strategy.local_results(values)?, [3., 2.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.experimental_distribute_values_from_function")]
    pub fn distribute_values_from_function<T>(
        &self,
        value: impl FnMut(ValueContext) -> Result<T>,
    ) -> Result<PerReplica<T>> {
        let context = |replica| ValueContext {
            replica_id_in_sync_group: replica,
            num_replicas_in_sync: self.num_replicas_in_sync(),
        };
        let values = self.world().local_replicas().map(context).map(value).collect::<Result<_>>()?;
        Ok(PerReplica::from_values(values))
    }
}

/// The replica for which a value is created.
#[doc(alias = "tf.distribute.experimental.ValueContext")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueContext {
    /// The global id of the replica.
    #[doc(alias = "tf.distribute.experimental.ValueContext.replica_id_in_sync_group")]
    pub replica_id_in_sync_group: usize,
    /// The total number of replicas on all workers.
    #[doc(alias = "tf.distribute.experimental.ValueContext.num_replicas_in_sync")]
    pub num_replicas_in_sync: usize,
}

/// The only replica of a world with one replica.
impl Default for ValueContext {
    fn default() -> Self {
        Self { replica_id_in_sync_group: 0, num_replicas_in_sync: 1 }
    }
}

impl fmt::Display for ValueContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of {}", self.replica_id_in_sync_group, self.num_replicas_in_sync)
    }
}
