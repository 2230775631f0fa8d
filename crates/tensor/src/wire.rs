//! Encoding of leaves as bytes, for sending them to another process.
//!
//! A list of leaves is encoded as their number, followed by the leaves. A leaf consists of its kind, followed by a
//! tensor if it is dense. Indexed slices consist of the dense shape, if it is known, and two tensors (values and
//! indices). A tensor consists of its dtype, shape and elements. Everything is little-endian. Decoded leaves are in
//! host memory.

use crate::codec;
use crate::dtype::Buffer;
use crate::{DType, Error, HostTensor, IndexedSlices, Leaf, Result};

/// The kind of a dense leaf in the encoding. The next two are the kinds of indexed slices without and with a dense
/// shape.
const DENSE: u8 = 0;
const SLICES: u8 = 1;
const SLICES_OF: u8 = 2;

/// Encodes leaves as bytes that [`decode`] can read.
///
/// # Errors
/// - [`Error::Bytes`]: the rank of a tensor exceeds 255.
/// - `Error::ForeignDType`, `Error::Candle`: a candle tensor cannot be copied to host memory.
pub fn encode<'a>(leaves: impl IntoIterator<Item = &'a Leaf>) -> Result<Vec<u8>> {
    let mut to = vec![0; 8];
    let mut count = 0u64;
    for leaf in leaves {
        count += 1;
        match leaf {
            Leaf::Slices(slices) => {
                to.push(if slices.dense_shape.is_some() { SLICES_OF } else { SLICES });
                if let Some(shape) = &slices.dense_shape {
                    put_dims(shape, &mut to)?;
                }
                put_tensor(&slices.values, &mut to)?;
                put_tensor(&slices.indices, &mut to)?;
            }
            Leaf::Host(tensor) => {
                to.push(DENSE);
                put_tensor(tensor, &mut to)?;
            }
            #[cfg(feature = "candle")]
            Leaf::Candle(tensor) => {
                to.push(DENSE);
                put_tensor(&HostTensor::from_candle(tensor)?, &mut to)?;
            }
        }
    }
    to[..8].copy_from_slice(&count.to_le_bytes());
    Ok(to)
}

/// Decodes leaves into host memory. The allocated memory is proportional to the number of bytes.
///
/// # Errors
/// - [`Error::Bytes`]: the bytes are invalid. The error contains the offset of the first invalid byte.
/// - [`Error::ElementCount`]: the sizes of an empty tensor's other axes overflow.
/// - The errors of [`IndexedSlices::new`]: indexed slices are inconsistent.
pub fn decode(bytes: &[u8]) -> Result<Vec<Leaf>> {
    let mut from = Bytes { all: bytes, at: 0 };
    let count = from.number()?;
    // A leaf takes at least 3 bytes.
    if count > bytes.len() / 3 {
        return Err(from.wrong("a count of leaves that are not there"));
    }
    let mut leaves = Vec::with_capacity(count);
    for _ in 0..count {
        leaves.push(match from.take(1)? {
            [DENSE] => Leaf::Host(from.tensor()?),
            kind @ [SLICES | SLICES_OF] => {
                let dense_shape = (kind == [SLICES_OF]).then(|| from.dims()).transpose()?;
                let (values, indices) = (from.tensor()?, from.tensor()?);
                Leaf::Slices(IndexedSlices::new(values, indices, dense_shape)?)
            }
            _ => return Err(from.wrong("no kind of leaf")),
        });
    }
    if from.at == bytes.len() { Ok(leaves) } else { Err(from.wrong("more bytes than the leaves have")) }
}

fn put_dims(dims: &[usize], to: &mut Vec<u8>) -> Result<()> {
    let rank = u8::try_from(dims.len()).map_err(|_| Error::Bytes {
        operation: "encode",
        offset: to.len(),
        what: "a rank above 255",
    })?;
    to.push(rank);
    dims.iter().for_each(|dim| to.extend_from_slice(&(*dim as u64).to_le_bytes()));
    Ok(())
}

fn put_tensor(tensor: &HostTensor, to: &mut Vec<u8>) -> Result<()> {
    to.push(tensor.dtype() as u8);
    put_dims(tensor.dims(), to)?;
    match tensor.buffer() {
        Buffer::String(strings) => strings.iter().for_each(|string| {
            to.extend_from_slice(&(string.len() as u64).to_le_bytes());
            to.extend_from_slice(string);
        }),
        fixed => {
            to.reserve(fixed.len() * tensor.dtype().bytes().unwrap_or(0));
            codec::append(fixed, 0..fixed.len(), to);
        }
    }
    Ok(())
}

/// A reader that takes bytes from start to end.
struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn wrong(&self, what: &'static str) -> Error {
        Error::Bytes { operation: "decode", offset: self.at, what }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.all.len());
        let end = end.ok_or_else(|| self.wrong("the bytes end too early"))?;
        let taken = &self.all[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<usize> {
        let bytes = self.take(8)?.try_into().map_err(|_| self.wrong("no number"))?;
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| self.wrong("a number that is too large"))
    }

    fn dims(&mut self) -> Result<Vec<usize>> {
        let rank = self.take(1)?[0];
        (0..rank).map(|_| self.number()).collect()
    }

    fn tensor(&mut self) -> Result<HostTensor> {
        let dtype = usize::from(self.take(1)?[0]);
        let dtype = *DType::ALL.get(dtype).ok_or_else(|| self.wrong("no dtype"))?;
        let dims = self.dims()?;
        let len = dims.iter().try_fold(1usize, |len, dim| len.checked_mul(*dim));
        let len = len.ok_or_else(|| self.wrong("a shape that is too large"))?;
        let buffer = match dtype.bytes() {
            Some(width) => {
                let size = len.checked_mul(width).ok_or_else(|| self.wrong("a shape that is too large"))?;
                let (start, bytes) = (self.at, self.take(size)?);
                codec::read(dtype, bytes).map_err(|offset| Error::Bytes {
                    operation: "decode",
                    offset: start + offset,
                    what: "no such element",
                })?
            }
            None => {
                let mut strings = Vec::new();
                for _ in 0..len {
                    let size = self.number()?;
                    strings.push(self.take(size)?.to_vec());
                }
                Buffer::String(strings)
            }
        };
        HostTensor::from_buffer(buffer, dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaves() -> Vec<Leaf> {
        let mut all: Vec<Leaf> = Vec::new();
        for dtype in DType::ALL {
            for shape in [vec![], vec![3], vec![2, 0], vec![2, 3]] {
                all.push(HostTensor::zeros(dtype, shape).unwrap().into());
            }
        }
        all.push(HostTensor::vector(vec![b"ab".to_vec(), b"".to_vec(), b"c".to_vec()]).into());
        let values = HostTensor::new(vec![1f32, -0., f32::NAN, 4.], [2, 2]).unwrap();
        let indices = HostTensor::vector(vec![4i64, 0]);
        for shape in [None, Some(vec![5, 2])] {
            all.push(IndexedSlices::new(values.clone(), indices.clone(), shape).unwrap().into());
        }
        all
    }

    #[test]
    fn every_kind_of_leaf_comes_back() {
        let all = leaves();
        let bytes = encode(&all).unwrap();
        let back = decode(&bytes).unwrap();
        assert_eq!(back.len(), all.len());
        for (back, leaf) in back.iter().zip(&all) {
            assert_eq!((back.describe(), back.to_string()), (leaf.describe(), leaf.to_string()));
        }
        assert_eq!(encode(&back).unwrap(), bytes);
    }

    #[test]
    fn bytes_that_end_too_early_are_an_error_that_tells_where() {
        let bytes = encode(&leaves()).unwrap();
        for end in 0..bytes.len() {
            let error = decode(&bytes[..end]).unwrap_err();
            assert!(matches!(error, Error::Bytes { offset, .. } if offset <= end), "{error}");
        }
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_an_error_or_other_leaves(at in 0usize..2000, byte: u8) {
            let mut bytes = encode(&leaves()).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode(&bytes);
        }
    }
}
