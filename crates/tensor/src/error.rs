//! Errors of tensors and nests.

use crate::DType;

/// The result of operations on tensors and nests.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error in tensors or nests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of elements is not the product of the shape.
    #[error("{elements} elements cannot fill shape {shape:?}")]
    ElementCount {
        /// The requested shape.
        shape: Vec<usize>,
        /// The number of elements.
        elements: usize,
    },
    /// Received bytes are not valid leaves.
    #[error("{operation}: {what} at byte {offset}; the sender has another version, or the bytes are damaged")]
    Bytes {
        /// The operation.
        operation: &'static str,
        /// The offset in bytes.
        offset: usize,
        /// The problem.
        what: &'static str,
    },
    /// Two shapes that had to be equal differ.
    #[error("{operation}: shapes differ: {expected:?} and {found:?}; values are never broadcast")]
    ShapeMismatch {
        /// The operation.
        operation: &'static str,
        /// The first shape.
        expected: Vec<usize>,
        /// The shape that differs from the first one.
        found: Vec<usize>,
    },
    /// Two dtypes that had to be equal differ.
    #[error("{operation}: dtypes differ: {expected} and {found}; cast one of them")]
    DTypeMismatch {
        /// The operation.
        operation: &'static str,
        /// The first dtype.
        expected: DType,
        /// The dtype that differs from the first one.
        found: DType,
    },
    /// The operation is not defined for this dtype.
    #[error("{operation} is not defined for {dtype}")]
    UnsupportedDType {
        /// The operation.
        operation: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// The indices do not fit a tensor of this shape.
    #[error("{operation}: {what}, of a tensor of shape {shape:?}")]
    Indices {
        /// The operation.
        operation: &'static str,
        /// The problem.
        what: &'static str,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// The kinds of leaves differ, or the operation does not support this kind.
    #[error("{operation}: expected {expected}, found {found}")]
    LeafKind {
        /// The operation.
        operation: &'static str,
        /// The expected kind.
        expected: &'static str,
        /// The kind found.
        found: &'static str,
    },
    /// An axis is not less than the rank of the tensor.
    #[error("{operation}: axis {axis} is outside of [0, {rank}) for shape {shape:?}{}", if *rank == 0 { "; a scalar has no axis: unsqueeze it first, or make a tensor of the numbers of a Vec by HostTensor::vector" } else { "" })]
    Axis {
        /// The operation.
        operation: &'static str,
        /// The requested axis.
        axis: i64,
        /// The rank of the tensor.
        rank: usize,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// The same axis was given twice.
    #[error("{operation}: axis {axis} is given twice")]
    DuplicateAxis {
        /// The operation.
        operation: &'static str,
        /// The axis.
        axis: usize,
    },
    /// A row or an index is out of range.
    #[error("{operation}: index {index} is outside of [0, {len})")]
    Index {
        /// The operation.
        operation: &'static str,
        /// The index.
        index: i64,
        /// The number of valid indices.
        len: usize,
    },
    /// An integer would be divided by 0.
    #[error("{operation}: an integer would be divided by 0")]
    DivisionByZero {
        /// The operation.
        operation: &'static str,
    },
    /// Two structures that had to be equal differ.
    #[error("structures differ at {path}: {expected} and {found}")]
    Structure {
        /// The path in the structure: `value.a[1]`.
        path: String,
        /// The node in the first structure, or the node that the type needs.
        expected: String,
        /// The node found.
        found: String,
    },
    /// A list is empty, but needs at least one value.
    #[error("{operation} needs at least one value")]
    Empty {
        /// The operation.
        operation: &'static str,
    },
    /// A text is not a reduce operation.
    #[error("'{found}' is not a reduce operation; use SUM or MEAN")]
    UnknownReduceOp {
        /// The text.
        found: String,
    },
    /// A text is not a dtype.
    #[error("'{found}' is not a dtype; use one of float32, float64, int32, int64, bool, string, …")]
    UnknownDType {
        /// The text.
        found: String,
    },
    /// A value does not match the first one of several.
    #[error("{what} {index} differs from {what} 0: {reason}")]
    Differs {
        /// The name of the values: `replica`, `element`, `piece`.
        what: &'static str,
        /// The number of the value that differs from number 0.
        index: usize,
        /// The difference.
        reason: Box<Error>,
    },
    /// An error in one leaf of a structure.
    #[error("at {path}: {reason}")]
    At {
        /// The path in the structure: `value.a[1]`.
        path: String,
        /// The error.
        reason: Box<Error>,
    },
    /// Two leaves that should have the same number of rows differ.
    #[error(
        "{path} has {found} rows, but {first} has {expected}; the first axis of all leaves is that of the rows"
    )]
    Rows {
        /// The path of the first leaf.
        first: String,
        /// The number of rows of the first leaf.
        expected: usize,
        /// The path of the leaf that differs.
        path: String,
        /// The number of rows of the leaf that differs.
        found: usize,
    },
    /// A shape has more elements than memory can hold.
    #[error("{operation}: shape {shape:?} has more elements than memory can address")]
    TooLarge {
        /// The operation.
        operation: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The dense shape is required, but these indexed slices do not have it.
    #[error("{operation}: these indexed slices don't know the shape of the whole; set dense_shape")]
    NoDenseShape {
        /// The operation.
        operation: &'static str,
    },
    /// A dtype of candle has no counterpart here.
    #[cfg(feature = "candle")]
    #[error(
        "{operation}: candle's dtype {dtype} has no counterpart here; cast the tensor, to f32 for example"
    )]
    ForeignDType {
        /// The operation.
        operation: &'static str,
        /// The name of the dtype in candle.
        dtype: &'static str,
    },
    /// An error of candle.
    #[cfg(feature = "candle")]
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Prepends `segment` (`.name` or `[3]`) to the path that this error names.
    pub fn within(self, segment: impl std::fmt::Display) -> Self {
        let extend = |path: String| match path.strip_prefix(ROOT) {
            Some(rest) => format!("{ROOT}{segment}{rest}"),
            None => format!("{ROOT}{segment}.{path}"),
        };
        match self {
            Error::Structure { path, expected, found } => {
                Error::Structure { path: extend(path), expected, found }
            }
            Error::At { path, reason } => Error::At { path: extend(path), reason },
            other => Error::At { path: format!("{ROOT}{segment}"), reason: Box::new(other) },
        }
    }

    /// Wraps this error as the difference between value `index` and value 0.
    pub(crate) fn differs(self, what: &'static str, index: usize) -> Self {
        Error::Differs { what, index, reason: Box::new(self) }
    }
}

/// The beginning of every path in a structure.
const ROOT: &str = "value";
