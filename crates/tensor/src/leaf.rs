//! The leaves of a nest, and the operations on every kind of leaf.

#[cfg(feature = "candle")]
use crate::candle;
use crate::fold::{Alone, Folder};
use crate::host::summable;
use crate::{DType, Error, HostTensor, IndexedSlices, ReduceOp, Result};
use std::borrow::Borrow;

/// A leaf of a nest.
///
/// Operations keep the kind: candle tensors give candle tensors, on the device of the first one. Operations
/// on several leaves do not propagate candle's gradients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Leaf {
    /// A tensor in host memory.
    Host(HostTensor),
    /// Rows of a larger tensor.
    Slices(IndexedSlices),
    /// A candle tensor on any device.
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
    /// Whether gradients flow through the leaf: it is a candle tensor that is a variable or depends on one.
    pub fn is_tracked(&self) -> bool {
        match self {
            Leaf::Host(_) | Leaf::Slices(_) => false,
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => tensor.track_op(),
        }
    }

    /// Returns the kind of leaf as text.
    pub fn kind(&self) -> &'static str {
        match self {
            Leaf::Host(_) => "a host tensor",
            Leaf::Slices(_) => "indexed slices",
            #[cfg(feature = "candle")]
            Leaf::Candle(_) => "a candle tensor",
        }
    }

    /// Returns the type of the elements; for indexed slices, of the values.
    ///
    /// # Errors
    /// `Error::ForeignDType` for candle's 4-, 6- and 8-bit floats.
    pub fn dtype(&self) -> Result<DType> {
        match self {
            Leaf::Host(tensor) => Ok(tensor.dtype()),
            Leaf::Slices(slices) => Ok(slices.values.dtype()),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::dtype("dtype", tensor),
        }
    }

    /// Returns the size of each axis; for indexed slices, of the values.
    pub fn dims(&self) -> &[usize] {
        match self {
            Leaf::Host(tensor) => tensor.dims(),
            Leaf::Slices(slices) => slices.values.dims(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => tensor.dims(),
        }
    }

    /// Returns dtype and shape: `float32[2, 3]`, `IndexedSlices(float32[2, 3] of [5, 3])`.
    pub fn describe(&self) -> String {
        match self {
            Leaf::Host(tensor) => tensor.describe(),
            Leaf::Slices(slices) => slices.describe(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::describe(tensor),
        }
    }

    /// Returns the element-wise sum or mean over replicas.
    ///
    /// Kind, shape and dtype must be equal; nothing is broadcast. The sum is a balanced binary tree over the
    /// list, see `kernel::fold`. Floats of 16 bits are accumulated as `f32` and rounded once. A SUM of
    /// integers wraps. A MEAN divides the sum, so the mean of integers is a float, see [`DType::mean`], and
    /// their sum does not wrap. A single leaf is subject to the same rules.
    ///
    /// The rows of indexed slices are merged, even those of a single leaf, see [`IndexedSlices::reduce`]. If
    /// some leaves are dense, slices are made dense first.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `leaves` is empty.
    /// - [`Error::Differs`]: a replica does not match replica 0.
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    pub fn reduce(op: ReduceOp, leaves: &[Leaf]) -> Result<Leaf> {
        Self::reduce_with(op, leaves, &Alone)
    }

    /// Reduces as [`Leaf::reduce`], with sums in host memory computed by `folder`. The result is
    /// bit-identical.
    ///
    /// Leaves may be borrowed, because incrementing the reference count of a leaf of another thread costs a
    /// contended cache line.
    ///
    /// # Errors
    /// The errors of [`Leaf::reduce`].
    pub fn reduce_with(op: ReduceOp, leaves: &[impl Borrow<Leaf>], folder: &impl Folder) -> Result<Leaf> {
        const OPERATION: &str = "reduce";
        let all = || leaves.iter().map(Borrow::borrow);
        let sparse = |leaf: &Leaf| matches!(leaf, Leaf::Slices(_));
        if all().any(sparse) && !all().all(sparse) {
            // Rows with the same index are added when they are made dense.
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

    /// Converts leaves to the dtype in which `op` accumulates them, [`DType::of_sum`]. Then
    /// [`reduction`](Leaf::reduction) computes the result from their sum.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    /// - [`Error::Differs`]: the dtype of a replica differs from that of replica 0.
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

    /// Computes the result of `op` from the sum of `count` [summands](Leaf::summands) that were leaves of
    /// `dtype`. The result of SUM is the sum in that dtype; MEAN is a true division.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] if the dtype is bool or string.
    pub fn reduction(self, op: ReduceOp, count: usize, dtype: DType) -> Result<Leaf> {
        match (op, dtype.mean()) {
            (ReduceOp::Sum, _) if dtype.of_sum(op) == dtype => Ok(self),
            (ReduceOp::Sum, _) => self.to_dtype(dtype),
            (ReduceOp::Mean, Some(mean)) => self.divide(count as f64)?.to_dtype(mean),
            (ReduceOp::Mean, None) => Err(Error::UnsupportedDType { operation: "reduce", dtype }),
        }
    }

    /// Converts the elements to another dtype.
    fn to_dtype(&self, dtype: DType) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.cast(dtype).map(Leaf::Host),
            Leaf::Slices(slices) => slices.cast(dtype).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::cast(tensor, dtype).map(Leaf::Candle),
        }
    }

    /// Joins leaves along an axis, in replica order. They may differ in size only along that axis. Every
    /// dtype is allowed, including bool and string.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `leaves` is empty.
    /// - [`Error::LeafKind`]: the leaves are indexed slices.
    /// - [`Error::Axis`]: `axis` is not less than the rank, as for any axis of a scalar.
    /// - [`Error::Differs`]: a replica does not match replica 0.
    pub fn concat(leaves: &[Leaf], axis: usize) -> Result<Leaf> {
        match Leaf::of_one_kind("concat", "replica", leaves)? {
            Kind::Host(tensors) => HostTensor::concat(&tensors, axis).map(Leaf::Host),
            Kind::Slices(_) => Err(refuse("concat")),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::concat(&tensors, axis).map(Leaf::Candle),
        }
    }

    /// Stacks leaves of one shape and dtype along a new axis 0.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `leaves` is empty.
    /// - [`Error::LeafKind`]: the leaves are indexed slices.
    /// - [`Error::Differs`]: an element does not match element 0.
    pub fn stack(leaves: &[Leaf]) -> Result<Leaf> {
        match Leaf::of_one_kind("stack", "element", leaves)? {
            Kind::Host(tensors) => HostTensor::stack(&tensors).map(Leaf::Host),
            Kind::Slices(_) => Err(refuse("stack")),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::stack(&tensors).map(Leaf::Candle),
        }
    }

    /// Returns `len` indices of an axis, beginning at `start`.
    ///
    /// # Errors
    /// - [`Error::Axis`], [`Error::Index`]: the range exceeds the tensor.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.narrow(axis, start, len).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("narrow")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::narrow(tensor, axis, start, len).map(Leaf::Candle),
        }
    }

    /// Returns a leaf like this one without rows (indices of axis 0). It does not keep the memory of the
    /// rows.
    ///
    /// # Errors
    /// - [`Error::Axis`]: the leaf is a scalar.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn without_rows(&self) -> Result<Leaf> {
        match self {
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::without_rows(tensor).map(Leaf::Candle),
            other => other.narrow(0, 0, 0),
        }
    }

    /// Returns the same elements in row-major order, in another shape.
    ///
    /// # Errors
    /// - [`Error::ElementCount`]: the shape has another number of elements.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn reshape(&self, dims: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.reshape(dims).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("reshape")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::reshape(tensor, dims).map(Leaf::Candle),
        }
    }

    /// Returns these rows (indices of axis 0), in this order. A row may be taken more than once.
    ///
    /// # Errors
    /// - [`Error::Axis`], [`Error::Index`]: a row does not exist.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn take_rows(&self, rows: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.take_rows(rows).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("take_rows")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::take_rows(tensor, rows).map(Leaf::Candle),
        }
    }

    /// Returns row `index` of axis 0, with that axis removed.
    ///
    /// # Errors
    /// - [`Error::Axis`], [`Error::Index`]: the row does not exist.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn row(&self, index: usize) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.row(index).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("row")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::row(tensor, index).map(Leaf::Candle),
        }
    }

    /// Returns the sum over these axes, which are removed. Indexed slices are made dense.
    ///
    /// # Errors
    /// The errors of [`HostTensor::sum_axes`] and [`IndexedSlices::to_dense`].
    pub fn sum_axes(&self, axes: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.sum_axes(axes).map(Leaf::Host),
            Leaf::Slices(slices) => slices.to_dense()?.sum_axes(axes).map(Leaf::Host),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::sum_axes(tensor, axes).map(Leaf::Candle),
        }
    }

    /// Divides every element. This is a true division, so integers become floats, see [`DType::mean`]. For
    /// indexed slices, the values are divided.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] if the dtype is bool or string.
    pub fn divide(&self, by: f64) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.divide(by).map(Leaf::Host),
            Leaf::Slices(slices) => slices.divide(by).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::divide(tensor, by).map(Leaf::Candle),
        }
    }

    /// Copies the leaf to host memory. Indexed slices are made dense.
    ///
    /// # Errors
    /// The errors of `HostTensor::from_candle` and [`IndexedSlices::to_dense`].
    pub fn to_host(&self) -> Result<HostTensor> {
        match self {
            Leaf::Host(tensor) => Ok(tensor.clone()),
            Leaf::Slices(slices) => slices.to_dense(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => HostTensor::from_candle(tensor),
        }
    }

    /// Converts a leaf from another process to the kind and device of `like`. Indexed slices stay unchanged.
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

    /// Whether two leaves have one kind and one device, so that they can be joined without a copy between
    /// devices.
    pub(crate) fn is_beside(&self, other: &Leaf) -> bool {
        match (self, other) {
            #[cfg(feature = "candle")]
            (Leaf::Candle(a), Leaf::Candle(b)) => a.device().same_device(b.device()),
            _ => self.kind() == other.kind(),
        }
    }

    /// Makes indexed slices dense, in the kind of `dense`. Returns other leaves unchanged.
    fn like(&self, dense: &Leaf) -> Result<Leaf> {
        let Leaf::Slices(slices) = self else { return Ok(self.clone()) };
        let whole = slices.to_dense_of(dense.dims())?;
        match dense {
            Leaf::Host(_) | Leaf::Slices(_) => Ok(Leaf::Host(whole)),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => whole.to_candle(tensor.device()).map(Leaf::Candle),
        }
    }

    /// Returns at least one leaf, all of one kind, or an error that names the first one that differs.
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

/// Prints as [`HostTensor`] and [`IndexedSlices`] do. Candle tensors print like host tensors.
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
