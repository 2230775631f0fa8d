//! The arguments of `reduce` and `gather`: values, and axes.

use super::{Mirrored, PerReplica};
use crate::context::ContextKind;
use crate::{Result, Variable};
use candle_core::Tensor;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Nest};

/// The components of a value given to `reduce` or `gather`.
pub enum Components<N> {
    /// One nest for each local replica.
    PerReplica(Vec<N>),
    /// The same nest on every replica.
    Mirrored(N),
    /// A nest that is not distributed.
    Plain(N),
}

/// A value that can be reduced or gathered over replicas.
pub trait Reducible {
    /// The nest that each replica has.
    type Nest: Nest;

    /// Its components.
    ///
    /// # Errors
    /// If a variable cannot be read.
    fn into_components(self) -> Result<Components<Self::Nest>>;
}

impl<N: Nest> Reducible for PerReplica<N> {
    type Nest = N;
    fn into_components(self) -> Result<Components<N>> {
        Ok(Components::PerReplica(self.into_values()))
    }
}

impl<N: Nest + Clone> Reducible for &PerReplica<N> {
    type Nest = N;
    fn into_components(self) -> Result<Components<N>> {
        self.clone().into_components()
    }
}

impl<N: Nest> Reducible for Mirrored<N> {
    type Nest = N;
    fn into_components(self) -> Result<Components<N>> {
        Ok(Components::Mirrored(self.into_inner()))
    }
}

impl<N: Nest + Clone> Reducible for &Mirrored<N> {
    type Nest = N;
    fn into_components(self) -> Result<Components<N>> {
        self.clone().into_components()
    }
}

/// In replica and update context, the value that is read there. Elsewhere, the copies of an ON_READ variable, whatever its
/// own aggregation, and the value of any other variable, whose copies are equal.
impl Reducible for &Variable {
    type Nest = Leaf;
    fn into_components(self) -> Result<Components<Leaf>> {
        match ContextKind::current() {
            ContextKind::Replica | ContextKind::Update => Ok(Components::Plain(self.read_leaf()?)),
            _ if self.has_own_copies() => Ok(Components::PerReplica(self.copies()?)),
            _ => Ok(Components::Mirrored(self.read_leaf()?)),
        }
    }
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Reducible for $t {
            type Nest = $t;
            fn into_components(self) -> Result<Components<$t>> {
                Ok(Components::Plain(self))
            }
        }
        impl Reducible for &$t {
            type Nest = $t;
            fn into_components(self) -> Result<Components<$t>> {
                Ok(Components::Plain(self.clone()))
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
    bool,
    String
);

/// The axes that `reduce` sums over within each replica, besides the replicas. Negative ones count from the end.
///
/// `None`: only over the replicas. `0`: also over the batch. `[0, 1]`: over both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axes(pub(crate) Option<Vec<i64>>);

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
