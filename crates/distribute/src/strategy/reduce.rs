//! Combining the replicas' values outside of `run`.

use super::Strategy;
use crate::values::{Axes, Components, Reducible};
use crate::{Error, Result};
use distribute_tensor::{Leaf, Nest, ReduceOp, Tree};

const ADVICE: &str = "use the replica context's all_reduce, or merge_call";
const GATHER_ADVICE: &str = "use the replica context's all_gather";

impl Strategy {
    /// Reduces a value over all replicas, and where `axis` is given first over that axis (or axes) within each.
    ///
    /// With `axis` a MEAN divides by the number of elements along it, those of all replicas added up, so that a partial
    /// batch weighs what it should and an empty piece nothing.
    ///
    /// A value that is not distributed is, with an axis, what every replica has; without, MEAN gives it back.
    ///
    /// # Errors
    /// [`Error::Tensor`] for different shapes or dtypes, an axis outside of the rank, bool and string;
    /// [`Error::InvalidArgument`] for a SUM of a value that is not distributed over several replicas;
    /// [`Error::WrongContext`] inside of `run`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use candle_core::{Device, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let losses = [vec![0f32, 1., 2., 3.], vec![4., 5.]];
    /// let losses = strategy.distribute_values_from_function(|ctx| {
    ///     Ok(Tensor::new(&losses[ctx.replica_id_in_sync_group][..], &Device::Cpu)?)
    /// })?;
    /// let mean = strategy.reduce(ReduceOp::Mean, &losses, 0)?;
    /// assert_eq!(mean.to_scalar::<f32>()?, 15. / 6.);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// Of what a `run` returns:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run((), |ctx, ()| Ok(HostTensor::scalar(ctx.replica_id_in_sync_group() as i32)))?;
    /// let total = strategy.reduce("SUM".parse()?, ids, None)?;
    /// assert_eq!(total.to_string(), "<Tensor: shape=(), dtype=int32, data=1>");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.reduce")]
    pub fn reduce<V: Reducible>(&self, op: ReduceOp, value: V, axis: impl Into<Axes>) -> Result<V::Nest> {
        let _scope = self.enter("reduce", ADVICE)?;
        let replicas = self.extended().local_replicas();
        let Axes(axes) = axis.into();
        let components = match (value.into_components()?, &axes) {
            (Components::PerReplica(values), _) => self.counted("reduce", values)?,
            (Components::Plain(_), None) if replicas > 1 && op == ReduceOp::Sum => {
                return Err(Error::invalid(
                    "reduce",
                    format!(
                        "SUM over {replicas} replicas of a value that is not distributed; \
                         give a PerReplica, such as run returns, or reduce with MEAN"
                    ),
                ));
            }
            (Components::Plain(value), None) => return Ok(value),
            (Components::Mirrored(value), None) if op == ReduceOp::Mean => return Ok(value),
            (Components::Plain(value) | Components::Mirrored(value), _) => {
                let tree = value.into_tree();
                return reduced(op, vec![tree; replicas], axes.as_deref());
            }
        };
        reduced(op, components.into_iter().map(Nest::into_tree).collect(), axes.as_deref())
    }

    /// Concatenates the replicas' values along `axis`, in the order of replica ids.
    ///
    /// Shapes may differ in dimension `axis` only. A [`Mirrored`](crate::Mirrored) value is there once for each replica;
    /// one that is not distributed comes back as it is.
    ///
    /// # Errors
    /// [`Error::Tensor`] for scalars, an axis outside of `[0, rank)`, other shapes or dtypes that differ, and
    /// [`IndexedSlices`](crate::IndexedSlices); [`Error::WrongContext`] inside of `run`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let values = strategy.distribute_values_from_function(|_| Ok(HostTensor::new(vec![1, 2], [2, 1])?))?;
    /// assert_eq!(strategy.gather(&values, 0)?.to_string(), "\
    /// <Tensor: shape=(4, 1), dtype=int32, data=
    /// [[1],
    ///  [2],
    ///  [1],
    ///  [2]]>");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// On four replicas, along each axis:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])?;
    /// let single = HostTensor::new((0..6).collect::<Vec<i32>>(), [1, 2, 3])?;
    /// let values = strategy.distribute_values_from_function(|_| Ok(single.clone()))?;
    /// assert_eq!(strategy.gather(&values, 0)?.to_string(), "\
    /// <Tensor: shape=(4, 2, 3), dtype=int32, data=
    /// [[[0, 1, 2],
    ///   [3, 4, 5]],
    ///
    ///  [[0, 1, 2],
    ///   [3, 4, 5]],
    ///
    ///  [[0, 1, 2],
    ///   [3, 4, 5]],
    ///
    ///  [[0, 1, 2],
    ///   [3, 4, 5]]]>");
    /// assert_eq!(strategy.gather(&values, 1)?.to_string(), "\
    /// <Tensor: shape=(1, 8, 3), dtype=int32, data=
    /// [[[0, 1, 2],
    ///   [3, 4, 5],
    ///   [0, 1, 2],
    ///   [3, 4, 5],
    ///   [0, 1, 2],
    ///   [3, 4, 5],
    ///   [0, 1, 2],
    ///   [3, 4, 5]]]>");
    /// assert_eq!(strategy.gather(&values, 2)?.to_string(), "\
    /// <Tensor: shape=(1, 2, 12), dtype=int32, data=
    /// [[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2],
    ///   [3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5]]]>");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.gather")]
    pub fn gather<V: Reducible>(&self, value: V, axis: usize) -> Result<V::Nest> {
        let _scope = self.enter("gather", GATHER_ADVICE)?;
        let replicas = self.extended().local_replicas();
        let components = match value.into_components()? {
            Components::PerReplica(values) => self.counted("gather", values)?,
            Components::Plain(value) => return Ok(value),
            Components::Mirrored(value) => return gathered(vec![value.into_tree(); replicas], axis),
        };
        gathered(components.into_iter().map(Nest::into_tree).collect(), axis)
    }

    fn counted<N>(&self, operation: &'static str, values: Vec<N>) -> Result<Vec<N>> {
        let replicas = self.extended().local_replicas();
        match values.len() == replicas {
            true => Ok(values),
            false => Err(Error::invalid(
                operation,
                format!("the value has {} parts for {replicas} replicas", values.len()),
            )),
        }
    }
}

fn gathered<N: Nest>(trees: Vec<Tree<Leaf>>, axis: usize) -> Result<N> {
    let gathered = Tree::zip(trees).and_then(|tree| tree.try_map(&mut |leaves| Leaf::concat(&leaves, axis)));
    gathered.and_then(N::from_tree).map_err(Error::tensor("gather"))
}

fn reduced<N: Nest>(op: ReduceOp, trees: Vec<Tree<Leaf>>, axes: Option<&[i64]>) -> Result<N> {
    let tree = Tree::zip(trees).and_then(|tree| {
        tree.try_map(&mut |leaves| match axes {
            None => Leaf::reduce(op, &leaves),
            Some(axes) => reduce_over(op, &leaves, axes),
        })
    });
    tree.and_then(N::from_tree).map_err(Error::tensor("reduce"))
}

/// Sums over `axes` within each replica, then over the replicas; a MEAN divides by the true count (RED-4, RED-5).
fn reduce_over(op: ReduceOp, leaves: &[Leaf], axes: &[i64]) -> distribute_tensor::Result<Leaf> {
    let (mut sums, mut count) = (Vec::with_capacity(leaves.len()), 0);
    for leaf in leaves {
        let axes = normalise(leaf, axes)?;
        count += axes.iter().map(|axis| leaf.dims()[*axis]).product::<usize>();
        sums.push(leaf.sum_axes(&axes)?);
    }
    let sum = Leaf::reduce(ReduceOp::Sum, &sums)?;
    match op {
        ReduceOp::Sum => Ok(sum),
        ReduceOp::Mean => sum.divide(count as f64),
    }
}

fn normalise(leaf: &Leaf, axes: &[i64]) -> distribute_tensor::Result<Vec<usize>> {
    let rank = leaf.dims().len();
    let one = |axis: &i64| {
        let from_front = if *axis < 0 { axis + rank as i64 } else { *axis };
        match usize::try_from(from_front) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => Err(distribute_tensor::Error::Axis {
                operation: "reduce",
                axis: *axis,
                rank,
                shape: leaf.dims().to_vec(),
            }),
        }
    };
    axes.iter().map(one).collect()
}
