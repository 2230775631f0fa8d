//! The conversion of a column of some rows to tensors.

use super::select::Found;
use crate::DefaultValue;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use distribute_tensor::{DType, Element, HostTensor};

/// The reason why a column cannot be converted to a tensor.
#[derive(Debug)]
pub(super) struct Refused {
    /// The index of the row in the batch; `None` if no single row is the reason.
    row: Option<usize>,
    what: String,
}

impl Refused {
    /// Returns the index in the batch of the row that prevents the conversion; `None` if it is not a single row.
    pub(super) fn row(&self) -> Option<usize> {
        self.row
    }

    /// Returns the error message. `first` is the index in the file of the batch's first row.
    pub(super) fn describe(&self, first: u64) -> String {
        match self.row {
            Some(row) => format!("row {} {}", first + row as u64, self.what),
            None => self.what.clone(),
        }
    }

    fn all(what: impl Into<String>) -> Self {
        Self { row: None, what: what.into() }
    }

    fn at(row: usize, what: impl Into<String>) -> Self {
        Self { row: Some(row), what: what.into() }
    }
}

impl From<distribute_tensor::Error> for Refused {
    fn from(error: distribute_tensor::Error) -> Self {
        Self { row: None, what: error.to_string() }
    }
}

/// A column of several rows, converted to tensors.
#[derive(Debug)]
pub(super) enum Tensors {
    /// A single tensor with an axis of rows.
    Whole(HostTensor),
    /// A tensor for each row, because their shapes differ.
    Ragged(Vec<HostTensor>),
}

/// The user's settings for missing values of a column.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Missing {
    /// The value that replaces missing ones; `None` if they are not replaced.
    pub(super) default: Option<DefaultValue>,
    /// The name of the mask column; `None` if there is none.
    pub(super) mask: Option<String>,
}

type Converted<T = HostTensor> = Result<T, Refused>;

/// Converts a column to tensors. Also returns its mask if that was requested.
pub(super) fn column(found: &Found, missing: &Missing) -> Converted<(Tensors, Option<HostTensor>)> {
    let len = found.array.len();
    let mask = missing.mask.as_ref();
    let mask =
        mask.map(|_| HostTensor::vector((0..len).map(|row| found.is_there(row)).collect::<Vec<bool>>()));
    let lacks =
        (!found.is_complete()).then(|| (0..len).map(|row| !found.is_there(row)).collect::<Vec<bool>>());
    let filled = Filled { default: missing.default.as_ref(), zero: mask.is_some() };
    let rows = Rows { array: &found.array, lacks: lacks.as_deref() };
    Ok((rows.column(filled)?, mask))
}

/// The replacement for missing values: a default, zero, or none.
#[derive(Clone, Copy)]
struct Filled<'a> {
    default: Option<&'a DefaultValue>,
    /// Whether missing values without a default become zero. This is possible if a mask marks them.
    zero: bool,
}

impl Filled<'_> {
    /// Returns the same setting for the contents of lists, to which a mask does not apply.
    fn inner(self) -> Self {
        Self { zero: false, ..self }
    }

    fn value<T>(
        self,
        row: usize,
        zero: T,
        of: impl FnOnce(&DefaultValue) -> Result<T, String>,
        dtype: DType,
    ) -> Converted<T> {
        match self.default {
            Some(default) => of(default).map_err(Refused::all),
            None if self.zero => Ok(zero),
            None => Err(Refused::at(
                row,
                format!(
                    "is null, for which {dtype} has no value; `Parquet::default` sets one, `Parquet::mask` \
                     marks the rows"
                ),
            )),
        }
    }
}

/// The rows of a column, and which of them lack a value.
#[derive(Clone, Copy)]
struct Rows<'a> {
    array: &'a ArrayRef,
    /// A flag for each row that is true if the row lacks a value; `None` if no row does.
    lacks: Option<&'a [bool]>,
}

impl<'a> Rows<'a> {
    /// Calls `of` with the rows of an array that is inside another one. A row lacks a value only if it is null in
    /// this array.
    fn inner<R>(array: &ArrayRef, of: impl FnOnce(Rows<'_>) -> R) -> R {
        let nulls = array.null_count() > 0;
        let lacks = nulls.then(|| (0..array.len()).map(|row| array.is_null(row)).collect::<Vec<bool>>());
        of(Rows { array, lacks: lacks.as_deref() })
    }

    fn lacks(&self, row: usize) -> bool {
        self.lacks.and_then(|lacks| lacks.get(row)).copied().unwrap_or(false)
    }

    /// Returns the index of the first row without a value; `None` if all have one.
    fn first_missing(&self) -> Option<usize> {
        self.lacks?.iter().position(|lacks| *lacks)
    }

    fn column(self, filled: Filled<'_>) -> Converted<Tensors> {
        let array = self.array;
        let (values, bounds) = match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                (
                    list.values(),
                    list.value_offsets().iter().map(|at| usize::try_from(*at).unwrap_or(0)).collect(),
                )
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                (
                    list.values(),
                    list.value_offsets().iter().map(|at| usize::try_from(*at).unwrap_or(0)).collect(),
                )
            }
            DataType::FixedSizeList(_, len) => {
                let (list, len) = (array.as_fixed_size_list(), usize::try_from(*len).unwrap_or(0));
                let start = list.value_offset_at(0);
                (list.values(), (0..=array.len()).map(|row| start + row * len).collect::<Vec<_>>())
            }
            _ => return self.tensor(filled).map(Tensors::Whole),
        };
        if let Some(row) = self.first_missing()
            && filled.default.is_none()
            && !filled.zero
        {
            return Err(Refused::at(
                row,
                "is null, but others are lists; `Parquet::default` makes it an empty one",
            ));
        }
        // The null lists of a fixed length have no real values.
        let fixed = matches!(array.data_type(), DataType::FixedSizeList(..));
        Self::lists(values, &bounds, if fixed { filled } else { filled.inner() })
    }

    /// Converts lists of `values`. Each list begins at an element of `bounds` and ends at the next one. A missing list
    /// is empty, or has the fixed length.
    fn lists(values: &ArrayRef, bounds: &[usize], filled: Filled<'_>) -> Converted<Tensors> {
        let spans: Vec<(usize, usize)> = bounds
            .iter()
            .zip(bounds.iter().skip(1))
            .map(|(start, end)| (*start, end.saturating_sub(*start)))
            .collect();
        let (start, len) = spans.first().copied().unwrap_or((0, 0));
        if spans.iter().all(|(_, other)| *other == len) {
            let all = values.slice(start, spans.len() * len);
            if let Ok(Tensors::Whole(all)) = Rows::inner(&all, |rows| rows.column(filled)) {
                let shape = [&[spans.len(), len], all.dims().get(1..).unwrap_or_default()].concat();
                return Ok(Tensors::Whole(all.reshape(shape)?));
            }
        }
        let row = |(row, (start, len)): (usize, &(usize, usize))| {
            let of_row = |refused: Refused| Refused { row: refused.row.map(|_| row), ..refused };
            match Rows::inner(&values.slice(*start, *len), |rows| rows.column(filled)).map_err(of_row)? {
                Tensors::Whole(tensor) => Ok(tensor),
                Tensors::Ragged(_) => Err(Refused::at(
                    row,
                    "has lists of different lengths in it; tensors have rows of one length",
                )),
            }
        };
        spans.iter().enumerate().map(row).collect::<Converted<_>>().map(Tensors::Ragged)
    }

    /// Converts values that are not lists to a tensor with an axis of rows.
    fn tensor(self, filled: Filled<'_>) -> Converted {
        let array = self.array;
        match array.data_type() {
            DataType::Boolean => {
                let values = array.as_boolean().values().iter();
                self.filled(values, |row| filled.value(row, false, DefaultValue::bool, DType::Bool))
            }
            DataType::Int8 => self.integers::<Int8Type>(filled),
            DataType::Int16 => self.integers::<Int16Type>(filled),
            DataType::Int32 => self.integers::<Int32Type>(filled),
            DataType::Int64 => self.integers::<Int64Type>(filled),
            DataType::UInt8 => self.integers::<UInt8Type>(filled),
            DataType::UInt16 => self.integers::<UInt16Type>(filled),
            DataType::UInt32 => self.integers::<UInt32Type>(filled),
            DataType::UInt64 => self.integers::<UInt64Type>(filled),
            DataType::Float16 => self.floats::<Float16Type>(filled, half::f16::from_f64),
            DataType::Float32 => self.floats::<Float32Type>(filled, |value| value as f32),
            DataType::Float64 => self.floats::<Float64Type>(filled, |value| value),
            DataType::Utf8 => self.strings(array.as_string::<i32>(), filled),
            DataType::LargeUtf8 => self.strings(array.as_string::<i64>(), filled),
            DataType::Utf8View => self.strings(array.as_string_view(), filled),
            DataType::Binary => self.strings(array.as_binary::<i32>(), filled),
            DataType::LargeBinary => self.strings(array.as_binary::<i64>(), filled),
            DataType::BinaryView => self.strings(array.as_binary_view(), filled),
            DataType::FixedSizeBinary(_) => self.strings(array.as_fixed_size_binary(), filled),
            DataType::Dictionary(..) => self.categories(filled),
            other => Err(Refused::all(format!("tensors have no type {other}; omit the column"))),
        }
    }

    /// Converts values to a tensor. `missing` returns the replacement for a missing value in the given row.
    fn filled<T: Element>(
        self,
        values: impl Iterator<Item = T>,
        missing: impl Fn(usize) -> Converted<T>,
    ) -> Converted {
        let value = |(row, value)| if self.lacks(row) { missing(row) } else { Ok(value) };
        Ok(HostTensor::vector(match self.lacks {
            None => values.collect::<Vec<T>>(),
            Some(_) => values.enumerate().map(value).collect::<Converted<_>>()?,
        }))
    }

    fn integers<T: ArrowPrimitiveType<Native: Element + TryFrom<i64> + Default>>(
        self,
        filled: Filled<'_>,
    ) -> Converted {
        let values = self.array.as_primitive::<T>().values().iter().copied();
        let missing = |row| filled.value(row, T::Native::default(), DefaultValue::int, T::Native::DTYPE);
        self.filled(values, missing)
    }

    /// Converts floats. NaN replaces missing values, unless there is a default.
    fn floats<T: ArrowPrimitiveType<Native: Element>>(
        self,
        filled: Filled<'_>,
        of: impl Fn(f64) -> T::Native,
    ) -> Converted {
        let values = self.array.as_primitive::<T>().values().iter().copied();
        let missing = |_| match filled.default {
            Some(default) => default.float().map(&of).map_err(Refused::all),
            None => Ok(of(f64::NAN)),
        };
        self.filled(values, missing)
    }

    fn strings<'b, B: AsRef<[u8]> + ?Sized + 'b>(
        self,
        values: impl IntoIterator<Item = Option<&'b B>>,
        filled: Filled<'_>,
    ) -> Converted {
        let text = |default: &DefaultValue| default.text().map(<[u8]>::to_vec);
        let missing = |row| filled.value(row, Vec::new(), text, DType::String);
        let bytes = values.into_iter().map(|value| value.map_or(Vec::new(), |value| value.as_ref().to_vec()));
        self.filled(bytes, missing)
    }

    /// Converts dictionary keys to the values to which they refer.
    fn categories(self, filled: Filled<'_>) -> Converted {
        let dictionary = self.array.as_any_dictionary();
        // A key may refer to a null value as well.
        let keys = if self.array.is_empty() || dictionary.values().is_empty() {
            Vec::new()
        } else {
            dictionary.normalized_keys()
        };
        let nothing = dictionary.values();
        let lacks: Vec<bool> = (0..self.array.len())
            .map(|row| self.lacks(row) || keys.get(row).is_none_or(|key| nothing.is_null(*key)))
            .collect();
        if !lacks.contains(&true) {
            let values = Rows { array: nothing, lacks: None }.tensor(filled)?;
            return Ok(values.take_rows(&keys)?);
        }
        // The replacement is appended to the values of the dictionary.
        let all = Rows { array: nothing, lacks: None }.tensor(filled)?;
        let first = lacks.iter().position(|lacks| *lacks).unwrap_or_default();
        let replacement = arrow_array::new_null_array(nothing.data_type(), 1);
        let replacement = Rows { array: &replacement, lacks: Some(&[true]) }
            .tensor(filled)
            .map_err(|refused| Refused { row: refused.row.map(|_| first), ..refused })?;
        let all = HostTensor::concat(&[&all, &replacement], 0)?;
        let last = all.dims().first().map_or(0, |len| len - 1);
        let keys: Vec<usize> = lacks
            .iter()
            .enumerate()
            .map(|(row, lacks)| if *lacks { last } else { keys.get(row).copied().unwrap_or(last) })
            .collect();
        Ok(all.take_rows(&keys)?)
    }
}
