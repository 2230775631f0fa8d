//! Checksums of variables' elements, with which workers compare their values. A checksum is the CRC-32C of the bytes in
//! memory, which processors compute about as fast as they read memory.

use super::error::with_name;
use super::variable::Variable;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Storage, Tensor, bail};
use distribute_base::Result;
use distribute_base::internal::to_host;
use distribute_tensor::codec;
use distribute_tensor::dtype::Buffer;
use std::ops::Range;

impl Variable {
    /// Computes the CRC-32C of the given elements of each copy, one copy after another, continuing from `sum`.
    ///
    /// # Errors
    /// Returns candle's error if a copy on another device cannot be read.
    pub(crate) fn checksum(&self, elements: Range<usize>, sum: u32) -> Result<u32> {
        let _all = self.all_copies();
        let mut copies = self.0.copies.iter();
        copies.try_fold(sum, |sum, copy| copy.checksum(elements.clone(), sum)).map_err(with_name(self.name()))
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// Returns the size of an element in memory, in bytes. For strings, whose lengths differ, this is an
    /// estimate.
    pub(crate) fn element_bytes(&self) -> usize {
        self.dtype().bytes().unwrap_or(size_of::<Vec<u8>>())
    }
}

/// Computes the checksum of a range of a tensor's elements, in row-major order, continuing from `sum`.
pub(super) fn candle_checksum(tensor: &Tensor, elements: Range<usize>, sum: u32) -> candle_core::Result<u32> {
    let (storage, layout) = tensor.storage_and_layout();
    if let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
        return cpu_checksum(storage, start + elements.start..end.min(start + elements.end), sum);
    }
    drop(storage);
    let some = tensor.detach().flatten_all()?.narrow(0, elements.start, elements.len())?;
    candle_checksum(&to_host(&some)?, 0..elements.len(), sum)
}

fn cpu_checksum(storage: &CpuStorage, elements: Range<usize>, sum: u32) -> candle_core::Result<u32> {
    macro_rules! by_type {
        ($($variant:ident)*) => {
            match storage {
                $(CpuStorage::$variant(all) => all.get(elements).map(bytemuck::cast_slice),)*
                _ => bail!("no checksum of {:?}", storage.dtype()),
            }
        };
    }
    let bytes: Option<&[u8]> = by_type!(U8 U32 I16 I32 I64 BF16 F16 F32 F64);
    Ok(crc32c::crc32c_append(sum, bytes.unwrap_or_default()))
}

/// Computes the checksum of a range of elements in host memory, continuing from `sum`.
pub(super) fn host_checksum(buffer: &Buffer, elements: Range<usize>, sum: u32) -> u32 {
    if let Buffer::String(strings) = buffer {
        let some = strings.get(elements).unwrap_or_default();
        return some.iter().fold(sum, |sum, string| {
            // Without the length, the end of one string could be the start of the next.
            let sum = crc32c::crc32c_append(sum, &(string.len() as u64).to_le_bytes());
            crc32c::crc32c_append(sum, string)
        });
    }
    codec::chunks(buffer, elements).fold(sum, |sum, bytes| crc32c::crc32c_append(sum, &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;
    use candle_core::Device;
    use distribute_tensor::HostTensor;

    fn whole(tensor: &Tensor) -> u32 {
        candle_checksum(tensor, 0..tensor.elem_count(), 0).unwrap()
    }

    #[test]
    fn parts_one_after_another_are_the_whole_and_each_bit_counts() {
        let numbers: Vec<f32> = (0..1000).map(|i| (i as f32).sin()).collect();
        let tensor = Tensor::new(numbers.clone(), &Device::Cpu).unwrap();
        let bytes: &[u8] = bytemuck::cast_slice(&numbers);
        assert_eq!(whole(&tensor), crc32c::crc32c(bytes));
        let parts = [0..1, 1..1, 1..700, 700..1000].into_iter();
        let sum = parts.fold(0, |sum, part| candle_checksum(&tensor, part, sum).unwrap());
        assert_eq!(sum, whole(&tensor));
        for bit in [0, 13, 31] {
            let mut other = numbers.clone();
            other[977] = f32::from_bits(other[977].to_bits() ^ 1 << bit);
            assert_ne!(whole(&Tensor::new(other, &Device::Cpu).unwrap()), sum, "bit {bit}");
        }
    }

    #[test]
    fn elements_count_in_row_major_order_however_they_lie_in_memory() {
        let tensor = Tensor::arange(0f32, 24., &Device::Cpu).unwrap().reshape((4, 6)).unwrap();
        let turned = tensor.t().unwrap();
        assert_eq!(whole(&turned), whole(&turned.contiguous().unwrap()));
        let rows = tensor.narrow(0, 1, 2).unwrap();
        assert_eq!(whole(&rows), candle_checksum(&tensor, 6..18, 0).unwrap());
    }

    #[test]
    fn every_dtype_that_a_variable_can_have_has_one() {
        for dtype in [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64] {
            let tensor = Tensor::new(&[1u8, 2, 3], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let other = Tensor::new(&[1u8, 2, 4], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            assert_ne!(whole(&tensor), whole(&other), "{dtype:?}");
        }
        for dtype in distribute_tensor::DType::ALL.into_iter().filter(|dtype| dtype.bytes().is_some()) {
            let zeros = HostTensor::zeros(dtype, [3]).unwrap();
            let ones = HostTensor::vector(vec![0u8, 0, 1]).cast(dtype).unwrap();
            assert_ne!(
                host_checksum(zeros.buffer(), 0..3, 0),
                host_checksum(ones.buffer(), 0..3, 0),
                "{dtype}"
            );
            assert_eq!(
                host_checksum(zeros.buffer(), 0..2, 0),
                host_checksum(ones.buffer(), 0..2, 0),
                "{dtype}"
            );
        }
        let strings = |all: [&str; 2]| HostTensor::vector(all.map(|text| text.as_bytes().to_vec()).to_vec());
        let [one, other] = [["ab", "c"], ["a", "bc"]].map(strings);
        assert_ne!(host_checksum(one.buffer(), 0..2, 0), host_checksum(other.buffer(), 0..2, 0));
    }
}
