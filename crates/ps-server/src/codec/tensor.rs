//! Tensors in a body, and their descriptions in a head.

use bytes::Bytes;
use distribute_net::Region;
use distribute_tensor::{DType, HostTensor, Leaf, codec, wire};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The reason why bytes are not a call or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {0}")]
pub(crate) struct Malformed(pub &'static str);

/// The description of a tensor whose elements are in the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorHead {
    dtype: u8,
    /// Whether elements of `float32` are sent as `bfloat16`.
    half: bool,
    #[serde(deserialize_with = "dims")]
    dims: Vec<usize>,
    /// The number of bytes in the body.
    bytes: usize,
}

/// The minimum size of a body that is placed in memory shared with the client.
const LENT: usize = 256 << 10;

/// The maximum number of axes of a tensor: an encoded size takes one byte, and a decoded one eight.
const MOST_AXES: usize = 64;

/// Decodes the sizes of axes, up to the maximum number.
pub(super) fn dims<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<usize>, D::Error> {
    struct Dims;
    impl<'de> Visitor<'de> for Dims {
        type Value = Vec<usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the sizes of {MOST_AXES} axes at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Self::Value, A::Error> {
            let mut dims = Vec::new();
            while let Some(size) = sizes.next_element()? {
                if dims.len() == MOST_AXES {
                    return Err(de::Error::invalid_length(dims.len() + 1, &self));
                }
                dims.push(size);
            }
            Ok(dims)
        }
    }
    from.deserialize_seq(Dims)
}

/// A body that is being encoded.
#[derive(Debug, Default)]
pub(crate) struct Body {
    parts: Vec<Part>,
    bytes: usize,
}

#[derive(Debug)]
enum Part {
    /// A tensor that is sent without copying.
    Tensor(HostTensor),
    Bytes(Vec<u8>),
}

/// The elements of a tensor in their memory layout.
struct Elements(HostTensor);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        codec::as_bytes(self.0.buffer()).unwrap_or_default()
    }
}

/// A body that is being decoded.
#[derive(Debug)]
pub(crate) struct Rest(pub Bytes);

pub(super) fn code(dtype: DType) -> u8 {
    dtype as u8
}

pub(super) fn dtype(code: u8) -> Result<DType, Malformed> {
    DType::ALL.get(usize::from(code)).copied().ok_or(Malformed("no such dtype"))
}

impl Body {
    /// Appends a tensor. With `half`, `float32` is sent as `bfloat16`.
    pub fn put(&mut self, tensor: HostTensor, half: bool) -> Result<TensorHead, Malformed> {
        let unwritable = |_| Malformed("a tensor that cannot be written");
        let (dtype, half) = (tensor.dtype(), half && tensor.dtype() == DType::F32);
        let tensor = if half { tensor.cast(DType::Bf16).map_err(unwritable)? } else { tensor };
        let dims = tensor.dims().to_vec();
        if dims.len() > MOST_AXES {
            return Err(Malformed("a tensor of more than 64 axes"));
        }
        let part = match codec::as_bytes(tensor.buffer()) {
            Some(_) => Part::Tensor(tensor),
            None if tensor.dtype() == DType::String => {
                Part::Bytes(wire::encode([&Leaf::Host(tensor)]).map_err(unwritable)?)
            }
            None => {
                let mut bytes = Vec::new();
                codec::append(tensor.buffer(), 0..tensor.len(), &mut bytes);
                Part::Bytes(bytes)
            }
        };
        let bytes = part.bytes().len();
        self.bytes += bytes;
        self.parts.push(part);
        Ok(TensorHead { dtype: code(dtype), half, dims, bytes })
    }

    /// Returns the whole body. If it is large and `memory` returns a region shared with the reader, the body is
    /// placed there.
    pub fn finish_in(self, memory: impl FnOnce(usize) -> Option<Region>) -> Bytes {
        if self.bytes >= LENT
            && let Some(mut region) = memory(self.bytes)
        {
            let mut at = 0;
            for part in &self.parts {
                region.write(at, part.bytes());
                at += part.bytes().len();
            }
            return region.freeze();
        }
        self.finish()
    }

    /// Returns the whole body. A single tensor is not copied.
    pub fn finish(mut self) -> Bytes {
        self.parts.retain(|part| !part.bytes().is_empty());
        match (self.parts.pop(), self.parts.is_empty()) {
            (None, _) => Bytes::new(),
            (Some(Part::Tensor(tensor)), true) => Bytes::from_owner(Elements(tensor)),
            (Some(last), _) => {
                let mut all = Vec::with_capacity(self.bytes);
                self.parts.push(last);
                self.parts.iter().for_each(|part| all.extend_from_slice(part.bytes()));
                all.into()
            }
        }
    }
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Tensor(tensor) => codec::as_bytes(tensor.buffer()).unwrap_or_default(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Rest {
    /// Decodes the next tensor.
    pub fn take(&mut self, head: TensorHead) -> Result<HostTensor, Malformed> {
        let TensorHead { dtype: code, half, dims, bytes } = head;
        let dtype = dtype(code)?;
        if bytes > self.0.len() {
            return Err(Malformed("a tensor that is cut off"));
        }
        let bytes = self.0.split_to(bytes);
        let wrong = Malformed("a tensor of another size than its shape");
        if dtype == DType::String {
            let mut leaves = wire::decode(&bytes).map_err(|_| Malformed("no strings"))?;
            return match (leaves.pop(), leaves.is_empty()) {
                (Some(Leaf::Host(tensor)), true) if tensor.dtype() == dtype && tensor.dims() == dims => {
                    Ok(tensor)
                }
                _ => Err(wrong),
            };
        }
        if half && dtype != DType::F32 {
            return Err(Malformed("halves of another dtype than float32"));
        }
        let stored = if half { DType::Bf16 } else { dtype };
        if !stored.bytes().is_some_and(|width| bytes.len().is_multiple_of(width)) {
            return Err(wrong);
        }
        if half {
            // In one pass, because intermediate copies would take three times the size of the message.
            let whole = |half: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16);
            return HostTensor::new(bytes.chunks_exact(2).map(whole).collect::<Vec<f32>>(), dims)
                .map_err(|_| wrong);
        }
        let buffer = codec::read(dtype, &bytes).map_err(|_| Malformed("an element that is none"))?;
        HostTensor::from_buffer(buffer, dims).map_err(|_| wrong)
    }

    /// Decodes rows or ids.
    pub fn ids(&mut self, head: TensorHead) -> Result<Vec<i64>, Malformed> {
        self.numbers(head)
    }

    /// Decodes the elements of a tensor of rank 1.
    pub fn numbers<T: distribute_tensor::Element>(&mut self, head: TensorHead) -> Result<Vec<T>, Malformed> {
        let tensor = self.take(head)?;
        let wrong = Malformed("no list of numbers where one has to be");
        if tensor.rank() == 1 { tensor.into_vec().map_err(|_| wrong) } else { Err(wrong) }
    }
}
