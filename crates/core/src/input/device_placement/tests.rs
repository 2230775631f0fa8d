//! Tests when per-replica batches are copied to devices, and on which thread. The devices do not exist.

use super::*;
use crate::checkpoint::Checkpoint;
use crate::input::DistributedDataset;
use crate::testing::{mirrored, on_threads};
use candle_core::Device;
use distribute_data::Dataset;
use distribute_tensor::HostTensor;
use distribute_testing::watched;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

/// A candle tensor, and ids that stay on the host.
type Both = (Tensor, HostTensor);

/// The replica whose batch was copied, the first value in the batch, and the thread that made the copy.
type CopyRecord = (usize, u32, ThreadId);

/// Returns `range(20).batch(4)` as tensors of both kinds, for two replicas, with `ahead` steps prepared in advance.
fn data(ahead: usize) -> DistributedDataset<Both> {
    let numbers = Dataset::from_slices(Tensor::arange(0u32, 20, &Device::Cpu).unwrap()).unwrap();
    let ids = Dataset::from_slices(HostTensor::vector((0..20i64).collect())).unwrap();
    let options = InputOptions { per_replica_buffer_size: ahead, ..Default::default() };
    let strategy = mirrored(2);
    strategy.distribute_dataset_with(numbers.zip(&ids).batch(4), options).unwrap()
}

fn first(tensor: &Tensor) -> candle_core::Result<u32> {
    tensor.get(0)?.to_scalar()
}

fn to_gpus(
    copy: impl Fn(usize, &Tensor) -> candle_core::Result<Tensor> + Send + Sync + 'static,
) -> DevicePlacement {
    DevicePlacement::Copied((0..2).map(DeviceName::gpu).collect(), Arc::new(copy))
}

/// Returns a placement that sends a record of each copy to `copied`, and adds 100 to the copied values.
fn noted(copied: Sender<CopyRecord>) -> DevicePlacement {
    to_gpus(move |replica, tensor| {
        let sent = copied.send((replica, first(tensor)?, std::thread::current().id()));
        sent.map_err(candle_core::Error::wrap)?;
        tensor + &Tensor::full(100u32, tensor.dims(), tensor.device())?
    })
}

fn next(copied: &Receiver<CopyRecord>) -> CopyRecord {
    copied.recv_timeout(Duration::from_secs(20)).expect("no copy was made")
}

/// Returns the numbers and the ids of each replica in a step.
fn seen(step: &distribute_values::PerReplica<Both>) -> Vec<(Vec<u32>, Vec<i64>)> {
    step.iter().map(|(numbers, ids)| (numbers.to_vec1().unwrap(), ids.to_vec().unwrap())).collect()
}

// IN-4, IN-7
#[test]
fn the_next_steps_are_copied_before_they_are_asked_for_and_a_pass_goes_on_with_them() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for ahead in [1usize, 2] {
            let path = folder.path().join(ahead.to_string());
            let (sender, copied) = channel();
            let data = data(ahead);
            let mut pass = data.pass(Ok(noted(sender)));
            assert_eq!(
                seen(&pass.next().unwrap().unwrap()),
                [(vec![100, 101], vec![0, 1]), (vec![102, 103], vec![2, 3])]
            );
            for batch in 0..2 * (1 + ahead) {
                let (replica, number, thread) = next(&copied);
                assert_eq!((replica, number), (batch % 2, 2 * batch as u32));
                assert_ne!(thread, std::thread::current().id());
            }
            // The next step is already prepared; the position is still that of the taken one.
            assert_eq!((pass.position().steps, data.position().steps), (1, 1));
            Checkpoint::new().part("input", &data).save(&path).unwrap();
            drop(pass);

            let restored = self::data(ahead);
            Checkpoint::new().part("input", &restored).restore(&path).unwrap();
            let (sender, copied) = channel();
            let steps: Vec<_> = restored.pass(Ok(noted(sender))).map(|step| seen(&step.unwrap())).collect();
            assert_eq!(steps.len(), 4);
            assert_eq!(steps[0], [(vec![104, 105], vec![4, 5]), (vec![106, 107], vec![6, 7])]);
            assert_eq!(
                copied.iter().map(|(_, number, _)| number).collect::<Vec<_>>(),
                [4, 6, 8, 10, 12, 14, 16, 18]
            );
        }
    });
}

// IN-4, IN-7
#[test]
fn without_steps_ahead_a_step_is_copied_when_it_is_asked_for() {
    let (sender, copied) = channel();
    let mut pass = data(0).pass(Ok(noted(sender)));
    for step in 0..2 {
        assert!(copied.try_recv().is_err());
        pass.next().unwrap().unwrap();
        let here = std::thread::current().id();
        assert_eq!(copied.try_iter().collect::<Vec<_>>(), [(0, 4 * step, here), (1, 4 * step + 2, here)]);
    }
}

// INV-3
#[test]
fn a_failed_copy_ends_the_pass_in_its_step_without_loss() {
    watched(|| {
        for ahead in [0, 1, 3] {
            let data = data(ahead);
            let full = Arc::new(AtomicBool::new(true));
            let placement = || {
                let full = full.clone();
                Ok(to_gpus(move |replica, tensor| match (replica, first(tensor)?) {
                    (1, 10) if full.load(Ordering::SeqCst) => candle_core::bail!("out of memory\nat 0x0"),
                    _ => Ok(tensor.clone()),
                }))
            };
            let mut pass = data.pass(placement());
            for _ in 0..2 {
                pass.next().unwrap().unwrap();
            }
            let error = pass.next().unwrap().unwrap_err();
            let batch = matches!(
                &error,
                Error::Data(distribute_data::Error::Piece { step: 2, replica: 1, cause })
                    if matches!(cause.downcast_ref(), Some(Error::Device { .. }))
            );
            assert!(batch, "{error:?}");
            assert_eq!(
                error.to_string(),
                "step 2: the batch of local replica 1 cannot be prepared: device \
                 \"/job:localhost/replica:0/task:0/device:GPU:1\": a candle tensor uint32[2] of the dataset \
                 cannot be copied there: out of memory"
            );
            assert!(pass.next().is_none(), "the pass is over");
            assert_eq!(data.position().steps, 2);
            full.store(false, Ordering::SeqCst);
            data.resume(data.position()).unwrap();
            let rest = data.pass(placement()).flat_map(|step| seen(&step.unwrap()));
            assert_eq!(rest.flat_map(|(_, ids)| ids).collect::<Vec<_>>(), (8..20).collect::<Vec<_>>());
        }
    });
}

// ITER-4
#[test]
fn a_failed_copy_of_one_worker_ends_the_step_of_all_workers() {
    watched(|| {
        let ended = on_threads(2, 1, |strategy| {
            let numbers = Tensor::arange(0u32, 12, &Device::Cpu)?;
            let data = strategy.distribute_dataset(Dataset::from_slices(numbers)?.batch(4))?;
            let mut pass = data.pass(Ok(to_gpus(move |_, tensor| match first(tensor)? {
                6 => candle_core::bail!("out of memory"),
                _ => Ok(tensor.clone()),
            })));
            pass.next().unwrap()?;
            let error = pass.next().unwrap().map(drop).unwrap_err();
            assert_eq!(data.position().steps, 1);
            Ok((matches!(error, Error::Worker { worker: 1, .. }), error.to_string()))
        })
        .unwrap();
        assert!(ended[0].0, "{ended:?}");
        for (_, error) in &ended {
            assert!(
                error.contains("step 1: the batch of local replica 0") && error.contains("out of memory")
            );
        }
    });
}

// ITER-2, ITER-4
#[test]
fn an_empty_piece_that_cannot_be_copied_ends_the_step_of_all_and_no_worker_takes_it() {
    watched(|| {
        let ended = on_threads(2, 1, |strategy| {
            let data = strategy.distribute_datasets_from_function(|context| {
                let numbers = Tensor::arange(0u32, 4, &Device::Cpu)?;
                Ok(Dataset::from_slices(numbers)?
                    .take(if context.input_pipeline_id == 0 { 4 } else { 2 })
                    .batch(2))
            })?;
            let mut pass = data.pass(Ok(to_gpus(move |_, tensor| match tensor.elem_count() {
                0 => candle_core::bail!("out of memory"),
                _ => Ok(tensor.clone()),
            })));
            pass.next().unwrap()?;
            // Worker 0 has two rows more.
            let error = pass.next().unwrap().map(drop).unwrap_err();
            assert_eq!((data.position().steps, pass.position().steps), (1, 1));
            Ok((matches!(error, Error::Worker { worker: 1, .. }), error.to_string()))
        })
        .unwrap();
        assert!(ended[0].0, "{ended:?}");
        assert!(ended.iter().all(|(_, error)| error.contains("out of memory")), "{ended:?}");
    });
}

// ITER-2
#[test]
fn an_empty_piece_keeps_none_of_the_pieces_that_were_copied() {
    watched(|| {
        let strategy = mirrored(2);
        let data = strategy.distribute_datasets_from_function(|_| {
            let numbers = Tensor::arange(0f32, 36., &Device::Cpu)?.reshape((6, 6))?;
            Ok(Dataset::from_slices(numbers)?.batch(2))
        });
        let data = data.unwrap();
        let memory = |tensor: &Tensor| match &*tensor.storage_and_layout().0 {
            candle_core::Storage::Cpu(candle_core::CpuStorage::F32(all)) => all.len(),
            _ => 0,
        };
        let mut pass = data.pass(Ok(to_gpus(|_, tensor| match tensor.elem_count() {
            0 => Ok(tensor.clone()),
            _ => tensor.force_contiguous(),
        })));
        let first = pass.next().unwrap().unwrap();
        assert_eq!(first.iter().map(memory).collect::<Vec<_>>(), [12, 12]);
        let last = pass.next().unwrap().unwrap();
        assert_eq!(last.iter().map(|batch| batch.dims().to_vec()).collect::<Vec<_>>(), [[2, 6], [0, 6]]);
        assert_eq!(last.iter().map(memory).collect::<Vec<_>>(), [12, 6], "a whole piece is kept");
    });
}
