//! Tests of copies that are made and used while a GPU has other work. Each test is skipped without a CUDA GPU.

use super::*;
use crate::device::DeviceName;
use crate::transfer::{hold_gpu, to_device};
use candle_core::{DType, Device};
use distribute_testing::{child, skipped, watched};
use std::time::Duration;

/// Returns the GPU, and a copier with the given number of buffers.
fn gpu(buffers: usize) -> Option<(Device, Pinned)> {
    match DeviceName::gpu(0).to_candle() {
        Ok(Device::Cuda(device)) => {
            let pinned = Pinned::new(&device, buffers).unwrap();
            Some((Device::Cuda(device), pinned))
        }
        Ok(other) => panic!("{:?} is no GPU of CUDA", other.location()),
        Err(error) => {
            skipped(error);
            None
        }
    }
}

/// Keeps the GPU busy for a while with work on candle's stream.
fn busy(device: &Device) -> Tensor {
    let some = Tensor::zeros((1 << 20,), DType::F32, device).unwrap();
    (0..20).fold(some, |some, _| some.affine(0.5, 1.).unwrap())
}

/// Returns `len` numbers that are different for each piece.
fn piece(number: usize, len: usize) -> Tensor {
    let numbers = (0..len).map(|i| ((number * 31 + i) % 1000) as f32);
    Tensor::from_iter(numbers, &Device::Cpu).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let here = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    here.flatten_all().unwrap().to_vec1().unwrap()
}

/// Runs the test `name` in a separate process, with nothing else on the GPU, and returns its output.
fn by_itself(name: &str, without_pinned_memory: bool) -> (String, String) {
    let mut command = child::command(&format!("transfer::pinned::tests::{name}"), "by itself");
    if without_pinned_memory {
        // CUDA in software has only 1 byte of pinned memory then.
        command.env("SOFT_CUDA_PINNED", "1");
    }
    child::output(command, Duration::from_secs(60))
}

// INV-70
#[test]
fn copies_do_not_wait_for_computations() {
    if child::part().is_none() {
        by_itself("copies_do_not_wait_for_computations", false);
        return;
    }
    watched(|| {
        let Some((_, pinned)) = gpu(2) else { return };
        // More copies than buffers, so that some wait for a buffer.
        let bring =
            || (0..10).map(|number| pinned.copy_tensor(&piece(number, 5000)).unwrap()).collect::<Vec<_>>();
        let check = |brought: Vec<Tensor>| {
            for (number, there) in brought.iter().enumerate() {
                assert_eq!(numbers(there), numbers(&piece(number, 5000)));
            }
        };
        // CUDA may wait while buffers are made.
        check(bring());
        let (go, said) = hold_gpu(&pinned.device);
        let brought = bring();
        go.send(()).unwrap();
        check(brought);
        assert!(said.recv_timeout(Duration::from_secs(20)).unwrap(), "it has waited");
    });
}

#[test]
fn without_pinned_memory_candle_copies_and_the_log_says_so_once() {
    if child::part().is_none() {
        let (out, err) = by_itself("without_pinned_memory_candle_copies_and_the_log_says_so_once", true);
        let times = err.matches("not copied through pinned memory").count();
        // Other GPUs have some.
        assert!(times == 1 || !out.contains("on soft CUDA"), "{err}");
        return;
    }
    watched(|| {
        let Some((device, pinned)) = gpu(1) else { return };
        println!("on {}", pinned.copies.context().name().unwrap());
        let _work = busy(&device);
        let all: Vec<_> = (0..10).map(|number| to_device(&piece(number, 20_000), &device).unwrap()).collect();
        for (number, there) in all.iter().enumerate() {
            assert_eq!(numbers(there), numbers(&piece(number, 20_000)));
        }
    });
}

// IN-4, INV-70
#[test]
fn pieces_of_all_types_and_layouts_arrive_with_their_numbers_while_the_gpu_computes() {
    watched(|| {
        let Some((device, pinned)) = gpu(BUFFERS) else { return };
        let all = Tensor::arange(0f32, 120., &Device::Cpu).unwrap().reshape((20, 6)).unwrap();
        for dtype in [
            DType::U8,
            DType::U32,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::BF16,
            DType::F16,
            DType::F32,
            DType::F64,
        ] {
            let all = all.to_dtype(dtype).unwrap();
            let (rows, columns) = (all.narrow(0, 3, 9).unwrap(), all.narrow(1, 2, 3).unwrap());
            for host in [all.clone(), rows, columns, all.t().unwrap()] {
                let _work = busy(&device);
                let there = pinned.copy_tensor(&host).unwrap();
                assert!(there.device().same_device(&device));
                assert_eq!((there.dims(), there.dtype()), (host.dims(), dtype));
                assert_eq!(numbers(&there), numbers(&host), "{dtype:?}");
            }
        }
        assert!(!pinned.has_warned.load(Ordering::Relaxed));
    });
}

#[test]
fn other_tensors_are_left_to_candle() {
    watched(|| {
        let Some((device, pinned)) = gpu(1) else { return };
        let variable = candle_core::Var::zeros((2,), DType::F32, &Device::Cpu).unwrap();
        assert!(pinned.copy_tensor(variable.as_tensor()).is_none());
        assert!(pinned.copy_tensor(&Tensor::zeros((2,), DType::F32, &device).unwrap()).is_none());
        assert!(!pinned.has_warned.load(Ordering::Relaxed));
        let bytes = piece(0, 4).to_dtype(DType::F8E4M3).unwrap();
        assert!(pinned.copy_tensor(&bytes).is_none());
        assert!(pinned.has_warned.load(Ordering::Relaxed));
    });
}

// INV-70
#[test]
fn two_buffers_bring_200_pieces_and_there_are_never_more() {
    watched(|| {
        let Some((device, pinned)) = gpu(2) else { return };
        let _work = busy(&device);
        let len = |number: usize| [10, 2000, 70_000][number % 3];
        // Doubled on the GPU, after its work. That shows a buffer that is written too early, and a copy that is not
        // waited for.
        let doubled = |number| (pinned.copy_tensor(&piece(number, len(number))).unwrap() * 2.).unwrap();
        let all: Vec<Tensor> = (0..200).map(doubled).collect();
        for (number, there) in all.iter().enumerate() {
            let expected: Vec<f64> = numbers(&piece(number, len(number))).iter().map(|x| 2. * x).collect();
            assert_eq!(numbers(there), expected, "piece {number}");
        }
        assert!(lock(&pinned.pool).sizes().len() <= 2);
    });
}

// INV-70
#[test]
fn a_tensor_larger_than_a_buffer_is_copied_in_parts() {
    watched(|| {
        let Some((device, pinned)) = gpu(2) else { return };
        let _work = busy(&device);
        let host = piece(7, (20 << 20) / 4 + 3);
        assert_eq!(numbers(&pinned.copy_tensor(&host).unwrap()), numbers(&host));
        let sizes = lock(&pinned.pool).sizes();
        assert!(sizes.len() == 2 && sizes.iter().all(|size| *size <= 8 << 20), "{sizes:?}");
    });
}

// INV-70
#[test]
fn memory_of_a_dropped_piece_is_not_reused_before_its_last_use() {
    watched(|| {
        let Some((device, pinned)) = gpu(2) else { return };
        let _work = busy(&device);
        let sum = |number: usize| {
            // Pieces of one size, so that one gets the memory of another.
            drop(pinned.copy_tensor(&piece(number + 500, 4096)).unwrap());
            let there = pinned.copy_tensor(&piece(number, 4096)).unwrap();
            there.sum_all().unwrap()
        };
        let sums: Vec<Tensor> = (0..50).map(sum).collect();
        for (number, sum) in sums.iter().enumerate() {
            let expected: f64 = numbers(&piece(number, 4096)).iter().sum();
            assert!((numbers(sum)[0] - expected).abs() <= 1e-5 * expected, "piece {number}");
        }
    });
}

// Some operations find memory by its stream.
// INV-70
#[test]
fn recently_transferred_ids_find_their_rows() {
    watched(|| {
        let Some((device, pinned)) = gpu(2) else { return };
        let rows = Tensor::arange(0f32, 4000., &Device::Cpu).unwrap().reshape((1000, 4)).unwrap();
        let table = rows.to_device(&device).unwrap();
        let _work = busy(&device);
        let picked: Vec<(Tensor, Tensor)> = (0..50)
            .map(|number| {
                let ids = piece(number, 300).to_dtype(DType::U32).unwrap();
                let there = pinned.copy_tensor(&ids).unwrap();
                let picked = table.index_select(&there, 0).unwrap();
                drop(there);
                (picked, rows.index_select(&ids, 0).unwrap())
            })
            .collect();
        for (number, (there, here)) in picked.iter().enumerate() {
            assert_eq!(numbers(there), numbers(here), "piece {number}");
        }
    });
}

// INV-70
#[test]
fn two_replicas_use_a_piece_and_two_threads_bring_some() {
    watched(|| {
        let Some((device, pinned)) = gpu(2) else { return };
        let _work = busy(&device);
        let shared = pinned.copy_tensor(&piece(1, 5000)).unwrap();
        std::thread::scope(|scope| {
            for replica in 0..2 {
                let (shared, pinned) = (shared.clone(), &pinned);
                scope.spawn(move || {
                    let sum = |number| (&shared + pinned.copy_tensor(&piece(number, 5000)).unwrap()).unwrap();
                    let sums: Vec<_> = (0..20).map(|step| sum(2 * step + replica)).collect();
                    for (step, sum) in sums.iter().enumerate() {
                        let own = numbers(&piece(2 * step + replica, 5000));
                        let expected: Vec<f64> =
                            numbers(&piece(1, 5000)).iter().zip(own).map(|(a, b)| a + b).collect();
                        assert_eq!(numbers(sum), expected, "replica {replica}, step {step}");
                    }
                });
            }
        });
    });
}
