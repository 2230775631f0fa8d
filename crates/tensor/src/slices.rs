//! Rows of a larger tensor with their indices, such as a sparse gradient.

use crate::dtype::with_summable;
use crate::fold::{Alone, Folder};
use crate::host::{check_pieces, check_same, summable};
use crate::kernel::{RowMerge, RowSum, Sum, Write};
use crate::{DType, Element, Error, HostTensor, ReduceOp, Result};

const REDUCE: &str = "reduce";
const CONCAT: &str = "concat";
const TO_DENSE: &str = "to_dense";

/// The indices of each replica's rows.
type ReplicaIndices = Vec<Vec<usize>>;

/// Rows of a larger tensor, with their indices.
///
/// Rows with the same index are added. `values` has shape `[n, …]`. `indices` has shape `[n]` and dtype int32 or int64.
///
/// ```
/// use distribute_tensor::{HostTensor, IndexedSlices, ReduceOp};
///
/// let rows = |values: Vec<f32>, indices: Vec<i64>| {
///     let values = HostTensor::new(values, [indices.len(), 1])?;
///     IndexedSlices::new(values, HostTensor::vector(indices), Some(vec![5, 1]))
/// };
/// let (a, b) = (rows(vec![1.0, 2.0], vec![3, 0])?, rows(vec![10.0], vec![3])?);
/// // A sum has each row once; a concatenation keeps duplicates.
/// assert_eq!(IndexedSlices::reduce(ReduceOp::Sum, &[&a, &b])?, rows(vec![2.0, 11.0], vec![0, 3])?);
/// assert_eq!(IndexedSlices::concat(&[&a, &b])?, rows(vec![1.0, 2.0, 10.0], vec![3, 0, 3])?);
/// # Ok::<(), distribute_tensor::Error>(())
/// ```
#[doc(alias = "tf.IndexedSlices")]
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedSlices {
    /// The rows, as a tensor of shape `[n, …]`.
    pub values: HostTensor,
    /// The index of each row along axis 0 of the dense tensor.
    pub indices: HostTensor,
    /// The shape of the dense tensor; `None` if it is unknown.
    pub dense_shape: Option<Vec<usize>>,
}

impl IndexedSlices {
    /// Creates indexed slices from rows, their indices and, if known, the shape of the dense tensor.
    ///
    /// `values` has shape `[n, …]`. `indices` has shape `[n]` and dtype int32 or int64. Each index must be at least 0
    /// and less than `dense_shape[0]`. The other axes of `dense_shape` must equal those of `values`. Fields that are
    /// set directly are checked when they are used.
    ///
    /// # Errors
    /// - [`Error::Axis`]: `values` is a scalar.
    /// - [`Error::ShapeMismatch`]: `indices` does not have shape `[n]`, or `dense_shape` does not match `values`.
    /// - [`Error::DTypeMismatch`]: the dtype of `indices` is neither int32 nor int64.
    /// - [`Error::Index`]: an index is negative or not less than `dense_shape[0]`.
    pub fn new(values: HostTensor, indices: HostTensor, dense_shape: Option<Vec<usize>>) -> Result<Self> {
        let slices = Self { values, indices, dense_shape };
        slices.rows("IndexedSlices")?;
        Ok(slices)
    }

    /// Returns the index of each row.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn to_rows(&self) -> Result<Vec<usize>> {
        self.rows("to_rows")
    }

    fn rows(&self, operation: &'static str) -> Result<Vec<usize>> {
        let dims = self.values.dims();
        let Some((count, row)) = dims.split_first() else {
            return Err(Error::Axis { operation, axis: 0, rank: 0, shape: Vec::new() });
        };
        if self.indices.dims() != [*count] {
            let (expected, found) = (vec![*count], self.indices.dims().to_vec());
            return Err(Error::ShapeMismatch { operation, expected, found });
        }
        let limit = match self.dense_shape.as_deref() {
            None => None,
            Some([rows, rest @ ..]) if rest == row => Some(*rows),
            Some(shape) => {
                return Err(Error::ShapeMismatch {
                    operation,
                    expected: shape.to_vec(),
                    found: dims.to_vec(),
                });
            }
        };
        let indices: Vec<i64> = match self.indices.dtype() {
            DType::I64 => self.indices.to_vec()?,
            DType::I32 => self.indices.typed::<i32>(operation)?.iter().map(|i| i64::from(*i)).collect(),
            found => return Err(Error::DTypeMismatch { operation, expected: DType::I64, found }),
        };
        let row = |index: i64| match usize::try_from(index) {
            Ok(row) if limit.is_none_or(|n| row < n) => Ok(row),
            _ => Err(Error::Index { operation, index, len: limit.unwrap_or(usize::MAX) }),
        };
        indices.into_iter().map(row).collect()
    }

    /// Creates the dense tensor by adding each row, in order, to zeros at its index.
    ///
    /// # Errors
    /// - [`Error::NoDenseShape`]: the dense shape is unknown.
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    /// - [`Error::TooLarge`]: there is not enough memory for the dense tensor.
    /// - The errors of [`new`](Self::new).
    pub fn to_dense(&self) -> Result<HostTensor> {
        let shape = self.dense_shape.as_deref().ok_or(Error::NoDenseShape { operation: TO_DENSE })?;
        self.to_dense_of(shape)
    }

    /// Creates the dense tensor with the given shape. Rows with the same index are summed. Returns an error if the
    /// dense shape is known and differs.
    pub(crate) fn to_dense_of(&self, shape: &[usize]) -> Result<HostTensor> {
        let dtype = self.values.dtype();
        if is_narrow(dtype) {
            return self.cast(dtype.of_sum(ReduceOp::Sum))?.to_dense_of(shape)?.cast(dtype);
        }
        if let Some(own) = self.dense_shape.as_deref().filter(|own| *own != shape) {
            let (expected, found) = (shape.to_vec(), own.to_vec());
            return Err(Error::ShapeMismatch { operation: TO_DENSE, expected, found });
        }
        let known = Self { dense_shape: Some(shape.to_vec()), ..self.clone() };
        let rows = known.rows(TO_DENSE)?;
        fn scatter<T: Sum>(values: &[T], rows: &[usize], len: usize) -> Vec<T> {
            let mut out = vec![T::ZERO; len];
            let width = values.len().checked_div(rows.len()).unwrap_or(0);
            for (i, row) in rows.iter().enumerate() {
                let (to, from) =
                    (&mut out[row * width..(row + 1) * width], &values[i * width..(i + 1) * width]);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = to.plus(*from));
            }
            out
        }
        let len = HostTensor::zeros(dtype, shape)?.len();
        with_summable!(self.values.buffer(), v => HostTensor::new(scatter(v, &rows, len), shape),
            else Err(Error::UnsupportedDType { operation: TO_DENSE, dtype }))
    }

    /// Returns the sum or mean over the replicas. Each index occurs once, in ascending order.
    ///
    /// Rows with the same index are first added within each replica, in their order. These sums are then added over the
    /// replicas in the order of `kernel::fold`, in which a replica without the row contributes zeros. Replicas may have
    /// different numbers of rows. A MEAN divides the sums by the number of replicas.
    ///
    /// For floats, complex numbers, and a SUM of integers, the result is bit-identical to that of reducing the dense
    /// tensors, and does not change if each replica merges its rows first. So the sums of each replica have the
    /// dtype of the slices, and those of all replicas are accumulated in a wider type, as [`HostTensor::reduce`] does.
    /// A MEAN of integers is accumulated in the wider type from the first row on, so it does not wrap.
    ///
    /// Slices of a single replica are also merged, so the form of the result does not depend on the number of replicas.
    /// A SUM of a single replica whose rows are already merged returns its slices unchanged.
    ///
    /// The result has at most as many rows as all replicas together, and at most `dense_shape[0]` rows. For any number
    /// of replicas, it needs no more memory than the dense tensor and its indices.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `slices` is empty.
    /// - [`Error::Differs`]: a replica does not match replica 0.
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    /// - The errors of [`new`](Self::new): replica 0's slices are inconsistent.
    // Crates that call this would otherwise compile the sums of all dtypes again.
    #[inline(never)]
    pub fn reduce(op: ReduceOp, slices: &[&IndexedSlices]) -> Result<IndexedSlices> {
        Self::reduce_with(op, slices, &Alone)
    }

    /// Acts like [`IndexedSlices::reduce`], but `folder` computes the values. The result is bit-identical.
    ///
    /// # Errors
    /// Returns the errors of [`IndexedSlices::reduce`].
    pub fn reduce_with(
        op: ReduceOp,
        slices: &[&IndexedSlices],
        folder: &impl Folder,
    ) -> Result<IndexedSlices> {
        let (rows, dense_shape) = Self::require_alike(REDUCE, slices)?;
        let Some(first) = slices.first() else { return Err(Error::Empty { operation: REDUCE }) };
        let dtype = summable(first.values.dtype())?;
        if dtype.of_sum(op) != dtype {
            // The sums of each replica are rounded to 16 bits, as in its dense tensor. Integers do not wrap.
            let rounds =
                matches!(dtype, DType::F16 | DType::Bf16) && (op != ReduceOp::Sum || slices.len() > 1);
            let wide = |of: &&IndexedSlices| {
                let of = if rounds { &Self::reduce_with(ReduceOp::Sum, &[of], folder)? } else { *of };
                of.cast(dtype.of_sum(op))
            };
            let wide = slices.iter().map(wide).collect::<Result<Vec<_>>>()?;
            let sum = Self::reduce_with(ReduceOp::Sum, &wide.iter().collect::<Vec<_>>(), folder)?;
            return match (op, dtype.mean()) {
                (ReduceOp::Mean, Some(mean)) => sum.divide(slices.len() as f64)?.cast(mean),
                _ => sum.cast(dtype),
            };
        }
        if let ([only], [rows]) = (slices, rows.as_slice()) {
            return only.merge(rows, folder);
        }
        let sum = Self { dense_shape, ..first.sum(slices, &rows, folder)? };
        match op {
            ReduceOp::Sum => Ok(sum),
            ReduceOp::Mean => sum.divide(slices.len() as f64),
        }
    }

    /// Merges rows with the same index. Returns each index once, in ascending order, with the sum of its rows.
    fn merge(&self, rows: &[usize], folder: &impl Folder) -> Result<Self> {
        let merge = RowMerge::new(rows);
        if merge.is_identity() {
            return Ok(self.clone());
        }
        let (width, dtype) = (self.width(), self.values.dtype());
        let len = merge.rows().len() * width;
        with_summable!(self.values.buffer(), v => {
            let sums = folder.fill(len, |start, out| merge.sum(v, width, start, out));
            self.with_rows(sums, merge.rows())
        }, else Err(Error::UnsupportedDType { operation: REDUCE, dtype }))
    }

    /// Returns the sum over all replicas. `slices` must match these slices, and `rows` contains the indices of each.
    fn sum(&self, slices: &[&Self], rows: &[Vec<usize>], folder: &impl Folder) -> Result<Self> {
        fn of<T: Element + Sum>(
            _: &[T],
            slices: &[&IndexedSlices],
            (sum, width): (&RowSum, usize),
            folder: &impl Folder,
        ) -> Result<Vec<T>> {
            let parts = slices.iter().map(|slices| slices.values.typed::<T>(REDUCE));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            Ok(folder.fill(sum.rows().len() * width, |start, out| sum.sum(&parts, width, start, out)))
        }
        let lists: Vec<&[usize]> = rows.iter().map(Vec::as_slice).collect();
        let (sum, dtype) = (RowSum::new(&lists), self.values.dtype());
        with_summable!(self.values.buffer(), v => {
            let sums = of(v, slices, (&sum, self.width()), folder)?;
            self.with_rows(sums, sum.rows())
        }, else Err(Error::UnsupportedDType { operation: REDUCE, dtype }))
    }

    /// Returns the number of elements in a row.
    fn width(&self) -> usize {
        self.values.dims().iter().skip(1).product()
    }

    /// Creates slices of the same dense tensor with the given values and row indices.
    fn with_rows<T: Element>(&self, values: Vec<T>, rows: &[usize]) -> Result<Self> {
        let mut shape = self.values.dims().to_vec();
        if let Some(height) = shape.first_mut() {
            *height = rows.len();
        }
        let indices = HostTensor::vector(rows.iter().map(|row| *row as i64).collect());
        Ok(Self {
            values: HostTensor::new(values, shape)?,
            indices: indices.cast(self.indices.dtype())?,
            dense_shape: self.dense_shape.clone(),
        })
    }

    /// Concatenates the rows of several slices in order. Duplicate indices are kept.
    ///
    /// Use this for rows that are applied one after another. If rows are to be added, [`reduce`](Self::reduce) needs
    /// less memory.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `slices` is empty.
    /// - [`Error::Differs`]: one of the slices does not match the first one.
    /// - The errors of [`new`](Self::new): the first slices are inconsistent.
    pub fn concat(slices: &[&IndexedSlices]) -> Result<IndexedSlices> {
        let (_, dense_shape) = Self::require_alike(CONCAT, slices)?;
        let values = HostTensor::concat(&slices.iter().map(|s| &s.values).collect::<Vec<_>>(), 0)?;
        let indices = HostTensor::concat(&slices.iter().map(|s| &s.indices).collect::<Vec<_>>(), 0)?;
        Ok(Self { values, indices, dense_shape })
    }

    /// Checks that all slices have the same dtypes and row shape, and the same dense shape if it is known. Returns the
    /// indices of each, and the first known dense shape. An error names the first slices that differ.
    fn require_alike(
        operation: &'static str,
        slices: &[&IndexedSlices],
    ) -> Result<(ReplicaIndices, Option<Vec<usize>>)> {
        let [first, rest @ ..] = slices else { return Err(Error::Empty { operation }) };
        let mut rows = vec![first.rows(operation)?];
        let mut dense_shape = first.dense_shape.clone();
        for (i, other) in rest.iter().enumerate() {
            let more = first.check(operation, other, dense_shape.as_deref());
            rows.push(more.map_err(|e| e.differs("replica", i + 1))?);
            dense_shape = dense_shape.or_else(|| other.dense_shape.clone());
        }
        Ok((rows, dense_shape))
    }

    /// Checks that `other` matches these slices. Returns the indices of `other`.
    fn check(
        &self,
        operation: &'static str,
        other: &IndexedSlices,
        dense_shape: Option<&[usize]>,
    ) -> Result<Vec<usize>> {
        let rows = other.rows(operation)?;
        let (mine, theirs) = (&self.values, &other.values);
        check_pieces(operation, 0, (mine.dtype(), mine.dims()), (theirs.dtype(), theirs.dims()))?;
        check_same(operation, (self.indices.dtype(), &[]), (other.indices.dtype(), &[]))?;
        if let (Some(a), Some(b)) = (dense_shape, other.dense_shape.as_deref()) {
            check_same(operation, (mine.dtype(), a), (mine.dtype(), b))?;
        }
        Ok(rows)
    }

    /// Converts the values to the given dtype.
    pub(crate) fn cast(&self, dtype: DType) -> Result<IndexedSlices> {
        Ok(Self { values: self.values.cast(dtype)?, ..self.clone() })
    }

    /// Divides the values, like [`HostTensor::divide`].
    ///
    /// # Errors
    /// Returns the errors of [`HostTensor::divide`].
    pub fn divide(&self, by: f64) -> Result<IndexedSlices> {
        Ok(Self { values: self.values.divide(by)?, ..self.clone() })
    }

    /// Returns the dtype and shape of the rows and, if known, the dense shape as text, such as
    /// `IndexedSlices(float32[2, 3] of [5, 3])`.
    pub fn describe(&self) -> String {
        match &self.dense_shape {
            Some(whole) => format!("IndexedSlices({} of {whole:?})", self.values.describe()),
            None => format!("IndexedSlices({})", self.values.describe()),
        }
    }
}

impl HostTensor {
    /// Writes rows to this tensor, one after another. A row that occurs twice is written twice. The dense shape of
    /// `rows` is ignored. After an error, this tensor is unchanged.
    ///
    /// # Errors
    /// - The errors of [`HostTensor::write`].
    /// - The errors of [`IndexedSlices::new`], with the shape of this tensor as the dense shape.
    pub fn write_rows(&mut self, how: Write, rows: &IndexedSlices) -> Result<()> {
        let rows = IndexedSlices { dense_shape: Some(self.dims().to_vec()), ..rows.clone() };
        let indices = rows.to_rows()?;
        let (expected, found) = (self.dtype(), rows.values.dtype());
        if expected != found {
            return Err(Error::DTypeMismatch { operation: how.name(), expected, found });
        }
        self.buffer_mut().write_rows(how, &indices, rows.values.buffer())
    }
}

/// Returns whether sums of this dtype are accumulated in a wider dtype.
fn is_narrow(dtype: DType) -> bool {
    dtype.of_sum(ReduceOp::Sum) != dtype
}

/// Prints the values, the indices and the dense shape.
impl std::fmt::Display for IndexedSlices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IndexedSlices(values={}, indices={}, dense_shape=", self.values, self.indices)?;
        match &self.dense_shape {
            Some(shape) => crate::host::write_shape(f, shape)?,
            None => f.write_str("None")?,
        }
        f.write_str(")")
    }
}
