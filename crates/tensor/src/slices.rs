//! Rows of a larger tensor and their indices: a sparse gradient.

use crate::dtype::with_summable;
use crate::host::{check_pieces, check_same};
use crate::kernel::Sum;
use crate::{DType, Error, HostTensor, ReduceOp, Result};

const REDUCE: &str = "reduce";
const TO_DENSE: &str = "to_dense";

/// Rows of a larger tensor and where they stand in it.
///
/// Duplicate indices mean that rows add up. `values` has shape `[n, …]` and `indices` (int32 or int64) shape `[n]`.
#[doc(alias = "tf.IndexedSlices")]
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedSlices {
    /// The rows.
    pub values: HostTensor,
    /// For each row, its index in axis 0 of the whole.
    pub indices: HostTensor,
    /// The shape of the whole, where it is known.
    pub dense_shape: Option<Vec<usize>>,
}

impl IndexedSlices {
    /// Rows, their indices and the shape of the whole, if they fit together.
    ///
    /// `values` is `[n, …]`; `indices` is `[n]`, int32 or int64, none negative and all below `dense_shape[0]`; and the
    /// further axes of `dense_shape` are those of `values`. Fields set by hand are checked where they are used.
    pub fn new(values: HostTensor, indices: HostTensor, dense_shape: Option<Vec<usize>>) -> Result<Self> {
        let slices = Self { values, indices, dense_shape };
        slices.rows("IndexedSlices")?;
        Ok(slices)
    }

    /// The index of every row, checked with everything else about these slices.
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

    /// The whole tensor: zeros, and each row added where it stands, in order.
    ///
    /// An error where `dense_shape` is not known, or anything does not fit.
    pub fn to_dense(&self) -> Result<HostTensor> {
        let shape = self.dense_shape.as_deref().ok_or(Error::NoDenseShape { operation: TO_DENSE })?;
        self.to_dense_of(shape)
    }

    /// The whole tensor, of a shape that is known from elsewhere.
    pub(crate) fn to_dense_of(&self, shape: &[usize]) -> Result<HostTensor> {
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
        let dtype = self.values.dtype();
        let len = HostTensor::zeros(dtype, shape)?.len();
        with_summable!(self.values.buffer(), v => HostTensor::new(scatter(v, &rows, len), shape),
            else Err(Error::UnsupportedDType { operation: TO_DENSE, dtype }))
    }

    /// The sum or mean over replicas: values and indices in replica order, duplicates kept (SPARSE-1); a MEAN divides
    /// the values. The number of rows may differ (SPARSE-2). A single one comes back as it is.
    pub fn reduce(op: ReduceOp, slices: &[&IndexedSlices]) -> Result<IndexedSlices> {
        let [first, rest @ ..] = slices else { return Err(Error::Empty { operation: REDUCE }) };
        first.rows(REDUCE)?;
        let mut dense_shape = first.dense_shape.clone();
        for (i, other) in rest.iter().enumerate() {
            first.check(other, dense_shape.as_deref()).map_err(|e| e.differs("replica", i + 1))?;
            dense_shape = dense_shape.or_else(|| other.dense_shape.clone());
        }
        if rest.is_empty() {
            return Ok((*first).clone());
        }
        let dtype = first.values.dtype();
        if dtype.mean().is_none() {
            return Err(Error::UnsupportedDType { operation: REDUCE, dtype });
        }
        let values = HostTensor::concat(&slices.iter().map(|s| &s.values).collect::<Vec<_>>(), 0)?;
        let indices = HostTensor::concat(&slices.iter().map(|s| &s.indices).collect::<Vec<_>>(), 0)?;
        let values = match op {
            ReduceOp::Sum => values,
            ReduceOp::Mean => values.divide(slices.len() as f64)?,
        };
        IndexedSlices::new(values, indices, dense_shape)
    }

    fn check(&self, other: &IndexedSlices, dense_shape: Option<&[usize]>) -> Result<()> {
        other.rows(REDUCE)?;
        let (mine, theirs) = (&self.values, &other.values);
        check_pieces(REDUCE, 0, (mine.dtype(), mine.dims()), (theirs.dtype(), theirs.dims()))?;
        check_same(REDUCE, (self.indices.dtype(), &[]), (other.indices.dtype(), &[]))?;
        match (dense_shape, other.dense_shape.as_deref()) {
            (Some(a), Some(b)) => check_same(REDUCE, (mine.dtype(), a), (mine.dtype(), b)),
            _ => Ok(()),
        }
    }

    /// The values divided, see [`HostTensor::divide`].
    pub fn divide(&self, by: f64) -> Result<IndexedSlices> {
        Ok(Self { values: self.values.divide(by)?, ..self.clone() })
    }

    /// Dtype and shape of the rows, and the shape of the whole: `IndexedSlices(float32[2, 3] of [5, 3])`.
    pub fn describe(&self) -> String {
        match &self.dense_shape {
            Some(whole) => format!("IndexedSlices({} of {whole:?})", self.values.describe()),
            None => format!("IndexedSlices({})", self.values.describe()),
        }
    }
}

/// Values, indices and the shape of the whole.
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
