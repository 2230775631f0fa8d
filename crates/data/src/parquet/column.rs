//! A column of some rows as a tensor.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use distribute_tensor::{DType, Element, HostTensor};

/// Why a column cannot become a tensor.
#[derive(Debug)]
pub(super) struct Refused {
    /// The row, counted from the first of the batch.
    row: Option<usize>,
    what: String,
}

impl Refused {
    /// The reason, where the batch starts at row `first` of the file.
    pub(super) fn describe(&self, first: u64) -> String {
        match self.row {
            Some(row) => format!("row {} {}", first + row as u64, self.what),
            None => self.what.clone(),
        }
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

type Converted = Result<HostTensor, Refused>;

/// A tensor of as many rows as there are.
pub(super) fn tensor(array: &ArrayRef) -> Converted {
    match array.data_type() {
        DataType::Boolean => {
            let values = whole(array, DType::Bool)?.as_boolean().values();
            Ok(HostTensor::vector(values.iter().collect::<Vec<bool>>()))
        }
        DataType::Int8 => integers::<Int8Type>(array),
        DataType::Int16 => integers::<Int16Type>(array),
        DataType::Int32 => integers::<Int32Type>(array),
        DataType::Int64 => integers::<Int64Type>(array),
        DataType::UInt8 => integers::<UInt8Type>(array),
        DataType::UInt16 => integers::<UInt16Type>(array),
        DataType::UInt32 => integers::<UInt32Type>(array),
        DataType::UInt64 => integers::<UInt64Type>(array),
        DataType::Float16 => Ok(floats::<Float16Type>(array, half::f16::NAN)),
        DataType::Float32 => Ok(floats::<Float32Type>(array, f32::NAN)),
        DataType::Float64 => Ok(floats::<Float64Type>(array, f64::NAN)),
        DataType::Utf8 => strings(array, array.as_string::<i32>()),
        DataType::LargeUtf8 => strings(array, array.as_string::<i64>()),
        DataType::Utf8View => strings(array, array.as_string_view()),
        DataType::Binary => strings(array, array.as_binary::<i32>()),
        DataType::LargeBinary => strings(array, array.as_binary::<i64>()),
        DataType::BinaryView => strings(array, array.as_binary_view()),
        DataType::FixedSizeBinary(_) => strings(array, array.as_fixed_size_binary()),
        DataType::FixedSizeList(_, len) => {
            let (list, len) = (array.as_fixed_size_list(), usize::try_from(*len).unwrap_or(0));
            whole_rows(array)?;
            let start = list.value_offset_at(0);
            rows(&list.values().slice(start, array.len() * len), array.len(), len)
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            whole_rows(array)?;
            lists(list.values(), list.value_offsets().iter().map(|at| i64::from(*at)))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            whole_rows(array)?;
            lists(list.values(), list.value_offsets().iter().copied())
        }
        DataType::Dictionary(..) => categories(array),
        other => {
            Err(Refused { row: None, what: format!("tensors have no type {other}; leave the column out") })
        }
    }
}

/// The array, if no row is null.
fn whole(array: &ArrayRef, dtype: DType) -> Result<&ArrayRef, Refused> {
    null(array)
        .map_or(Ok(array), |row| Err(Refused::at(row, format!("is null, for which {dtype} has no value"))))
}

fn whole_rows(array: &ArrayRef) -> Result<(), Refused> {
    null(array).map_or(Ok(()), |row| Err(Refused::at(row, "is null, but others are lists")))
}

/// The first row without a value.
fn null(array: &ArrayRef) -> Option<usize> {
    if array.null_count() == 0 { None } else { (0..array.len()).find(|row| array.is_null(*row)) }
}

fn integers<T: ArrowPrimitiveType<Native: Element>>(array: &ArrayRef) -> Converted {
    let values = whole(array, T::Native::DTYPE)?.as_primitive::<T>().values();
    Ok(HostTensor::vector(values.to_vec()))
}

fn floats<T: ArrowPrimitiveType<Native: Element>>(array: &ArrayRef, nan: T::Native) -> HostTensor {
    let array = array.as_primitive::<T>();
    HostTensor::vector(match array.null_count() {
        0 => array.values().to_vec(),
        _ => array.iter().map(|value| value.unwrap_or(nan)).collect(),
    })
}

fn strings<'a, B: AsRef<[u8]> + ?Sized + 'a>(
    array: &ArrayRef,
    values: impl IntoIterator<Item = Option<&'a B>>,
) -> Converted {
    whole(array, DType::String)?;
    let bytes = values.into_iter().flatten().map(|value| value.as_ref().to_vec());
    Ok(HostTensor::vector(bytes.collect::<Vec<Vec<u8>>>()))
}

/// Lists that start at these places of `values`, the last of which is their end.
fn lists(values: &ArrayRef, offsets: impl Iterator<Item = i64>) -> Converted {
    let offsets: Vec<usize> = offsets.map(|at| usize::try_from(at).unwrap_or(0)).collect();
    let lens: Vec<usize> = offsets.windows(2).map(|at| at[1].saturating_sub(at[0])).collect();
    let (start, len) = (offsets.first().copied().unwrap_or(0), lens.first().copied().unwrap_or(0));
    if let Some(row) = lens.iter().position(|other| *other != len) {
        let what = format!(
            "is a list of {}, but the one before it of {len}; tensors have rows of one length",
            lens[row]
        );
        return Err(Refused::at(row, what));
    }
    rows(&values.slice(start, lens.len() * len), lens.len(), len)
}

/// A tensor of `count` rows of `len` values each.
fn rows(values: &ArrayRef, count: usize, len: usize) -> Converted {
    let values = tensor(values)
        .map_err(|refused| Refused { row: refused.row.map(|row| row / len.max(1)), ..refused })?;
    let shape = [&[count, len], values.dims().get(1..).unwrap_or_default()].concat();
    Ok(values.reshape(shape)?)
}

/// What each row's key stands for.
fn categories(array: &ArrayRef) -> Converted {
    let dictionary = array.as_any_dictionary();
    let values = tensor(dictionary.values())?;
    whole(array, values.dtype())?;
    // The keys of an empty dictionary cannot be asked for, and no row has one.
    let keys = if array.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
    Ok(values.take_rows(&keys)?)
}
