//! Tests of copies between GPUs, and between two handles of one. Each test is skipped without these GPUs.

use super::*;
use crate::device::DeviceName;
use distribute_testing::skipped;

// INV-72
#[test]
fn a_tensor_that_is_copied_between_gpus_is_kept_until_the_copy_is_done() {
    let gpu = |number| DeviceName::gpu(number).to_candle();
    let (from, to) = match (gpu(0), gpu(1)) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(error), _) | (_, Err(error)) => return skipped(error),
    };
    for number in 0..20u32 {
        let there = to_device(&Tensor::full(number, 1000, &from).unwrap(), &to).unwrap();
        // The first GPU has finished its work, and uses the memory again.
        from.synchronize().unwrap();
        let next = Tensor::full(77u32, 1000, &from).unwrap();
        from.synchronize().unwrap();
        assert_eq!(there.to_vec1::<u32>().unwrap(), [number; 1000]);
        drop(next);
    }
}

// INV-72
#[test]
fn a_tensor_of_another_handle_of_the_gpu_is_complete_when_it_is_copied() {
    let to = match DeviceName::gpu(0).to_candle() {
        Ok(to) => to,
        Err(error) => return skipped(error),
    };
    let other = Device::new_cuda(0).unwrap();
    for number in 0..20u32 {
        let there = to_device(&Tensor::full(number, 1000, &other).unwrap(), &to).unwrap();
        assert_eq!((&there + &there).unwrap().to_vec1::<u32>().unwrap(), [2 * number; 1000]);
    }
}
