//! [`Reducible`] and [`Axes`]: the arguments of `reduce` and `gather`.

use super::{Mirrored, PerReplica};
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Nest, Tree};

/// The components of one leaf of a value that is passed to `reduce` or `gather`.
#[derive(Debug)]
pub enum Components {
    /// One leaf per local replica.
    PerReplica(Vec<Leaf>),
    /// A single leaf that is equal on every replica.
    Mirrored(Leaf),
    /// A leaf that is not distributed.
    Plain(Leaf),
}

/// The components of a value that is passed to `reduce` or `gather`, in the structure of that value.
pub type Parts = Tree<Components>;

/// A value that can be reduced or gathered over replicas, or a nest of such values: a tuple, an array, a
/// `Vec`, an `Option`, a map by name, or a [`Tree`]. A struct with `#[derive(Nest)]` is a value that is not
/// distributed.
///
/// ```
/// # use distribute::{prelude::*, values::Mirrored};
/// let strategy = MirroredStrategy::cpus(2)?;
/// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as f32))?;
/// // A value of each replica, and one that all have.
/// let (mean, [same]) = strategy.reduce(ReduceOp::Mean, (&ids, [Mirrored::new(3f32)]), None)?;
/// assert_eq!((mean, same), (0.5, 3.));
/// # Ok::<(), distribute::Error>(())
/// ```
pub trait Reducible {
    /// The type of a single replica's value.
    type Nest: Nest;

    /// Returns the components of each leaf, for an operation on `replicas` local replicas.
    ///
    /// # Errors
    /// Returns an error if a variable cannot be read, if a value was created for a different number of replicas, or if
    /// the replicas' structures differ.
    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts>;
}

impl<N: Nest> Reducible for PerReplica<N> {
    type Nest = N;
    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
        require_count(operation, self.len(), replicas)?;
        let trees = self.into_iter().map(Nest::into_tree).collect();
        let merged = Tree::zip(trees).map_err(Error::tensor(operation))?;
        Ok(merged.map(&mut Components::PerReplica))
    }
}

impl<N: Nest + Clone> Reducible for &PerReplica<N> {
    type Nest = N;
    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
        self.clone().into_parts(operation, replicas)
    }
}

impl<N: Nest> Reducible for Mirrored<N> {
    type Nest = N;
    fn into_parts(self, _: &'static str, _: usize) -> Result<Parts> {
        Ok(self.into_inner().into_tree().map(&mut Components::Mirrored))
    }
}

impl<N: Nest + Clone> Reducible for &Mirrored<N> {
    type Nest = N;
    fn into_parts(self, _: &'static str, _: usize) -> Result<Parts> {
        Ok(self.get().clone().into_tree().map(&mut Components::Mirrored))
    }
}

/// Returns the components of each leaf of a value. Checks that a per-replica leaf has one component per local replica,
/// because other crates may implement [`Reducible`].
///
/// # Errors
/// - [`Error::InvalidArgument`]: a leaf has another number of components.
/// - The errors of [`Reducible::into_parts`].
pub fn parts_of<V: Reducible>(operation: &'static str, value: V, replicas: usize) -> Result<Parts> {
    let parts = value.into_parts(operation, replicas)?;
    parts.leaves().into_iter().try_for_each(|leaf| match leaf {
        Components::PerReplica(leaves) => require_count(operation, leaves.len(), replicas),
        Components::Mirrored(_) | Components::Plain(_) => Ok(()),
    })?;
    Ok(parts)
}

fn require_count(operation: &'static str, parts: usize, replicas: usize) -> Result<()> {
    if parts == replicas {
        return Ok(());
    }
    Err(Error::invalid(operation, format!("the value has {parts} parts for {replicas} replicas")))
}

/// Returns the components of a value that is not distributed.
pub fn plain(value: impl Nest) -> Parts {
    value.into_tree().map(&mut Components::Plain)
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Reducible for $t {
            type Nest = $t;
            fn into_parts(self, _: &'static str, _: usize) -> Result<Parts> {
                Ok(plain(self))
            }
        }
        impl Reducible for &$t {
            type Nest = $t;
            fn into_parts(self, _: &'static str, _: usize) -> Result<Parts> {
                Ok(plain(self.clone()))
            }
        }
    )*};
}
plain!(
    Tensor,
    HostTensor,
    IndexedSlices,
    distribute_tensor::Leaf,
    f32,
    f64,
    i8,
    u8,
    i16,
    u16,
    i32,
    i64,
    u32,
    u64,
    usize,
    bool,
    String
);

/// The axes over which `reduce` reduces each replica's value, before it reduces over the replicas. Negative axes count
/// from the last dimension.
///
/// `None` reduces only over the replicas, `0` also over the batch, and `[0, 1]` also over the first two dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axes(Option<Vec<i64>>);

impl Axes {
    /// Returns the axes of each replica's value; `None` to reduce only over the replicas.
    #[doc(hidden)]
    pub fn into_list(self) -> Option<Vec<i64>> {
        self.0
    }
}

impl From<Option<i64>> for Axes {
    fn from(axis: Option<i64>) -> Self {
        Axes(axis.map(|axis| vec![axis]))
    }
}

impl From<i64> for Axes {
    fn from(axis: i64) -> Self {
        Axes(Some(vec![axis]))
    }
}

impl<const N: usize> From<[i64; N]> for Axes {
    fn from(axes: [i64; N]) -> Self {
        Axes(Some(axes.to_vec()))
    }
}

impl From<Vec<i64>> for Axes {
    fn from(axes: Vec<i64>) -> Self {
        Axes(Some(axes))
    }
}
