//! The encoding of the 16 dtypes in safetensors files. The bytes are those of [`distribute_tensor::codec`].

use distribute_tensor::{DType, HostTensor};
use safetensors::Dtype;
use std::ops::Range;

/// The dtype and shape with which a slice of a tensor is stored in a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

/// Returns the safetensors dtype for a dtype; `None` for `complex128` and strings, for which safetensors has no type.
pub fn file_dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::I16 => Dtype::I16,
        DType::U16 => Dtype::U16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I64 => Dtype::I64,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
        DType::C64 => Dtype::C64,
        DType::C128 | DType::String => return None,
    })
}

/// Returns the stored dtype and shape of a slice; `None` for strings, which have no fixed size.
pub(crate) fn stored(dtype: DType, shape: &[usize]) -> Option<Stored> {
    let mut shape = shape.to_vec();
    let dtype = match dtype {
        DType::C128 => {
            shape.push(2);
            Dtype::F64
        }
        dtype => file_dtype(dtype)?,
    };
    Some(Stored { dtype, shape })
}

/// Returns the end offset of each string within the concatenated bytes of the given strings. Returns an empty list if
/// the elements are not strings.
pub(crate) fn ends(tensor: &HostTensor, elements: Range<usize>) -> Vec<u64> {
    let strings = tensor.as_slice::<Vec<u8>>().map_or(&[][..], |strings| &strings[elements]);
    let end = |end: &mut u64, string: &Vec<u8>| {
        *end += string.len() as u64;
        Some(*end)
    };
    strings.iter().scan(0, end).collect()
}

/// Returns the number of bytes that the given elements occupy in a file, including 8 bytes per string for its
/// [end](ends).
pub(crate) fn size(tensor: &HostTensor, elements: Range<usize>) -> usize {
    match tensor.dtype().bytes() {
        Some(bytes) => bytes * elements.len(),
        None => ends(tensor, elements.clone()).last().map_or(0, |end| *end as usize) + 8 * elements.len(),
    }
}
