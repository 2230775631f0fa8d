//! One value per local replica, and a single value that is equal on all replicas.

use candle_core::{Tensor, WithDType};
use distribute_base::{Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::fmt;

/// One value per local replica, in the order of replica ids.
///
/// `Strategy::run` always returns a `PerReplica`, even with a single replica, and so does each step of a
/// distributed dataset. Values are never merged, even if they are the same object.
///
/// Outside `run` there is no single value to compute with, so reduce or gather the values first. If all replicas have
/// the same number, [`to_scalar`](PerReplica::to_scalar) returns it.
///
/// ```compile_fail,E0369
/// # use distribute::prelude::*;
/// let values = PerReplica::from_values(vec![1f32, 2.]);
/// let sum = values + 1.;
/// ```
///
/// Pass it to `run` as an argument, so that each replica gets its own value. A collective inside `run` does
/// not accept all the values at once:
///
/// ```compile_fail,E0277
/// # use distribute::prelude::*;
/// # let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let values = PerReplica::from_values(vec![1f32, 2.]);
/// strategy.run((), |ctx, ()| ctx.all_gather(values.clone(), 0))?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
#[derive(Clone, Debug)]
pub struct PerReplica<T> {
    values: Vec<T>,
    /// The number of rows of each value, if the values are per-replica batches.
    rows: Option<Vec<usize>>,
}

impl<T> PerReplica<T> {
    /// Creates a `PerReplica` from one value per local replica, in the order of replica ids.
    pub fn from_values(values: Vec<T>) -> Self {
        Self { values, rows: None }
    }

    /// Creates per-replica batches. `rows` contains the number of rows of each batch.
    #[doc(hidden)]
    pub fn with_rows(values: Vec<T>, rows: Vec<usize>) -> Self {
        Self { values, rows: Some(rows) }
    }

    pub(crate) fn rows_of(&self, replica: usize) -> Option<usize> {
        self.rows.as_ref()?.get(replica).copied()
    }

    /// Returns the values, in the order of replica ids.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Returns the values, in the order of replica ids.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// Returns the value of local replica `replica`, or `None` if there is no such replica.
    pub fn get(&self, replica: usize) -> Option<&T> {
        self.values.get(replica)
    }

    /// Returns the number of values, which is the number of local replicas.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns `true` if there are no values. A result of `run` is never empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns an iterator over the values, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// Returns an iterator over mutable references to the values, in order.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values.iter_mut()
    }

    /// Applies `f` to each replica's value. Information on batch sizes is dropped.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> PerReplica<U> {
        PerReplica::from_values(self.values.into_iter().map(f).collect())
    }

    /// Merges the replicas' nests into a single structure, with one [`PerReplica`] for each leaf.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: the replicas' structures differ. The error names the path and both kinds.
    pub fn regroup(self) -> Result<Tree<PerReplica<Leaf>>>
    where
        T: Nest,
    {
        let trees = self.values.into_iter().map(Nest::into_tree).collect();
        let merged = Tree::zip(trees).map_err(Error::tensor("merging the replicas' values"))?;
        Ok(merged.map(&mut PerReplica::from_values))
    }
}

impl PerReplica<Tensor> {
    /// Returns the number that is equal on all replicas, such as the loss that `minimize` returns or the result of an
    /// `all_reduce`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there is no value, or the replicas have different numbers, of which the error
    ///   lists the first 8. Use `Strategy::reduce` to combine them.
    /// - [`Error::Candle`]: a value is not a scalar, or does not have the dtype of `S`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use candle_core::{Device, Tensor};
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let loss = strategy.run((), |ctx, ()| {
    ///     let mine = Tensor::new(ctx.replica_id_in_sync_group() as f32, &Device::Cpu)?;
    ///     ctx.all_reduce(ReduceOp::Mean, mine)
    /// })?;
    /// assert_eq!(loss.to_scalar::<f32>()?, 0.5);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn to_scalar<S: WithDType>(&self) -> Result<S> {
        const OPERATION: &str = "to_scalar";
        let scalars = self.iter().map(|value| Ok(value.to_scalar::<S>()?)).collect::<Result<Vec<_>>>()?;
        let Some(first) = scalars.first() else { return Err(Error::invalid(OPERATION, "there is no value")) };
        // NaN is not equal to itself. Numbers are compared in their own type, because different large integers
        // may be equal as f64.
        let is_nan = |scalar: &S| scalar.partial_cmp(scalar).is_none();
        if scalars.iter().all(|scalar| scalar == first || is_nan(scalar) && is_nan(first)) {
            return Ok(*first);
        }
        let each = scalars.iter().enumerate().map(|(r, scalar)| format!("{scalar} on replica {r}"));
        let reason = format!(
            "the replicas have different numbers, {}; combine them with strategy.reduce(ReduceOp::Mean, &values, \
             None), or use one replica's number, values()[0]",
            each.take(8).collect::<Vec<_>>().join(", ")
        );
        Err(Error::invalid(OPERATION, reason))
    }
}

/// Compares only the values, not the batch sizes.
impl<T: PartialEq> PartialEq for PerReplica<T> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl<A, B> PerReplica<(A, B)> {
    /// Splits pairs into two per-replica values.
    pub fn unzip(self) -> (PerReplica<A>, PerReplica<B>) {
        let (a, b) = self.values.into_iter().unzip();
        (PerReplica { values: a, rows: self.rows.clone() }, PerReplica { values: b, rows: self.rows })
    }
}

impl<A, B, C> PerReplica<(A, B, C)> {
    /// Splits triples into three per-replica values.
    pub fn unzip3(self) -> (PerReplica<A>, PerReplica<B>, PerReplica<C>) {
        let rows = self.rows;
        let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
        for (a, b, c) in self.values {
            first.push(a);
            second.push(b);
            third.push(c);
        }
        let rows_again = || rows.clone();
        (
            PerReplica { values: first, rows: rows_again() },
            PerReplica { values: second, rows: rows_again() },
            PerReplica { values: third, rows: rows_again() },
        )
    }
}

impl<T> IntoIterator for PerReplica<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a PerReplica<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

/// Displays the structure, with the replicas' values at its leaves:
///
/// ```text
/// PerReplica:{
///   0: <Tensor: shape=(), dtype=float32, data=6.0>,
///   1: <Tensor: shape=(), dtype=float32, data=6.0>
/// }
/// ```
impl<T: Nest + Clone> fmt::Display for PerReplica<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.clone().regroup() {
            Ok(tree) => f.write_str(&tree.describe(&show)),
            Err(error) => write!(f, "PerReplica:{{{error}}}"),
        }
    }
}

fn show(leaf: &PerReplica<Leaf>) -> String {
    let lines: Vec<_> = leaf.values.iter().enumerate().map(|(r, value)| format!("  {r}: {value}")).collect();
    format!("PerReplica:{{\n{}\n}}", lines.join(",\n"))
}

/// A single value that is equal on all replicas.
///
/// It can be read without combining replicas. If it is passed to `run`, each replica gets the value. There is one copy
/// for all replicas, or one copy on each of several devices.
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
#[derive(Clone, Debug, PartialEq)]
pub struct Mirrored<T> {
    first: T,
    others: Vec<T>,
}

impl<T> Mirrored<T> {
    /// Creates a `Mirrored` from a single value.
    pub fn new(value: T) -> Self {
        Self { first: value, others: Vec::new() }
    }

    /// Creates a `Mirrored` from one copy per device, in the order of the devices. Returns `None` if there are no
    /// copies. The caller must ensure that all copies are equal.
    pub fn from_copies(copies: impl IntoIterator<Item = T>) -> Option<Self> {
        let mut copies = copies.into_iter();
        Some(Self { first: copies.next()?, others: copies.collect() })
    }

    /// Returns the value.
    pub fn get(&self) -> &T {
        &self.first
    }

    /// Returns the value and drops the other copies.
    pub fn into_inner(self) -> T {
        self.first
    }

    /// Returns the copies: one for all replicas, or one per device.
    pub fn copies(&self) -> Vec<&T> {
        std::iter::once(&self.first).chain(&self.others).collect()
    }

    /// Returns the copies by value: one for all replicas, or one per device.
    pub fn into_copies(self) -> Vec<T> {
        let mut copies = self.others;
        copies.insert(0, self.first);
        copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_1_to_3_structures_stay_and_leaves_are_per_replica() {
        let merged = PerReplica::from_values(vec![(1i32, vec![2f32]), (3, vec![4.])]).regroup().unwrap();
        assert_eq!(merged.describe(&|p| p.len().to_string()), "(2, [2])");
    }

    #[test]
    fn merge_t4_different_structures_are_named_by_path() {
        let error =
            PerReplica::from_values(vec![(1i32, vec![2f32]), (3, vec![])]).regroup().unwrap_err().to_string();
        assert!(
            error.contains("value[1]") && error.contains("a list of 1") && error.contains("a list of 0"),
            "{error}"
        );
    }

    #[test]
    fn numbers_that_differ_are_not_one_however_large_they_are() {
        use candle_core::Device;
        fn of<S: WithDType>(a: S, b: S) -> Result<S> {
            let scalar = |x: S| Tensor::new(x, &Device::Cpu).unwrap();
            PerReplica::from_values(vec![scalar(a), scalar(b)]).to_scalar::<S>()
        }
        // As f64 they are the same.
        let text = of(1i64 << 53, (1 << 53) + 1).unwrap_err().to_string();
        assert!(text.contains("9007199254740992 on replica 0, 9007199254740993 on replica 1"), "{text}");
        assert_eq!(of((1i64 << 53) + 1, (1 << 53) + 1).unwrap(), (1 << 53) + 1);
        assert!(of(f32::NAN, -f32::NAN).unwrap().is_nan());
        assert!(of(f32::NAN, 0.).is_err() && of(0., f32::NAN).is_err());
    }

    #[test]
    fn values_print_as_in_the_documents() {
        let text = PerReplica::from_values(vec![6f32, 7.]).to_string();
        assert_eq!(
            text,
            "PerReplica:{\n  0: <Tensor: shape=(), dtype=float32, data=6.0>,\n  1: <Tensor: shape=(), dtype=float32, \
             data=7.0>\n}"
        );
    }
}
