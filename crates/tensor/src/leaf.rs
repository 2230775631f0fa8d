//! The leaves of a nest, and the operations that work on every kind of leaf.

#[cfg(feature = "candle")]
use crate::candle;
use crate::fold::{Alone, Folder};
use crate::host::summable;
use crate::{DType, Error, HostTensor, IndexedSlices, ReduceOp, Result};
use std::borrow::Borrow;

/// A leaf of a nest.
///
/// Operations keep the kind: candle tensors give candle tensors, on the device of the first. Gradients of candle don't flow
/// through operations on several leaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Leaf {
    /// A tensor in host memory.
    Host(HostTensor),
    /// Rows of a larger tensor.
    Slices(IndexedSlices),
    /// A tensor of candle, on any of its devices.
    #[cfg(feature = "candle")]
    Candle(candle_core::Tensor),
}

/// Leaves of one kind.
enum Kind<'a> {
    Host(Vec<&'a HostTensor>),
    Slices(Vec<&'a IndexedSlices>),
    #[cfg(feature = "candle")]
    Candle(Vec<&'a candle_core::Tensor>),
}

impl Leaf {
    /// Whether gradients flow through it: candle tensors that are variables or depend on one.
    pub fn is_tracked(&self) -> bool {
        match self {
            Leaf::Host(_) | Leaf::Slices(_) => false,
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => tensor.track_op(),
        }
    }

    /// The kind of leaf, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Leaf::Host(_) => "a host tensor",
            Leaf::Slices(_) => "indexed slices",
            #[cfg(feature = "candle")]
            Leaf::Candle(_) => "a candle tensor",
        }
    }

    /// The type of the elements; for indexed slices, of the values. An error for candle's 4-, 6- and 8-bit floats.
    pub fn dtype(&self) -> Result<DType> {
        match self {
            Leaf::Host(tensor) => Ok(tensor.dtype()),
            Leaf::Slices(slices) => Ok(slices.values.dtype()),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::dtype("dtype", tensor),
        }
    }

    /// The size of each axis; for indexed slices, of the values.
    pub fn dims(&self) -> &[usize] {
        match self {
            Leaf::Host(tensor) => tensor.dims(),
            Leaf::Slices(slices) => slices.values.dims(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => tensor.dims(),
        }
    }

    /// Dtype and shape: `float32[2, 3]`, `IndexedSlices(float32[2, 3] of [5, 3])`.
    pub fn describe(&self) -> String {
        match self {
            Leaf::Host(tensor) => tensor.describe(),
            Leaf::Slices(slices) => slices.describe(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::describe(tensor),
        }
    }

    /// The element-wise sum or mean over replicas.
    ///
    /// Kind, shape and dtype have to agree; nothing is broadcast, and an error says which replica differs from
    /// replica 0. The sum is a balanced binary tree over the list, see `kernel::fold`; floats of 16 bits are added up as `f32`
    /// and rounded once; a SUM of integers wraps. A MEAN divides the sum, so that of integers is a float, see [`DType::mean`], and their sum does
    /// not wrap. Bool and string have neither. What holds for several leaves holds for one.
    ///
    /// The rows of indexed slices are merged, even those of a single leaf, see [`IndexedSlices::reduce`]. If there are dense
    /// leaves, too, slices are made dense first.
    pub fn reduce(op: ReduceOp, leaves: &[Leaf]) -> Result<Leaf> {
        Self::reduce_with(op, leaves, &Alone)
    }

    /// Bit-equal to [`Leaf::reduce`], with sums in host memory computed by `folder`.
    ///
    /// Leaves may be borrowed, because incrementing the reference count of a leaf of another thread costs a contended cache
    /// line.
    pub fn reduce_with(op: ReduceOp, leaves: &[impl Borrow<Leaf>], folder: &impl Folder) -> Result<Leaf> {
        const OPERATION: &str = "reduce";
        let all = || leaves.iter().map(Borrow::borrow);
        let sparse = |leaf: &Leaf| matches!(leaf, Leaf::Slices(_));
        if all().any(sparse) && !all().all(sparse) {
            // Rows with the same index are added up when they are made dense.
            let summands = Leaf::summands(op, leaves)?;
            let Some(dense) = summands.iter().find(|l| !sparse(l)) else {
                return Err(Error::Empty { operation: OPERATION });
            };
            let densify = |(i, leaf): (usize, &Leaf)| leaf.like(dense).map_err(|e| e.differs("replica", i));
            let alike = summands.iter().enumerate().map(densify).collect::<Result<Vec<Leaf>>>()?;
            let dtype = all().next().map_or(Ok(DType::F32), Leaf::dtype)?;
            return Leaf::reduce_with(ReduceOp::Sum, &alike, folder)?.reduction(op, leaves.len(), dtype);
        }
        match Leaf::of_one_kind(OPERATION, "replica", leaves)? {
            Kind::Host(tensors) => HostTensor::reduce_with(op, &tensors, folder).map(Leaf::Host),
            Kind::Slices(slices) => IndexedSlices::reduce_with(op, &slices, folder).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::reduce(op, &tensors, folder).map(Leaf::Candle),
        }
    }

    /// These leaves in the dtype in which `op` adds them up, [`DType::of_sum`]. [`reduction`](Leaf::reduction) makes the result
    /// of their sum.
    ///
    /// An error for bool and string, and one that says which replica's dtype differs from that of replica 0.
    pub fn summands(op: ReduceOp, leaves: &[impl Borrow<Leaf>]) -> Result<Vec<Leaf>> {
        let Some(first) = leaves.first() else { return Ok(Vec::new()) };
        let expected = summable(first.borrow().dtype()?)?;
        let summand = |(i, leaf): (usize, &Leaf)| match leaf.dtype()? {
            found if found != expected => {
                Err(Error::DTypeMismatch { operation: "reduce", expected, found }.differs("replica", i))
            }
            _ if expected.of_sum(op) == expected => Ok(leaf.clone()),
            _ => leaf.to_dtype(expected.of_sum(op)),
        };
        leaves.iter().map(Borrow::borrow).enumerate().map(summand).collect()
    }

    /// What `op` makes of the sum of `count` [summands](Leaf::summands), which were leaves of this dtype: a SUM is the sum
    /// itself, in that dtype, a MEAN a true division.
    pub fn reduction(self, op: ReduceOp, count: usize, dtype: DType) -> Result<Leaf> {
        match (op, dtype.mean()) {
            (ReduceOp::Sum, _) if dtype.of_sum(op) == dtype => Ok(self),
            (ReduceOp::Sum, _) => self.to_dtype(dtype),
            (ReduceOp::Mean, Some(mean)) => self.divide(count as f64)?.to_dtype(mean),
            (ReduceOp::Mean, None) => Err(Error::UnsupportedDType { operation: "reduce", dtype }),
        }
    }

    /// The elements as another dtype.
    fn to_dtype(&self, dtype: DType) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.cast(dtype).map(Leaf::Host),
            Leaf::Slices(slices) => slices.cast(dtype).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::cast(tensor, dtype).map(Leaf::Candle),
        }
    }

    /// Joins leaves along an axis, in replica order. They may differ in size along that axis only; `axis` lies
    /// in `[0, rank)`, so a scalar cannot be joined. Every dtype, bool and string too. Indexed slices are
    /// refused. An error says which replica differs from replica 0.
    pub fn concat(leaves: &[Leaf], axis: usize) -> Result<Leaf> {
        match Leaf::of_one_kind("concat", "replica", leaves)? {
            Kind::Host(tensors) => HostTensor::concat(&tensors, axis).map(Leaf::Host),
            Kind::Slices(_) => Err(refuse("concat")),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::concat(&tensors, axis).map(Leaf::Candle),
        }
    }

    /// Puts leaves of one shape and dtype on a new axis 0. Indexed slices are refused. An error says which element
    /// differs from element 0.
    pub fn stack(leaves: &[Leaf]) -> Result<Leaf> {
        match Leaf::of_one_kind("stack", "element", leaves)? {
            Kind::Host(tensors) => HostTensor::stack(&tensors).map(Leaf::Host),
            Kind::Slices(_) => Err(refuse("stack")),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::stack(&tensors).map(Leaf::Candle),
        }
    }

    /// `len` indices of an axis from `start` on. Indexed slices are refused.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.narrow(axis, start, len).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("narrow")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::narrow(tensor, axis, start, len).map(Leaf::Candle),
        }
    }

    /// A leaf like this one without rows (indices of axis 0). It keeps no memory of these. Indexed slices are refused.
    pub fn without_rows(&self) -> Result<Leaf> {
        match self {
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::without_rows(tensor).map(Leaf::Candle),
            other => other.narrow(0, 0, 0),
        }
    }

    /// The same elements in row-major order, in another shape. Indexed slices are refused.
    pub fn reshape(&self, dims: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.reshape(dims).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("reshape")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::reshape(tensor, dims).map(Leaf::Candle),
        }
    }

    /// These rows (indices of axis 0), in this order; a row may be taken more than once. Indexed slices are refused.
    pub fn take_rows(&self, rows: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.take_rows(rows).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("take_rows")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::take_rows(tensor, rows).map(Leaf::Candle),
        }
    }

    /// One row: index `index` of axis 0, and that axis removed. Indexed slices are refused.
    pub fn row(&self, index: usize) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.row(index).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("row")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::row(tensor, index).map(Leaf::Candle),
        }
    }

    /// The sum over these axes, which are removed, see [`HostTensor::sum_axes`]. Indexed slices are made dense.
    pub fn sum_axes(&self, axes: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.sum_axes(axes).map(Leaf::Host),
            Leaf::Slices(slices) => slices.to_dense()?.sum_axes(axes).map(Leaf::Host),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::sum_axes(tensor, axes).map(Leaf::Candle),
        }
    }

    /// A true division of every element, so integers become floats, see [`DType::mean`]. Of indexed slices
    /// the values are divided.
    pub fn divide(&self, by: f64) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.divide(by).map(Leaf::Host),
            Leaf::Slices(slices) => slices.divide(by).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::divide(tensor, by).map(Leaf::Candle),
        }
    }

    /// A copy in host memory; indexed slices are made dense.
    pub fn to_host(&self) -> Result<HostTensor> {
        match self {
            Leaf::Host(tensor) => Ok(tensor.clone()),
            Leaf::Slices(slices) => slices.to_dense(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => HostTensor::from_candle(tensor),
        }
    }

    /// Converts a leaf that came from another process to the kind and device of `like`; indexed slices stay as they are.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for elements that candle lacks.
    pub fn beside(self, like: &Leaf) -> Result<Leaf> {
        match (self, like) {
            #[cfg(feature = "candle")]
            (Leaf::Host(tensor), Leaf::Candle(like)) => tensor.into_candle(like.device()).map(Leaf::Candle),
            (leaf, _) => Ok(leaf),
        }
    }

    /// Whether the two are of one kind and on one device, so that they can be joined without a copy between devices.
    pub(crate) fn is_beside(&self, other: &Leaf) -> bool {
        match (self, other) {
            #[cfg(feature = "candle")]
            (Leaf::Candle(a), Leaf::Candle(b)) => a.device().same_device(b.device()),
            _ => self.kind() == other.kind(),
        }
    }

    /// This leaf, made dense and of the kind of `dense` if it is indexed slices.
    fn like(&self, dense: &Leaf) -> Result<Leaf> {
        let Leaf::Slices(slices) = self else { return Ok(self.clone()) };
        let whole = slices.to_dense_of(dense.dims())?;
        match dense {
            Leaf::Host(_) | Leaf::Slices(_) => Ok(Leaf::Host(whole)),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => whole.to_candle(tensor.device()).map(Leaf::Candle),
        }
    }

    /// At least one leaf, all of one kind, or an error that says which one differs from the first.
    fn of_one_kind<'a>(
        operation: &'static str,
        what: &'static str,
        leaves: &'a [impl Borrow<Leaf>],
    ) -> Result<Kind<'a>> {
        let first = leaves.first().ok_or(Error::Empty { operation })?.borrow();
        let all = || leaves.iter().map(Borrow::borrow);
        if let Some((i, other)) = all().enumerate().find(|(_, l)| l.kind() != first.kind()) {
            let error = Error::LeafKind { operation, expected: first.kind(), found: other.kind() };
            return Err(error.differs(what, i));
        }
        macro_rules! all {
            ($kind:ident) => {
                Kind::$kind(
                    all().filter_map(|l| if let Leaf::$kind(x) = l { Some(x) } else { None }).collect(),
                )
            };
        }
        Ok(match first {
            Leaf::Host(_) => all!(Host),
            Leaf::Slices(_) => all!(Slices),
            #[cfg(feature = "candle")]
            Leaf::Candle(_) => all!(Candle),
        })
    }
}

fn refuse(operation: &'static str) -> Error {
    Error::LeafKind { operation, expected: "a dense tensor", found: "indexed slices" }
}

/// As [`HostTensor`] and [`IndexedSlices`] write themselves; candle tensors as host tensors do.
impl std::fmt::Display for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Leaf::Host(tensor) => tensor.fmt(f),
            Leaf::Slices(slices) => slices.fmt(f),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => match HostTensor::from_candle(tensor) {
                Ok(tensor) => tensor.fmt(f),
                Err(_) => write!(f, "<Tensor: {}>", candle::describe(tensor)),
            },
        }
    }
}

impl From<HostTensor> for Leaf {
    fn from(tensor: HostTensor) -> Self {
        Leaf::Host(tensor)
    }
}

impl From<IndexedSlices> for Leaf {
    fn from(slices: IndexedSlices) -> Self {
        Leaf::Slices(slices)
    }
}

#[cfg(feature = "candle")]
impl From<candle_core::Tensor> for Leaf {
    fn from(tensor: candle_core::Tensor) -> Self {
        Leaf::Candle(tensor)
    }
}
