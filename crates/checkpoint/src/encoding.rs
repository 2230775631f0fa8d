//! The 16 dtypes as bytes: little-endian, row-major, as safetensors has them.

use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, HostTensor};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use safetensors::Dtype;
use std::io::{self, Write};
use std::ops::Range;

/// How a slice of a tensor stands in a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

/// The tensor that holds the elements of a slice; `None` for strings, whose length depends on the elements.
pub(crate) fn stored(dtype: DType, shape: &[usize]) -> Option<Stored> {
    let mut shape = shape.to_vec();
    let dtype = match dtype {
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
        DType::C128 => {
            shape.push(2);
            Dtype::F64
        }
        DType::String => return None,
    };
    Some(Stored { dtype, shape })
}

/// An element of fixed size as bytes.
trait Raw: Sized {
    const BYTES: usize;
    fn put(&self, to: &mut Vec<u8>);
    /// `None` where the bytes are no such element. There are `BYTES` of them.
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

/// Writes elements; of strings their bytes, one string after another.
pub(crate) fn write(tensor: &HostTensor, elements: Range<usize>, sink: &mut dyn Write) -> io::Result<()> {
    // The bytes of a large tensor are never all in memory.
    fn fixed<T: Raw>(elements: &[T], sink: &mut dyn Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        for chunk in elements.chunks(8192) {
            bytes.clear();
            chunk.iter().for_each(|element| element.put(&mut bytes));
            sink.write_all(&bytes)?;
        }
        Ok(())
    }
    by_kind!(tensor.buffer(), v => fixed(&v[elements], sink),
        strings => strings[elements].iter().try_for_each(|string| sink.write_all(string)))
}

/// Where each string ends among the bytes of all; empty for other dtypes.
pub(crate) fn ends(tensor: &HostTensor, elements: Range<usize>) -> Vec<u64> {
    let strings = tensor.as_slice::<Vec<u8>>().map_or(&[][..], |strings| &strings[elements]);
    let end = |end: &mut u64, string: &Vec<u8>| {
        *end += string.len() as u64;
        Some(*end)
    };
    strings.iter().scan(0, end).collect()
}

/// The bytes that elements take, [`ends`] included.
pub(crate) fn size(tensor: &HostTensor, elements: Range<usize>) -> usize {
    match tensor.dtype().bytes() {
        Some(bytes) => bytes * elements.len(),
        None => ends(tensor, elements.clone()).last().map_or(0, |end| *end as usize) + 8 * elements.len(),
    }
}

/// The elements of a dtype of fixed size.
///
/// # Errors
/// The offset of the first bytes that are no such element.
pub(crate) fn read(dtype: DType, bytes: &[u8]) -> Result<Buffer, usize> {
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
