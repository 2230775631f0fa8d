//! Creates tensors of any dtype to save.

use distribute_tensor::{DType, HostTensor};

/// Returns a tensor of the given dtype and shape, whose elements vary.
pub fn of(dtype: DType, shape: &[usize]) -> HostTensor {
    let len: usize = shape.iter().product();
    if dtype == DType::String {
        let strings = (0..len).map(|i| vec![b'a' + (i % 26) as u8; i % 5]).collect::<Vec<_>>();
        return HostTensor::new(strings, shape).unwrap();
    }
    let numbers = (0..len).map(|i| (i % 100) as u8).collect::<Vec<_>>();
    HostTensor::new(numbers, shape).unwrap().cast(dtype).unwrap()
}
