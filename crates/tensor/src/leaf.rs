//! The leaves of a nest, and operations on every kind of leaf.

#[cfg(feature = "candle")]
use crate::candle;
use crate::fold::{Alone, Folder};
use crate::host::summable;
use crate::{DType, Error, HostTensor, IndexedSlices, ReduceOp, Result};
use std::borrow::Borrow;

/// A leaf of a nest.
///
/// Operations preserve the kind of leaf, unless they need indexed slices to be dense. The result of an operation on
/// candle tensors is a candle tensor on the device of the first one. Gradients do not flow through operations on
/// several leaves.
///
/// Operations on candle tensors also return `Error::Candle` if candle fails, and `Error::ForeignDType` for dtypes that
/// have no equivalent here.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Leaf {
    /// A tensor in host memory.
    Host(HostTensor),
    /// Some rows of a larger tensor.
    Slices(IndexedSlices),
    /// A candle tensor on any device.
    #[cfg(feature = "candle")]
    Candle(candle_core::Tensor),
}

/// Several leaves, which are all of the same kind.
enum Kind<'a> {
    Host(Vec<&'a HostTensor>),
    Slices(Vec<&'a IndexedSlices>),
    #[cfg(feature = "candle")]
    Candle(Vec<&'a candle_core::Tensor>),
}

impl Leaf {
    /// Returns whether gradients flow through the leaf, that is, whether it is a candle tensor that is a variable or
    /// depends on one.
    pub fn is_tracked(&self) -> bool {
        match self {
            Leaf::Host(_) | Leaf::Slices(_) => false,
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => tensor.track_op(),
        }
    }

    /// Returns the kind of leaf as text, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Leaf::Host(_) => "a host tensor",
            Leaf::Slices(_) => "indexed slices",
            #[cfg(feature = "candle")]
            Leaf::Candle(_) => "a candle tensor",
        }
    }

    /// Returns the dtype of the elements. For indexed slices, this is the dtype of the values.
    ///
    /// # Errors
    /// - `Error::ForeignDType`: the dtype is one of candle's 4-, 6- and 8-bit floats, which have no equivalent here.
    pub fn dtype(&self) -> Result<DType> {
        match self {
            Leaf::Host(tensor) => Ok(tensor.dtype()),
            Leaf::Slices(slices) => Ok(slices.values.dtype()),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::dtype("dtype", tensor),
        }
    }

    /// Returns the size of each axis. For indexed slices, these are the sizes of the values.
    pub fn dims(&self) -> &[usize] {
        match self {
            Leaf::Host(tensor) => tensor.dims(),
            Leaf::Slices(slices) => slices.values.dims(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => tensor.dims(),
        }
    }

    /// Returns the dtype and the shape as text, such as `float32[2, 3]` or `IndexedSlices(float32[2, 3] of [5, 3])`.
    pub fn describe(&self) -> String {
        match self {
            Leaf::Host(tensor) => tensor.describe(),
            Leaf::Slices(slices) => slices.describe(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::describe(tensor),
        }
    }

    /// Returns the element-wise sum or mean of the leaves of all replicas.
    ///
    /// All leaves must have the same dtype and shape, and be of the same kind, except that slices and dense tensors may
    /// be mixed: slices are then made dense first. Nothing is broadcast.
    ///
    /// Values are added in the order of a balanced binary tree over `leaves`; see `kernel::fold`. Floats of 16 bits are
    /// accumulated as `f32` and rounded once. A SUM of integers wraps. A MEAN is computed from a sum that does not
    /// wrap; for integers, the mean is a float, see [`DType::mean`]. The same rules apply to a single leaf.
    ///
    /// Rows of indexed slices with the same index are merged, even in a single leaf; see [`IndexedSlices::reduce`].
    ///
    /// # Errors
    /// - [`Error::Empty`]: `leaves` is empty.
    /// - [`Error::Differs`]: a replica does not match replica 0.
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    /// - The other errors of [`IndexedSlices::reduce`], if all leaves are indexed slices.
    // Crates that call this would otherwise compile the sums of all dtypes again.
    #[inline(never)]
    pub fn reduce(op: ReduceOp, leaves: &[Leaf]) -> Result<Leaf> {
        Self::reduce_with(op, leaves, &Alone)
    }

    /// Acts like [`Leaf::reduce`], but `folder` computes the sums in host memory. The result is bit-identical.
    ///
    /// The leaves may be borrowed. Cloning a leaf that belongs to another thread would increment a reference count in a
    /// contended cache line.
    ///
    /// # Errors
    /// Returns the errors of [`Leaf::reduce`].
    pub fn reduce_with(op: ReduceOp, leaves: &[impl Borrow<Leaf>], folder: &impl Folder) -> Result<Leaf> {
        const OPERATION: &str = "reduce";
        let all = || leaves.iter().map(Borrow::borrow);
        let sparse = |leaf: &Leaf| matches!(leaf, Leaf::Slices(_));
        if all().any(sparse) && !all().all(sparse) {
            // Rows with the same index are added when slices are made dense.
            let summands = Leaf::summands(op, leaves)?;
            let Some(dense) = summands.iter().find(|l| !sparse(l)) else {
                return Err(Error::Empty { operation: OPERATION });
            };
            let densify =
                |(i, leaf): (usize, &Leaf)| leaf.densify_like(dense).map_err(|e| e.differs("replica", i));
            let alike = summands.iter().enumerate().map(densify).collect::<Result<Vec<Leaf>>>()?;
            let dtype = all().next().map_or(Ok(DType::F32), Leaf::dtype)?;
            return Leaf::reduce_with(ReduceOp::Sum, &alike, folder)?.reduction(op, leaves.len(), dtype);
        }
        match Leaf::require_one_kind(OPERATION, "replica", leaves)? {
            Kind::Host(tensors) => HostTensor::reduce_with(op, &tensors, folder).map(Leaf::Host),
            Kind::Slices(slices) => IndexedSlices::reduce_with(op, &slices, folder).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::reduce(op, &tensors, folder).map(Leaf::Candle),
        }
    }

    /// Converts leaves to the dtype in which `op` accumulates them: [`DType::of_sum`]. [`reduction`](Leaf::reduction)
    /// computes the result from the sum of the converted leaves. Without leaves, the list is empty.
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

    /// Computes the result of `op` from `self`, which must be the sum of `count` [summands](Leaf::summands) that were
    /// converted from `dtype`. The result of a SUM has that dtype. A MEAN divides the sum and has the dtype
    /// [`DType::mean`].
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: `op` is a MEAN, and the dtype is bool or string.
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

    /// Joins leaves along an axis, in the order of replicas. Their sizes may differ only along that axis. All dtypes
    /// are supported, including bool and string.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `leaves` is empty.
    /// - [`Error::LeafKind`]: the leaves are indexed slices.
    /// - [`Error::Axis`]: `axis` is not less than the rank. A scalar has no axis.
    /// - [`Error::Differs`]: a replica does not match replica 0.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    pub fn concat(leaves: &[Leaf], axis: usize) -> Result<Leaf> {
        match Leaf::require_one_kind("concat", "replica", leaves)? {
            Kind::Host(tensors) => HostTensor::concat(&tensors, axis).map(Leaf::Host),
            Kind::Slices(_) => Err(refuse("concat")),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::concat(&tensors, axis).map(Leaf::Candle),
        }
    }

    /// Stacks leaves with the same shape and dtype along a new axis 0.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `leaves` is empty.
    /// - [`Error::LeafKind`]: the leaves are indexed slices.
    /// - [`Error::Differs`]: an element does not match element 0.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    pub fn stack(leaves: &[Leaf]) -> Result<Leaf> {
        match Leaf::require_one_kind("stack", "element", leaves)? {
            Kind::Host(tensors) => HostTensor::stack(&tensors).map(Leaf::Host),
            Kind::Slices(_) => Err(refuse("stack")),
            #[cfg(feature = "candle")]
            Kind::Candle(tensors) => candle::stack(&tensors).map(Leaf::Candle),
        }
    }

    /// Returns `len` entries along an axis, beginning at index `start`.
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

    /// Returns a leaf with the same dtype and row shape, but without rows (entries along axis 0). The result does not
    /// share the memory of the original, except for candle dtypes of which candle cannot create zeros.
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

    /// Returns a leaf with the same elements in row-major order, and the given shape.
    ///
    /// # Errors
    /// - [`Error::ElementCount`]: the shape has a different number of elements.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn reshape(&self, dims: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.reshape(dims).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("reshape")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::reshape(tensor, dims).map(Leaf::Candle),
        }
    }

    /// Returns the given rows (indices along axis 0), in the given order. A row may occur more than once.
    ///
    /// # Errors
    /// - [`Error::Axis`], [`Error::Index`]: a row does not exist.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    /// - [`Error::LeafKind`]: the leaf is indexed slices.
    pub fn take_rows(&self, rows: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.take_rows(rows).map(Leaf::Host),
            Leaf::Slices(_) => Err(refuse("take_rows")),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::take_rows(tensor, rows).map(Leaf::Candle),
        }
    }

    /// Returns the row at `index` along axis 0, without that axis.
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

    /// Returns the sum over the given axes, which are removed. Indexed slices are made dense first.
    ///
    /// # Errors
    /// Returns the errors of [`HostTensor::sum_axes`] and [`IndexedSlices::to_dense`].
    pub fn sum_axes(&self, axes: &[usize]) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.sum_axes(axes).map(Leaf::Host),
            Leaf::Slices(slices) => slices.to_dense()?.sum_axes(axes).map(Leaf::Host),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::sum_axes(tensor, axes).map(Leaf::Candle),
        }
    }

    /// Divides every element. Integers become floats; see [`DType::mean`]. For indexed slices, the values are divided.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    pub fn divide(&self, by: f64) -> Result<Leaf> {
        match self {
            Leaf::Host(tensor) => tensor.divide(by).map(Leaf::Host),
            Leaf::Slices(slices) => slices.divide(by).map(Leaf::Slices),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => candle::divide(tensor, by).map(Leaf::Candle),
        }
    }

    /// Converts the leaf to a dense host tensor. The elements of a host tensor remain shared; those of a candle tensor
    /// are copied.
    ///
    /// # Errors
    /// Returns the errors of `HostTensor::from_candle` and [`IndexedSlices::to_dense`].
    pub fn to_host(&self) -> Result<HostTensor> {
        match self {
            Leaf::Host(tensor) => Ok(tensor.clone()),
            Leaf::Slices(slices) => slices.to_dense(),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => HostTensor::from_candle(tensor),
        }
    }

    /// Converts a host tensor to a candle tensor on the device of `like` if `like` is a candle tensor. Returns any
    /// other leaf unchanged. Use this for leaves that were received from another process.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: candle does not support the dtype.
    pub fn to_device_of(self, like: &Leaf) -> Result<Leaf> {
        match (self, like) {
            #[cfg(feature = "candle")]
            (Leaf::Host(tensor), Leaf::Candle(like)) => tensor.into_candle(like.device()).map(Leaf::Candle),
            (leaf, _) => Ok(leaf),
        }
    }

    /// Returns whether two leaves have the same kind and device, so they can be joined without a copy between devices.
    pub(crate) fn is_on_same_device(&self, other: &Leaf) -> bool {
        match (self, other) {
            #[cfg(feature = "candle")]
            (Leaf::Candle(a), Leaf::Candle(b)) => a.device().same_device(b.device()),
            _ => self.kind() == other.kind(),
        }
    }

    /// Converts indexed slices to a dense leaf with the kind, device and shape of `dense`. Returns other leaves
    /// unchanged.
    fn densify_like(&self, dense: &Leaf) -> Result<Leaf> {
        let Leaf::Slices(slices) = self else { return Ok(self.clone()) };
        let whole = slices.to_dense_of(dense.dims())?;
        match dense {
            Leaf::Host(_) | Leaf::Slices(_) => Ok(Leaf::Host(whole)),
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => whole.to_candle(tensor.device()).map(Leaf::Candle),
        }
    }

    /// Collects leaves, which must all be of one kind. Returns an error if there are none, or if a leaf's kind differs
    /// from that of the first; `what` names the values in this error.
    fn require_one_kind<'a>(
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

/// Prints the leaf like [`HostTensor`] and [`IndexedSlices`]. A candle tensor is printed like a host tensor, or without
/// its elements if they cannot be copied.
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
