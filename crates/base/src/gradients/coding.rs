//! The form in which packs are sent to other workers.

use bytes::Bytes;
use candle_core::DType;
use distribute_collective::group::{Buffers, numbers};
use distribute_tensor::Wire;

/// The encoding of packs for other workers. `f32` is sent in the type of the [`Wire`], `f64` unchanged.
#[derive(Clone, Debug)]
pub struct PackCoding {
    wire: Wire,
    buffers: Buffers,
}

impl PackCoding {
    /// Creates an encoding that takes memory from `buffers`.
    pub fn new(wire: Wire, buffers: &Buffers) -> Self {
        Self { wire, buffers: buffers.clone() }
    }

    /// Returns the buffers from which memory is taken.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Returns the type in which elements of `dtype` are sent.
    pub fn wire(&self, dtype: DType) -> Wire {
        if dtype == DType::F32 { self.wire } else { Wire::Full }
    }

    /// Returns the number of bytes that are sent for `bytes` bytes of elements of `dtype`.
    pub fn len(&self, dtype: DType, bytes: usize) -> usize {
        self.wire(dtype).len(bytes)
    }

    /// Encodes elements for sending. They are not copied if they are sent unchanged.
    pub fn encode(&self, dtype: DType, elements: Bytes) -> Bytes {
        if self.wire(dtype) == Wire::Full {
            return elements;
        }
        let mut sent = self.buffers.take(self.len(dtype, elements.len()));
        self.wire.encode(&numbers(&elements), sent.bytes_mut());
        sent.freeze()
    }

    /// Decodes received elements of a variable with dtype `dtype`. They are not copied if they were sent unchanged.
    pub fn decode(&self, dtype: DType, received: Bytes) -> Bytes {
        if self.wire(dtype) == Wire::Full {
            return received;
        }
        let mut elements = self.buffers.take(2 * received.len());
        self.wire.decode(&received, bytemuck::cast_slice_mut(elements.bytes_mut()));
        elements.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_collective::group::local;

    #[test]
    fn packs_of_f32_take_half_of_the_bytes_and_others_stay() {
        let group = local::groups(Default::default(), 1, 1).unwrap().remove(0);
        let coding = PackCoding::new(Wire::Bf16, group.buffers());
        let pack = Bytes::from(bytemuck::cast_slice::<f32, u8>(&[1., 1. / 3., -2.]).to_vec());
        let sent = coding.encode(DType::F32, pack.clone());
        assert_eq!((sent.len(), coding.len(DType::F32, pack.len())), (6, 6));
        let received = coding.decode(DType::F32, sent);
        assert_eq!(*numbers::<f32>(&received), [1., 0.333_984_38, -2.]);
        for (coding, dtype) in
            [(coding, DType::F64), (PackCoding::new(Wire::Full, group.buffers()), DType::F32)]
        {
            assert_eq!(coding.len(dtype, 8), 8);
            assert_eq!(coding.decode(dtype, coding.encode(dtype, pack.clone())).as_ptr(), pack.as_ptr());
        }
    }
}
