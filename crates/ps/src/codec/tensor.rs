//! Tensors as bytes of a body, and what a head says of them.

use bytes::Bytes;
use distribute_net::Region;
use distribute_tensor::{DType, HostTensor, Leaf, codec, wire};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// What is wrong with bytes that are no call or no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {0}")]
pub(crate) struct Malformed(pub &'static str);

/// What a head says of a tensor whose elements are in the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorHead {
    dtype: u8,
    /// Whether elements of `float32` are sent as `bfloat16`.
    half: bool,
    #[serde(deserialize_with = "dims")]
    dims: Vec<usize>,
    /// How many bytes of the body it has.
    bytes: usize,
}

/// Bodies from here on are lent to a caller that shares memory.
const LENT: usize = 256 << 10;

/// So many axes a tensor may have: a size is one byte where it is sent, and eight in memory.
const MOST_AXES: usize = 64;

/// Reads the sizes of axes, and no more of them than there may be.
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

/// A body that is put together.
#[derive(Debug, Default)]
pub(crate) struct Body {
    parts: Vec<Part>,
    bytes: usize,
}

#[derive(Debug)]
enum Part {
    /// Sent from where it lies.
    Tensor(HostTensor),
    Bytes(Vec<u8>),
}

/// A tensor's elements as they are in memory.
struct Elements(HostTensor);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        codec::as_bytes(self.0.buffer()).unwrap_or_default()
    }
}

/// A body that is taken apart.
#[derive(Debug)]
pub(crate) struct Rest(pub Bytes);

pub(super) fn code(dtype: DType) -> u8 {
    dtype as u8
}

pub(super) fn dtype(code: u8) -> Result<DType, Malformed> {
    DType::ALL.get(usize::from(code)).copied().ok_or(Malformed("no such dtype"))
}

impl Body {
    /// Adds a tensor; `half` sends `float32` as `bfloat16`.
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

    /// All of it, in `memory` of its length that its reader has, too, if there is some and it is large.
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

    /// All of it. One tensor alone is not copied.
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
    /// The next tensor.
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
            // In one pass: halves and what is made of them would be three times of what has come.
            let whole = |half: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16);
            return HostTensor::new(bytes.chunks_exact(2).map(whole).collect::<Vec<f32>>(), dims)
                .map_err(|_| wrong);
        }
        let buffer = codec::read(dtype, &bytes).map_err(|_| Malformed("an element that is none"))?;
        HostTensor::from_buffer(buffer, dims).map_err(|_| wrong)
    }

    /// Numbers of rows, or ids.
    pub fn ids(&mut self, head: TensorHead) -> Result<Vec<i64>, Malformed> {
        self.numbers(head)
    }

    /// The elements of a tensor of rank 1.
    pub fn numbers<T: distribute_tensor::Element>(&mut self, head: TensorHead) -> Result<Vec<T>, Malformed> {
        let tensor = self.take(head)?;
        let wrong = Malformed("no list of numbers where one has to be");
        if tensor.rank() == 1 { tensor.into_vec().map_err(|_| wrong) } else { Err(wrong) }
    }
}
