//! The errors of tensors and nests.

use crate::DType;

/// The result of operations on tensors and nests.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error in tensors or nests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of elements is not the product of the sizes in the shape.
    #[error("{elements} elements cannot fill shape {shape:?}")]
    ElementCount {
        /// The requested shape.
        shape: Vec<usize>,
        /// The actual number of elements.
        elements: usize,
    },
    /// Received bytes are invalid, such as those of leaves or of a compressed gradient; or a leaf has too many axes to
    /// be encoded.
    #[error("{operation}: {what} at byte {offset}; the sender has another version, or the bytes are damaged")]
    Bytes {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The offset of the first invalid byte.
        offset: usize,
        /// The reason why the bytes are invalid.
        what: &'static str,
    },
    /// Two shapes that must be equal differ.
    #[error("{operation}: shapes differ: {expected:?} and {found:?}; values are never broadcast")]
    ShapeMismatch {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The required shape, such as that of the first value.
        expected: Vec<usize>,
        /// The actual shape.
        found: Vec<usize>,
    },
    /// Two dtypes that must be equal differ.
    #[error("{operation}: dtypes differ: {expected} and {found}; cast one of them")]
    DTypeMismatch {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The required dtype, such as that of the first value.
        expected: DType,
        /// The actual dtype.
        found: DType,
    },
    /// The operation is not defined for this dtype.
    #[error("{operation} is not defined for {dtype}")]
    UnsupportedDType {
        /// The name of the operation.
        operation: &'static str,
        /// The dtype that the operation does not support.
        dtype: DType,
    },
    /// The indices cannot be applied to a tensor of this shape.
    #[error("{operation}: {what}, of a tensor of shape {shape:?}")]
    Indices {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The reason why the indices are wrong.
        what: &'static str,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// The leaves are of different kinds, or the operation does not support this kind of leaf.
    #[error("{operation}: expected {expected}, found {found}")]
    LeafKind {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The required kind of leaf.
        expected: &'static str,
        /// The actual kind of leaf.
        found: &'static str,
    },
    /// An axis is not less than the rank of the tensor.
    #[error("{operation}: axis {axis} is outside [0, {rank}) for shape {shape:?}{}", if *rank == 0 { "; a scalar has no axis: unsqueeze it first, or make a tensor from a Vec with HostTensor::vector" } else { "" })]
    Axis {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The axis that was requested.
        axis: i64,
        /// The rank of the tensor.
        rank: usize,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// The same axis was given twice.
    #[error("{operation}: axis {axis} is given twice")]
    DuplicateAxis {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The axis that was given twice.
        axis: usize,
    },
    /// A row or an index is out of range.
    #[error("{operation}: index {index} is outside [0, {len})")]
    Index {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The row or index that is out of range.
        index: i64,
        /// The number of valid indices.
        len: usize,
    },
    /// An integer would be divided by 0.
    #[error("{operation}: an integer would be divided by 0")]
    DivisionByZero {
        /// The name of the operation that failed.
        operation: &'static str,
    },
    /// Two structures that must be equal differ.
    #[error("structures differ at {path}: {expected} and {found}")]
    Structure {
        /// The path of the first difference, such as `value.a[1]`.
        path: String,
        /// A description of the first structure's node at this path, or of the node that the type requires.
        expected: String,
        /// A description of the actual node at this path.
        found: String,
    },
    /// The list of values is empty, but the operation needs at least one.
    #[error("{operation} needs at least one value")]
    Empty {
        /// The name of the operation that failed.
        operation: &'static str,
    },
    /// The text cannot be parsed as a reduce operation.
    #[error("'{found}' is not a reduce operation; use SUM or MEAN")]
    UnknownReduceOp {
        /// The text that was parsed.
        found: String,
    },
    /// The text cannot be parsed as a dtype.
    #[error("'{found}' is not a dtype; use one of float32, float64, int32, int64, bool, string, …")]
    UnknownDType {
        /// The text that was parsed.
        found: String,
    },
    /// One of several values does not match the first one.
    #[error("{what} {index} differs from {what} 0: {reason}")]
    Differs {
        /// The kind of the values: `replica`, `element`, `batch` or `tensor`.
        what: &'static str,
        /// The index of the value that differs. The first value has index 0.
        index: usize,
        /// The difference between the two values.
        reason: Box<Error>,
    },
    /// An error occurred in one leaf of a structure.
    #[error("at {path}: {reason}")]
    At {
        /// The path of the leaf, such as `value.a[1]`.
        path: String,
        /// The error in this leaf.
        reason: Box<Error>,
    },
    /// Two leaves of a batch have different numbers of rows.
    #[error(
        "{path} has {found} rows, but {first} has {expected}; the first axis of all leaves must be the rows"
    )]
    Rows {
        /// The path of the leaf that determines the number of rows.
        first: String,
        /// The number of rows of that leaf.
        expected: usize,
        /// The path of the leaf that differs.
        path: String,
        /// The number of rows of the leaf that differs.
        found: usize,
    },
    /// A shape has more elements than memory can hold.
    #[error("{operation}: shape {shape:?} has more elements than memory can address")]
    TooLarge {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The shape that is too large.
        shape: Vec<usize>,
    },
    /// The operation needs the dense shape, but these indexed slices do not have one.
    #[error("{operation}: these indexed slices lack the dense shape; set dense_shape")]
    NoDenseShape {
        /// The name of the operation that failed.
        operation: &'static str,
    },
    /// A candle dtype has no equivalent here.
    #[cfg(feature = "candle")]
    #[error("{operation}: candle's dtype {dtype} is not supported; cast the tensor, for example to f32")]
    ForeignDType {
        /// The name of the operation that failed.
        operation: &'static str,
        /// The name of the dtype in candle.
        dtype: &'static str,
    },
    /// A candle operation failed.
    #[cfg(feature = "candle")]
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Prepends `segment` (such as `.name` or `[3]`) to the path of an [`Error::Structure`] or [`Error::At`]. Any other
    /// error is wrapped in an [`Error::At`].
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

    /// Wraps this error as the reason why the value with the given index differs from value 0.
    pub(crate) fn differs(self, what: &'static str, index: usize) -> Self {
        Error::Differs { what, index, reason: Box::new(self) }
    }
}

/// The first component of every path in a structure.
const ROOT: &str = "value";
