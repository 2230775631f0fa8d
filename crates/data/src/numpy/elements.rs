//! The decoding of the elements of an array.

use super::Room;
use super::header::{Header, Text};
use crate::Result;
use crate::file::Input;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, Element};
use half::f16;
use num_complex::{Complex32, Complex64};
use std::io::Read;

/// The number of bytes that are read and converted at a time. It is a multiple of every element's size.
const CHUNK: usize = 64 * 1024;

/// Returns the number of bytes that the elements occupy in memory; `None` if it overflows.
pub(super) fn bytes(header: &Header) -> Option<u64> {
    let each = match header.text {
        Some(text) => text.bytes()?.checked_add(size_of::<Vec<u8>>())?,
        None => header.dtype.bytes()?,
    };
    let product = |n: usize, size: &usize| n.checked_mul((*size).max(1));
    let bytes = header.shape.iter().try_fold(each, product)?;
    Some(if header.shape.contains(&0) { 0 } else { bytes as u64 })
}

/// Reads the elements after a header, and returns them in row-major order. The memory of strings is counted in
/// `room`.
pub(super) fn read(header: &Header, input: &mut Input<impl Read>, room: &mut Room) -> Result<Buffer> {
    macro_rules! numbers {
        ($($dtype:ident $ty:ty;)*) => {
            match header.dtype {
                $(DType::$dtype => if header.big_endian {
                    numbers(header, input, |bytes| Some(<$ty>::from_be_bytes(bytes)))
                } else {
                    numbers(header, input, |bytes| Some(<$ty>::from_le_bytes(bytes)))
                },)*
                DType::Bool => numbers(header, input, |[byte]| (byte < 2).then_some(byte == 1)),
                DType::C64 => numbers(header, input, |bytes: [u8; 8]| {
                    let (re, im) = halves::<8, 4>(bytes)?;
                    Some(if header.big_endian {
                        Complex32::new(f32::from_be_bytes(re), f32::from_be_bytes(im))
                    } else {
                        Complex32::new(f32::from_le_bytes(re), f32::from_le_bytes(im))
                    })
                }),
                DType::C128 => numbers(header, input, |bytes: [u8; 16]| {
                    let (re, im) = halves::<16, 8>(bytes)?;
                    Some(if header.big_endian {
                        Complex64::new(f64::from_be_bytes(re), f64::from_be_bytes(im))
                    } else {
                        Complex64::new(f64::from_le_bytes(re), f64::from_le_bytes(im))
                    })
                }),
                DType::String => texts(header, input, room),
                DType::Bf16 => Err(input.damaged("a dtype that numpy does not have")),
            }
        };
    }
    numbers! { F16 f16; F32 f32; F64 f64; I8 i8; U8 u8; I16 i16; U16 u16; I32 i32; U32 u32; I64 i64; U64 u64; }
}

/// Reads strings of fixed width, without the zeros with which they are padded.
fn texts(header: &Header, input: &mut Input<impl Read>, room: &mut Room) -> Result<Buffer> {
    let too_large = || input.damaged(format!("shape {:?} is too large", header.shape));
    // In memory, texts take more bytes than in the file. So their sum may overflow even if that of the file
    // doesn't.
    bytes(header).ok_or_else(too_large)?;
    let count =
        header.shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size)).ok_or_else(too_large)?;
    let unicode = header.text.is_some_and(|text| text.unicode);
    let width = header.text.and_then(Text::bytes).ok_or_else(too_large)?;
    let mut texts: Vec<Vec<u8>> = Vec::new();
    if count > 0 {
        room.check_width(width as u64).map_err(|what| input.damaged(what))?;
    }
    for _ in 0..count {
        let start = input.offset();
        let mut bytes = input.bytes(width as u64)?;
        if unicode {
            let mut text = String::new();
            for (index, four) in bytes.as_chunks::<4>().0.iter().enumerate() {
                let code =
                    if header.big_endian { u32::from_be_bytes(*four) } else { u32::from_le_bytes(*four) };
                let wrong =
                    || input.damaged_at(start + 4 * index as u64, format!("{code:#x} is no character"));
                text.push(char::from_u32(code).ok_or_else(wrong)?);
            }
            bytes = text.into_bytes();
        }
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(len);
        bytes.shrink_to_fit();
        // As UTF-8 and without padding, a text may be much shorter than in the file.
        room.count_text(bytes.len()).map_err(|what| input.damaged(what))?;
        texts.push(bytes);
    }
    Ok(Vec::<u8>::into_buffer(if header.fortran { row_major(&texts, &header.shape) } else { texts }))
}

fn halves<const N: usize, const H: usize>(bytes: [u8; N]) -> Option<([u8; H], [u8; H])> {
    let (first, rest) = bytes.split_first_chunk::<H>()?;
    Some((*first, *rest.first_chunk::<H>()?))
}

/// Reads elements of `N` bytes each. Memory grows only with the bytes that have been read, even if the header
/// states a larger shape.
fn numbers<T: Element, const N: usize>(
    header: &Header,
    input: &mut Input<impl Read>,
    convert: impl Fn([u8; N]) -> Option<T>,
) -> Result<Buffer> {
    let bytes = bytes(header).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| input.damaged(format!("shape {:?} is too large", header.shape)))?;
    let mut elements: Vec<T> = Vec::new();
    let mut chunk = vec![0; CHUNK.min(bytes)];
    let mut rest = bytes;
    while rest > 0 {
        let start = input.offset();
        let part = chunk.get_mut(..rest.min(CHUNK)).unwrap_or_default();
        input.fill(part)?;
        rest -= part.len();
        for (index, bytes) in part.as_chunks::<N>().0.iter().enumerate() {
            let bad =
                || input.damaged_at(start + (index * N) as u64, format!("{bytes:?} is no {}", T::DTYPE));
            elements.push(convert(*bytes).ok_or_else(bad)?);
        }
    }
    Ok(T::into_buffer(if header.fortran { row_major(&elements, &header.shape) } else { elements }))
}

/// Converts elements from column-major to row-major order.
fn row_major<T: Clone>(columns: &[T], shape: &[usize]) -> Vec<T> {
    let mut rows = Vec::with_capacity(columns.len());
    let strides: Vec<usize> =
        shape.iter().scan(1, |stride, size| Some(std::mem::replace(stride, *stride * size))).collect();
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    for _ in 0..columns.len() {
        rows.extend(columns.get(at).cloned());
        // The last axis varies fastest.
        for ((i, size), stride) in index.iter_mut().zip(shape).zip(&strides).rev() {
            *i += 1;
            at += stride;
            if *i < *size {
                break;
            }
            at -= stride * size;
            *i = 0;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        assert_eq!(row_major(&[1, 2, 3, 4, 5, 6], &[2, 3]), [1, 3, 5, 2, 4, 6]);
        assert_eq!(row_major(&[1, 2, 3, 4, 5, 6, 7, 8], &[2, 2, 2]), [1, 5, 3, 7, 2, 6, 4, 8]);
        assert_eq!(row_major(&[9], &[]), [9]);
        assert!(row_major::<u8>(&[], &[3, 0]).is_empty());
    }
}
