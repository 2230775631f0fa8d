//! Elements as bytes: little-endian, in row-major order.

use crate::DType;
use crate::dtype::Buffer;
use bytemuck::{AnyBitPattern, NoUninit};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use std::ops::Range;

/// An element of fixed size. On little-endian machines, its encoding equals its bytes in memory.
trait Raw: NoUninit {
    /// Reads elements from bytes, in the byte order of this machine. Bytes at the end that do not fill an element are
    /// ignored.
    ///
    /// # Errors
    /// Returns the offset of the first bytes that are not a valid element.
    fn all(bytes: &[u8]) -> Result<Vec<Self>, usize>;
    /// Returns the element with its bytes reversed. The two parts of a complex number are reversed separately.
    fn swapped(self) -> Self;
}

/// Reads elements from bytes. Bytes at the end that do not fill an element are ignored.
fn collected<T: NoUninit + AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytemuck::pod_collect_to_vec(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
}

macro_rules! raw {
    ($($t:ty: $swapped:expr;)*) => {
        $(impl Raw for $t {
            fn all(bytes: &[u8]) -> Result<Vec<Self>, usize> {
                Ok(collected(bytes))
            }
            fn swapped(self) -> Self {
                $swapped(self)
            }
        })*
    };
}
raw! {
    i8: i8::swap_bytes; u8: u8::swap_bytes; i16: i16::swap_bytes; u16: u16::swap_bytes; i32: i32::swap_bytes;
    u32: u32::swap_bytes; i64: i64::swap_bytes; u64: u64::swap_bytes;
    f16: |x: f16| f16::from_bits(x.to_bits().swap_bytes());
    bf16: |x: bf16| bf16::from_bits(x.to_bits().swap_bytes());
    f32: |x: f32| f32::from_bits(x.to_bits().swap_bytes());
    f64: |x: f64| f64::from_bits(x.to_bits().swap_bytes());
    Complex32: |x: Complex32| Complex32::new(x.re.swapped(), x.im.swapped());
    Complex64: |x: Complex64| Complex64::new(x.re.swapped(), x.im.swapped());
}

impl Raw for bool {
    fn all(bytes: &[u8]) -> Result<Vec<Self>, usize> {
        match bytes.iter().position(|byte| *byte > 1) {
            Some(at) => Err(at),
            None => Ok(bytes.iter().map(|byte| *byte == 1).collect()),
        }
    }
    fn swapped(self) -> Self {
        self
    }
}

/// Converts elements between little-endian and the byte order of this machine, in place.
fn to_or_from_little_endian<T: Raw>(elements: &mut [T]) {
    if cfg!(target_endian = "big") {
        elements.iter_mut().for_each(|element| *element = element.swapped());
    }
}

/// Evaluates one expression for a buffer of elements with a fixed size, and another for a buffer of strings.
macro_rules! by_kind {
    ($buffer:expr, $v:ident => $fixed:expr, $strings:ident => $text:expr) => {
        match $buffer {
            Buffer::F16($v) => $fixed,
            Buffer::Bf16($v) => $fixed,
            Buffer::F32($v) => $fixed,
            Buffer::F64($v) => $fixed,
            Buffer::I8($v) => $fixed,
            Buffer::U8($v) => $fixed,
            Buffer::I16($v) => $fixed,
            Buffer::U16($v) => $fixed,
            Buffer::I32($v) => $fixed,
            Buffer::U32($v) => $fixed,
            Buffer::I64($v) => $fixed,
            Buffer::U64($v) => $fixed,
            Buffer::Bool($v) => $fixed,
            Buffer::C64($v) => $fixed,
            Buffer::C128($v) => $fixed,
            Buffer::String($strings) => $text,
        }
    };
}

/// Returns the bytes of a range of elements in chunks, so that the bytes of a large tensor are never all in memory at
/// once. Strings are concatenated without their lengths. The range must be within the buffer.
pub fn chunks(buffer: &Buffer, elements: Range<usize>) -> impl Iterator<Item = Vec<u8>> {
    let end = elements.end;
    elements.step_by(CHUNK).map(move |start| {
        let mut bytes = Vec::new();
        append(buffer, start..end.min(start + CHUNK), &mut bytes);
        bytes
    })
}

/// The number of elements that [`chunks`] converts at a time.
const CHUNK: usize = 8192;

/// Returns the bytes of all elements. Returns `None` for strings, and on machines that are not little-endian.
pub fn as_bytes(buffer: &Buffer) -> Option<&[u8]> {
    if cfg!(target_endian = "big") {
        return None;
    }
    by_kind!(buffer, v => Some(bytemuck::cast_slice(v)), _strings => None)
}

/// Appends the bytes of a range of elements to `to`. The range must be within the buffer.
pub fn append(buffer: &Buffer, elements: Range<usize>, to: &mut Vec<u8>) {
    fn put<T: Raw>(elements: &[T], to: &mut Vec<u8>) {
        if cfg!(target_endian = "big") {
            let mut elements = elements.to_vec();
            to_or_from_little_endian(&mut elements);
            to.extend_from_slice(bytemuck::cast_slice(&elements));
        } else {
            to.extend_from_slice(bytemuck::cast_slice(elements));
        }
    }
    by_kind!(buffer, v => put(&v[elements], to),
        strings => strings[elements].iter().for_each(|string| to.extend_from_slice(string)));
}

/// Reads all elements of a dtype with a fixed size. Bytes at the end that do not fill an element are ignored.
///
/// # Errors
/// Returns the offset of the first bytes that are not a valid element, such as a bool that is neither 0 nor 1. For
/// strings, the offset is 0, because they have no fixed size.
pub fn read(dtype: DType, bytes: &[u8]) -> Result<Buffer, usize> {
    fn fill<T: Raw>(v: &mut Vec<T>, bytes: &[u8]) -> Result<(), usize> {
        *v = T::all(bytes)?;
        to_or_from_little_endian(v);
        Ok(())
    }
    let mut buffer = Buffer::zeros(dtype, 0);
    by_kind!(&mut buffer, v => fill(v, bytes)?, _strings => return Err(0));
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;

    #[test]
    fn every_dtype_of_fixed_size_comes_back() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.bytes().is_some()) {
            let tensor = HostTensor::vector(vec![0u8, 1, 1, 0, 1]).cast(dtype).unwrap();
            let mut bytes = Vec::new();
            append(tensor.buffer(), 1..5, &mut bytes);
            assert_eq!(bytes.len(), 4 * dtype.bytes().unwrap());
            if let Some(all) = as_bytes(tensor.buffer()) {
                assert_eq!(all[dtype.bytes().unwrap()..], bytes);
            }
            let back = HostTensor::from_buffer(read(dtype, &bytes).unwrap(), [4]).unwrap();
            assert_eq!(back, tensor.narrow(0, 1, 4).unwrap(), "{dtype}");
        }
    }

    #[test]
    fn chunks_together_are_all_bytes() {
        let tensor = HostTensor::vector((0..20_000u16).collect());
        let parts: Vec<Vec<u8>> = chunks(tensor.buffer(), 3..20_000).collect();
        assert_eq!(parts.len(), 3);
        let mut all = Vec::new();
        append(tensor.buffer(), 3..20_000, &mut all);
        assert_eq!(parts.concat(), all);
        assert_eq!(chunks(tensor.buffer(), 5..5).count(), 0);
    }

    #[test]
    fn an_invalid_element_is_found_at_its_position() {
        assert_eq!(read(DType::Bool, &[1, 0, 2]), Err(2));
        assert_eq!(read(DType::String, b"a"), Err(0));
        let mut bytes = Vec::new();
        append(HostTensor::vector(vec![b"ab".to_vec(), b"c".to_vec()]).buffer(), 0..2, &mut bytes);
        assert_eq!(bytes, b"abc");
    }
}
