//! Combining the replicas' values outside of `run`.

use super::reduce_to::Contributions;
use super::{DeviceName, Strategy};
use crate::values::{Axes, Components, Reducible};
use crate::{Error, Result};
use distribute_tensor::{DType, Leaf, Nest, ReduceOp, Tree};

const ADVICE: &str = "use the replica context's all_reduce, or merge_call";
const GATHER_ADVICE: &str = "use the replica context's all_gather";

impl Strategy {
    /// Reduces a value over all replicas, and where `axis` is given first over that axis (or axes) within each.
    ///
    /// With `axis` a MEAN divides by the number of elements along it, those of all replicas added up, so that a partial
    /// batch weighs what it should and an empty piece nothing.
    ///
    /// A value that is not distributed is, with an axis, what every replica has; without, MEAN gives it back. Of several
    /// replicas the result is on `cpu:0`, of one where its value is.
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
        let Axes(axes) = axis.into();
        let (leaves, structure) = match &axes {
            None => self.contributions("reduce", op, value)?,
            Some(_) => self.contributions_of_all(value)?,
        };
        // RED-2; the value of one replica stays where it is.
        let here = match self.devices()[..] {
            [one] => [one],
            _ => [DeviceName::cpu(0)],
        };
        let reduce = |op, leaves: Vec<Vec<Leaf>>| {
            let leaves = leaves.into_iter().map(|parts| (parts, &here[..]));
            let reduced = self.reduce_parts("reduce", op, leaves)?;
            Ok::<_, Error>(reduced.into_iter().flatten())
        };
        let leaves: Vec<Leaf> = match (leaves, axes) {
            (Contributions::Same(leaves), _) => leaves,
            (Contributions::Each(leaves), None) => reduce(op, leaves)?.collect(),
            (Contributions::Each(leaves), Some(axes)) => {
                let sums = leaves.iter().map(|parts| sum_over(op, parts, &axes));
                let (sums, counts): (Vec<_>, Vec<_>) =
                    sums.collect::<distribute_tensor::Result<_>>().map_err(Error::tensor("reduce"))?;
                reduce(ReduceOp::Sum, sums)?
                    .zip(counts)
                    .map(|(sum, (count, dtype))| sum.reduction(op, count, dtype))
                    .collect::<distribute_tensor::Result<_>>()
                    .map_err(Error::tensor("reduce"))?
            }
        };
        structure.fill(leaves).and_then(V::Nest::from_tree).map_err(Error::tensor("reduce"))
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
        let replicas = self.world().replicas();
        let components = match value.into_components()? {
            Components::PerReplica(values) => self.counted("gather", values)?,
            Components::Plain(value) => return Ok(value),
            Components::Mirrored(value) => return gathered(vec![value.into_tree(); replicas], axis),
        };
        gathered(components.into_iter().map(Nest::into_tree).collect(), axis)
    }

    // RED-7
    /// What each replica contributes where it first sums for itself: there everybody has a plain value, too.
    fn contributions_of_all<V: Reducible>(&self, value: V) -> Result<(Contributions, Tree<()>)> {
        let replicas = self.world().replicas();
        let trees = match value.into_components()? {
            Components::PerReplica(values) => {
                self.counted("reduce", values)?.into_iter().map(Nest::into_tree).collect()
            }
            Components::Plain(value) | Components::Mirrored(value) => vec![value.into_tree(); replicas],
        };
        let (leaves, structure) = Tree::zip(trees).map_err(Error::tensor("reduce"))?.flatten();
        Ok((Contributions::Each(leaves), structure))
    }

    pub(super) fn counted<N>(&self, operation: &'static str, values: Vec<N>) -> Result<Vec<N>> {
        let replicas = self.world().replicas();
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

/// The sums over `axes` within each replica, of how many elements they are in all, and of which dtype.
fn sum_over(
    op: ReduceOp,
    parts: &[Leaf],
    axes: &[i64],
) -> distribute_tensor::Result<(Vec<Leaf>, (usize, DType))> {
    let dtype = parts.first().map_or(Ok(DType::F32), Leaf::dtype)?;
    let (mut sums, mut count) = (Vec::with_capacity(parts.len()), 0);
    for part in Leaf::summands(op, parts)? {
        let axes = normalise(&part, axes)?;
        count += axes.iter().map(|axis| part.dims()[*axis]).product::<usize>();
        sums.push(part.sum_axes(&axes)?);
    }
    Ok((sums, (count, dtype)))
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
