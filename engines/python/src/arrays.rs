//! Conversion of numpy's arrays to tensors, and of tensors to arrays.

use crate::errors::{Error, Result};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, Element, HostTensor};
use numpy::{
    Element as NumpyElement, PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;

/// Evaluates an expression with the Rust type of a dtype that numpy has too, and another one for any other dtype.
macro_rules! numbers {
    ($dtype:expr, $type:ident => $body:expr, $other:ident => $else:expr) => {
        match $dtype {
            DType::F32 => {
                type $type = f32;
                $body
            }
            DType::F64 => {
                type $type = f64;
                $body
            }
            DType::I8 => {
                type $type = i8;
                $body
            }
            DType::U8 => {
                type $type = u8;
                $body
            }
            DType::I16 => {
                type $type = i16;
                $body
            }
            DType::U16 => {
                type $type = u16;
                $body
            }
            DType::I32 => {
                type $type = i32;
                $body
            }
            DType::U32 => {
                type $type = u32;
                $body
            }
            DType::I64 => {
                type $type = i64;
                $body
            }
            DType::U64 => {
                type $type = u64;
                $body
            }
            DType::Bool => {
                type $type = bool;
                $body
            }
            $other => $else,
        }
    };
}
pub(crate) use numbers;

/// Returns the dtype that numpy calls `name`.
///
/// # Errors
/// - [`Error::Argument`]: there is no such dtype, or numpy has no equivalent.
pub fn dtype_of(name: &str) -> Result<DType> {
    let dtype: DType = name.parse().map_err(|error| Error::Argument(format!("{error}")))?;
    numbers!(dtype, T => { let _: Option<T> = None; Ok(dtype) }, other => Err(unsupported(other)))
}

fn unsupported(dtype: DType) -> Error {
    Error::Argument(format!("{} is not a dtype of this client: use numbers or bool", dtype.name()))
}

/// Converts anything that numpy can convert to an array into a tensor. The tensor has the given dtype or, by default,
/// that of the array.
pub fn tensor(value: &Bound<'_, PyAny>, dtype: Option<DType>) -> PyResult<HostTensor> {
    let py = value.py();
    let numpy = py.import("numpy")?;
    let array = match dtype {
        Some(dtype) => numpy.call_method1("asarray", (value, dtype.name()))?,
        None => numpy.call_method1("asarray", (value,))?,
    };
    // It keeps rank 0, unlike ascontiguousarray.
    let array = numpy.call_method1("require", (array, py.None(), "C"))?;
    let untyped = array.cast::<PyUntypedArray>()?;
    let dims = untyped.shape().to_vec();
    let name: String = untyped.dtype().getattr("name")?.extract()?;
    let dtype = dtype_of(&name).map_err(|error| error.raise(py))?;
    fn copy<T: NumpyElement + Element + Copy>(
        array: &Bound<'_, PyAny>,
        dims: Vec<usize>,
    ) -> PyResult<HostTensor> {
        let array = array.cast::<PyArrayDyn<T>>()?.try_readonly()?;
        let made = HostTensor::new(array.as_slice()?.to_vec(), dims);
        made.map_err(|error| Error::from(error).raise(array.py()))
    }
    if dtype == DType::Bool {
        // Views of other arrays have bytes that are neither 0 nor 1.
        let bytes = array.call_method1("view", ("uint8",))?;
        let bytes = bytes.cast::<PyArrayDyn<u8>>()?.try_readonly()?;
        let values = bytes.as_slice()?.iter().map(|byte| *byte != 0).collect::<Vec<_>>();
        return HostTensor::new(values, dims).map_err(|error| Error::from(error).raise(py));
    }
    numbers!(dtype, T => copy::<T>(&array, dims), other => Err(unsupported(other).raise(py)))
}

/// Returns ids, and the shape in which they were given, from anything that numpy converts to an array of integers. An
/// empty array may have any dtype. Returns an error for all other dtypes, such as floats.
pub fn ids(value: &Bound<'_, PyAny>) -> PyResult<(Vec<i64>, Vec<usize>)> {
    let py = value.py();
    let array = py.import("numpy")?.call_method1("asarray", (value,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let size: usize = array.getattr("size")?.extract()?;
    if !matches!(kind.as_str(), "i" | "u") && size > 0 {
        return Err(
            Error::Argument(format!("ids are integers, but these are {}", array.getattr("dtype")?)).raise(py)
        );
    }
    let tensor = tensor(&array, Some(DType::I64))?;
    let dims = tensor.dims().to_vec();
    Ok((tensor.into_vec().map_err(|error| Error::from(error).raise(py))?, dims))
}

/// Converts a tensor to an array of the same shape, without a copy of the elements.
pub fn array<'py>(py: Python<'py>, tensor: HostTensor) -> PyResult<Bound<'py, PyAny>> {
    let dims = tensor.dims().to_vec();
    fn of<'py, T: NumpyElement + Element>(
        py: Python<'py>,
        tensor: HostTensor,
        dims: Vec<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let elements = tensor.into_vec::<T>().map_err(|error| Error::from(error).raise(py))?;
        Ok(PyArray1::from_vec(py, elements).reshape(dims)?.into_any())
    }
    numbers!(tensor.dtype(), T => of::<T>(py, tensor, dims), other => Err(unsupported(other).raise(py)))
}

/// Returns the elements of a buffer, which must have the type `T`. For another type, the slice is empty.
pub fn elements<T: Element>(buffer: &Buffer) -> &[T] {
    T::slice(buffer).unwrap_or_default()
}
