//! What can be wrong with tensors and nests.

use crate::DType;

/// The result of operations on tensors and nests.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with tensors or nests that were given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of elements is not the product of the shape.
    #[error("{elements} elements cannot fill shape {shape:?}")]
    ElementCount {
        /// The shape asked for.
        shape: Vec<usize>,
        /// How many elements were given.
        elements: usize,
    },
    /// Bytes that were received are no leaves.
    #[error("{operation}: {what} at byte {offset}; the sender has another version, or the bytes are damaged")]
    Bytes {
        /// What was being done.
        operation: &'static str,
        /// Where, from the first byte.
        offset: usize,
        /// What was found.
        what: &'static str,
    },
    /// Two shapes that had to be equal differ.
    #[error("{operation}: shapes differ: {expected:?} and {found:?}; values are never broadcast")]
    ShapeMismatch {
        /// What was being done.
        operation: &'static str,
        /// The first shape.
        expected: Vec<usize>,
        /// The one that differs from it.
        found: Vec<usize>,
    },
    /// Two dtypes that had to be equal differ.
    #[error("{operation}: dtypes differ: {expected} and {found}; cast one of them")]
    DTypeMismatch {
        /// What was being done.
        operation: &'static str,
        /// The first dtype.
        expected: DType,
        /// The one that differs from it.
        found: DType,
    },
    /// The operation is not defined for this dtype.
    #[error("{operation} is not defined for {dtype}")]
    UnsupportedDType {
        /// What was being done.
        operation: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// Indices that a tensor of this shape cannot have.
    #[error("{operation}: {what}, of a tensor of shape {shape:?}")]
    Indices {
        /// What was being done.
        operation: &'static str,
        /// What is wrong with them.
        what: &'static str,
        /// The tensor's shape.
        shape: Vec<usize>,
    },
    /// The kinds of leaves differ, or this kind cannot do this.
    #[error("{operation}: expected {expected}, found {found}")]
    LeafKind {
        /// What was being done.
        operation: &'static str,
        /// The kind expected.
        expected: &'static str,
        /// The kind found.
        found: &'static str,
    },
    /// An axis outside of the tensor's rank.
    #[error("{operation}: axis {axis} is outside of [0, {rank}) for shape {shape:?}{}", if *rank == 0 { "; a scalar has no axis: unsqueeze it first, or make a tensor of the numbers of a Vec by HostTensor::vector" } else { "" })]
    Axis {
        /// What was being done.
        operation: &'static str,
        /// The axis asked for.
        axis: i64,
        /// The rank of the tensor.
        rank: usize,
        /// The shape of the tensor.
        shape: Vec<usize>,
    },
    /// The same axis was given twice.
    #[error("{operation}: axis {axis} is given twice")]
    DuplicateAxis {
        /// What was being done.
        operation: &'static str,
        /// The axis.
        axis: usize,
    },
    /// Rows or indices outside of a tensor.
    #[error("{operation}: index {index} is outside of [0, {len})")]
    Index {
        /// What was being done.
        operation: &'static str,
        /// The index.
        index: i64,
        /// How many there are.
        len: usize,
    },
    /// An integer would be divided by 0.
    #[error("{operation}: an integer would be divided by 0")]
    DivisionByZero {
        /// What was being done.
        operation: &'static str,
    },
    /// Two structures that had to be equal differ.
    #[error("structures differ at {path}: {expected} and {found}")]
    Structure {
        /// Where in the structure: `value.a[1]`.
        path: String,
        /// What stood there in the first structure, or what the type needs.
        expected: String,
        /// What was found.
        found: String,
    },
    /// Something that has to have at least one member has none.
    #[error("{operation} needs at least one value")]
    Empty {
        /// What was being done.
        operation: &'static str,
    },
    /// No such reduce operation.
    #[error("'{found}' is not a reduce operation; use SUM or MEAN")]
    UnknownReduceOp {
        /// The text given.
        found: String,
    },
    /// No such dtype.
    #[error("'{found}' is not a dtype; use one of float32, float64, int32, int64, bool, string, …")]
    UnknownDType {
        /// The text given.
        found: String,
    },
    /// One of several values does not fit the first one.
    #[error("{what} {index} differs from {what} 0: {reason}")]
    Differs {
        /// What the values belong to: `replica`, `element`, `piece`.
        what: &'static str,
        /// Which of them differs from number 0.
        index: usize,
        /// How.
        reason: Box<Error>,
    },
    /// Something is wrong with one leaf of a structure.
    #[error("at {path}: {reason}")]
    At {
        /// Where in the structure: `value.a[1]`.
        path: String,
        /// What is wrong there.
        reason: Box<Error>,
    },
    /// Two leaves that should have the same number of rows have not.
    #[error(
        "{path} has {found} rows, but {first} has {expected}; the first axis of all leaves is that of the rows"
    )]
    Rows {
        /// The leaf that the others are compared with.
        first: String,
        /// Its number of rows.
        expected: usize,
        /// The leaf that differs from it.
        path: String,
        /// Its number of rows.
        found: usize,
    },
    /// A shape with more elements than memory can hold.
    #[error("{operation}: shape {shape:?} has more elements than memory can address")]
    TooLarge {
        /// What was being done.
        operation: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The shape of the whole is needed, and these indexed slices don't know it.
    #[error("{operation}: these indexed slices don't know the shape of the whole; set dense_shape")]
    NoDenseShape {
        /// What was being done.
        operation: &'static str,
    },
    /// A dtype of candle that has no counterpart here.
    #[cfg(feature = "candle")]
    #[error(
        "{operation}: candle's dtype {dtype} has no counterpart here; cast the tensor, to f32 for example"
    )]
    ForeignDType {
        /// What was being done.
        operation: &'static str,
        /// candle's name of the dtype.
        dtype: &'static str,
    },
    /// candle refused.
    #[cfg(feature = "candle")]
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// This error, as one that happened within `segment` (`.name` or `[3]`) of a structure: the path that it names
    /// grows by it.
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

    /// This error, as one about number `index` of several values, compared with number 0.
    pub(crate) fn differs(self, what: &'static str, index: usize) -> Self {
        Error::Differs { what, index, reason: Box::new(self) }
    }
}

/// How every path in a structure begins.
const ROOT: &str = "value";
