//! The encoding of tensors: elements in a body, and descriptions in a head.

use bytes::Bytes;
use distribute_net::Region;
use distribute_tensor::{DType, HostTensor, Leaf, Wire, codec, wire};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The reason why bytes are not a valid call or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {0}")]
pub(crate) struct Malformed(pub &'static str);

/// The description of a tensor whose elements are in the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorHead {
    dtype: u8,
    /// The code of the type in which elements are sent. Only `float32` may be sent in another type than its own.
    wire: u8,
    #[serde(deserialize_with = "dims")]
    dims: Vec<usize>,
    /// The size of the elements in the body, in bytes.
    bytes: usize,
}

/// The minimum size in bytes of a body that is written to memory shared with the client.
const MIN_SHARED_BODY: usize = 256 << 10;

/// The types in which numbers are sent. The index of a type is its code. Logs contain these codes, so add new types at
/// the end.
const WIRES: [Wire; 3] = [Wire::Full, Wire::Bf16, Wire::F16];

/// The maximum number of axes of a tensor. It limits the memory for decoded axes: each takes eight bytes, but may take
/// only one in the encoding.
const MAX_AXES: usize = 64;

/// Decodes the sizes of axes. Returns an error if there are more than [`MAX_AXES`].
pub(super) fn dims<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<usize>, D::Error> {
    struct Dims;
    impl<'de> Visitor<'de> for Dims {
        type Value = Vec<usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the sizes of {MAX_AXES} axes at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Self::Value, A::Error> {
            let mut dims = Vec::new();
            while let Some(size) = sizes.next_element()? {
                if dims.len() == MAX_AXES {
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
    /// A tensor that is sent without a copy.
    Tensor(HostTensor),
    Bytes(Vec<u8>),
}

/// The elements of a tensor as bytes, in their memory layout.
struct Elements(HostTensor);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        codec::as_bytes(self.0.buffer()).unwrap_or_default()
    }
}

/// The part of a body that has not been decoded yet.
#[derive(Debug)]
pub(crate) struct Rest(pub Bytes);

pub(super) fn code(dtype: DType) -> u8 {
    dtype as u8
}

pub(super) fn dtype(code: u8) -> Result<DType, Malformed> {
    DType::ALL.get(usize::from(code)).copied().ok_or(Malformed("no such dtype"))
}

pub(super) fn wire_code(wire: Wire) -> u8 {
    WIRES.iter().position(|one| *one == wire).unwrap_or_default() as u8
}

pub(super) fn wire_of(code: u8) -> Result<Wire, Malformed> {
    WIRES.get(usize::from(code)).copied().ok_or(Malformed("no such type of numbers that are sent"))
}

impl Body {
    /// Appends a tensor, and returns its description. `float32` elements are sent in the type `wire`.
    pub fn put(&mut self, tensor: HostTensor, wire: Wire) -> Result<TensorHead, Malformed> {
        let unwritable = |_| Malformed("a tensor that cannot be written");
        let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
        if dims.len() > MAX_AXES {
            return Err(Malformed("a tensor of more than 64 axes"));
        }
        let wire = if dtype == DType::F32 { wire } else { Wire::Full };
        let part = if wire != Wire::Full {
            let numbers = tensor.as_slice().unwrap_or_default();
            let mut bytes = vec![0; wire.len(size_of_val(numbers))];
            wire.encode(numbers, &mut bytes);
            Part::Bytes(bytes)
        } else if codec::as_bytes(tensor.buffer()).is_some() {
            Part::Tensor(tensor)
        } else if dtype == DType::String {
            Part::Bytes(wire::encode([&Leaf::Host(tensor)]).map_err(unwritable)?)
        } else {
            let mut bytes = Vec::new();
            codec::append(tensor.buffer(), 0..tensor.len(), &mut bytes);
            Part::Bytes(bytes)
        };
        let bytes = part.bytes().len();
        self.bytes += bytes;
        self.parts.push(part);
        Ok(TensorHead { dtype: code(dtype), wire: wire_code(wire), dims, bytes })
    }

    /// Returns the complete body. If it is large, it is written to the region that `memory` returns, if there is one.
    pub fn finish_in(self, memory: impl FnOnce(usize) -> Option<Region>) -> Bytes {
        if self.bytes >= MIN_SHARED_BODY
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

    /// Returns the complete body. It is not copied if it has a single tensor.
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
        let TensorHead { dtype: code, wire, dims, bytes } = head;
        let (dtype, wire) = (dtype(code)?, wire_of(wire)?);
        if bytes > self.0.len() {
            return Err(Malformed("a tensor that is truncated"));
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
        if wire != Wire::Full && dtype != DType::F32 {
            return Err(Malformed("halves of another dtype than float32"));
        }
        if !dtype.bytes().is_some_and(|width| bytes.len().is_multiple_of(wire.len(width))) {
            return Err(wrong);
        }
        if wire != Wire::Full {
            // In one pass, because intermediate copies would take three times the size of the message.
            let mut numbers = vec![0f32; bytes.len() / 2];
            wire.decode(&bytes, &mut numbers);
            return HostTensor::new(numbers, dims).map_err(|_| wrong);
        }
        let buffer = codec::read(dtype, &bytes).map_err(|_| Malformed("an invalid element"))?;
        HostTensor::from_buffer(buffer, dims).map_err(|_| wrong)
    }

    /// Decodes a tensor of row indices or ids.
    pub fn ids(&mut self, head: TensorHead) -> Result<Vec<i64>, Malformed> {
        self.numbers(head)
    }

    /// Decodes the elements of a tensor of rank 1.
    pub fn numbers<T: distribute_tensor::Element>(&mut self, head: TensorHead) -> Result<Vec<T>, Malformed> {
        let tensor = self.take(head)?;
        let wrong = Malformed("no list of numbers although one is required");
        if tensor.rank() == 1 { tensor.into_vec().map_err(|_| wrong) } else { Err(wrong) }
    }
}
