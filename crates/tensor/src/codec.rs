//! Elements as bytes and back: little-endian, in row-major order.

use crate::DType;
use crate::dtype::Buffer;
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use std::ops::Range;

/// An element of fixed size as bytes.
trait Raw: Sized {
    const BYTES: usize;
    fn put(&self, to: &mut Vec<u8>);
    /// `None` if the bytes are not such an element. There are `BYTES` of them.
    fn take(bytes: &[u8]) -> Option<Self>;
}

macro_rules! raw {
    ($($t:ty)*) => {
        $(impl Raw for $t {
            const BYTES: usize = std::mem::size_of::<$t>();
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            fn take(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        })*
    };
}
raw!(f16 bf16 f32 f64 i8 u8 i16 u16 i32 u32 i64 u64);

macro_rules! raw_complex {
    ($($t:ident $part:ty;)*) => {
        $(impl Raw for $t {
            const BYTES: usize = 2 * <$part>::BYTES;
            fn put(&self, to: &mut Vec<u8>) {
                self.re.put(to);
                self.im.put(to);
            }
            fn take(bytes: &[u8]) -> Option<Self> {
                let (re, im) = bytes.split_at_checked(<$part>::BYTES)?;
                Some($t { re: <$part>::take(re)?, im: <$part>::take(im)? })
            }
        })*
    };
}
raw_complex! { Complex32 f32; Complex64 f64; }

impl Raw for bool {
    const BYTES: usize = 1;
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
    fn take(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

/// Runs an expression with the elements of a buffer and another with the strings.
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

/// The bytes of elements of a buffer, in chunks, so that those of a large tensor are never all in memory. Strings are
/// concatenated, without their lengths.
pub fn chunks(buffer: &Buffer, elements: Range<usize>) -> impl Iterator<Item = Vec<u8>> {
    let end = elements.end;
    elements.step_by(CHUNK).map(move |start| {
        let mut bytes = Vec::new();
        append(buffer, start..end.min(start + CHUNK), &mut bytes);
        bytes
    })
}

/// How many elements become bytes at a time.
const CHUNK: usize = 8192;

/// Appends the bytes of elements. The range must be within the buffer.
pub fn append(buffer: &Buffer, elements: Range<usize>, to: &mut Vec<u8>) {
    by_kind!(buffer, v => v[elements].iter().for_each(|element| element.put(to)),
        strings => strings[elements].iter().for_each(|string| to.extend_from_slice(string)));
}

/// The elements of a dtype of fixed size.
///
/// # Errors
/// The offset of the first bytes that are no such element: a bool is 0 or 1. 0 for strings, which have no fixed size.
pub fn read(dtype: DType, bytes: &[u8]) -> Result<Buffer, usize> {
    fn fill<T: Raw>(v: &mut Vec<T>, bytes: &[u8]) -> Result<(), usize> {
        v.reserve_exact(bytes.len() / T::BYTES);
        for (i, element) in bytes.chunks_exact(T::BYTES).enumerate() {
            v.push(T::take(element).ok_or(i * T::BYTES)?);
        }
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
    fn what_is_no_element_is_found_where_it_is() {
        assert_eq!(read(DType::Bool, &[1, 0, 2]), Err(2));
        assert_eq!(read(DType::String, b"a"), Err(0));
        let mut bytes = Vec::new();
        append(HostTensor::vector(vec![b"ab".to_vec(), b"c".to_vec()]).buffer(), 0..2, &mut bytes);
        assert_eq!(bytes, b"abc");
    }
}
