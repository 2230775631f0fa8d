//! Tests of the device on which a step computes, in a process that treats CPUs as devices with separate memory.

use crate::slots::Slots;
use crate::{Adagrad, Adam, Transform};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute_base::internal::WAITS;
use distribute_core::lookup::BagMode;
use distribute_core::{ReplicaContext, Strategy};
use distribute_nn::{Embedding, EmbeddingBag, Linear, embedding, embedding_bag, linear};
use distribute_strategies::{MirroredStrategy, OneDeviceStrategy};
use distribute_testing::{child, watched};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn generic(test: &str, body: impl FnOnce() + Send + 'static) {
    if child::part().is_some() {
        return watched(body);
    }
    let mut command = child::command(test, "generic");
    command.env("DISTRIBUTE_GENERIC_DEVICES", "1");
    child::output(command, Duration::from_secs(100));
}

// INV-69
#[test]
fn a_lone_replica_waits_for_its_device_where_its_losses_are_read_and_nowhere_else() {
    const TEST: &str = "update::devices::tests::a_lone_replica_waits_for_its_device_where_its_losses_are_read_and_nowhere_else";
    generic(TEST, || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        type Model = (Embedding, EmbeddingBag, Linear);
        let built = |vb: VarBuilder| -> candle_core::Result<Model> {
            let bag = embedding_bag(7, 3, BagMode::Mean, vb.pp("bag"))?;
            Ok((embedding(5, 3, vb.pp("words"))?, bag, linear(3, 2, vb.pp("fc"))?))
        };
        let model = strategy.replicate(built).unwrap();
        let optimizer = Adagrad::new(&model.variables, 0.1)
            .unwrap()
            .before_reduce(Transform::clip_by_value(-1., 1.))
            .unwrap()
            .after_reduce(Transform::clip_by_global_norm(1.))
            .unwrap();
        let ids = Tensor::new(&[[0u32, 4], [4, 2]], &Device::Cpu).unwrap();
        let step = |ctx: &ReplicaContext, (words, bag, fc): &Model| {
            let rows = (words.forward(&ids)?.sum(1)? + bag.forward(&ids)?)?;
            optimizer.minimize(ctx, fc.forward(&rows)?.sqr()?.mean_all()?, 2)
        };
        let untouched = model.variables.get("words.weight").unwrap();
        let before = WAITS.load(Ordering::Relaxed);
        for _ in 0..63 {
            strategy.run(&model, step).unwrap();
        }
        // After 1, 2, 4, 8, 16 and 32 steps.
        assert_eq!(WAITS.load(Ordering::Relaxed) - before, 6);
        let slots = optimizer.inner.progress.read("test").unwrap();
        assert!(slots.iter().all(|slots| matches!(slots, Slots::OnDevices(all) if all.len() == 1)));
        drop(slots);
        let words = model.variables.get("words.weight").unwrap();
        for row in 0..5usize {
            let values = |table: &Tensor| table.get(row).unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(values(&untouched) == values(&words), [1, 3].contains(&row), "row {row}");
        }
        // Reading a weight waits for that weight.
        let waits = || {
            model.variables.get("fc.weight").unwrap();
            WAITS.load(Ordering::Relaxed) - before
        };
        assert_eq!((waits(), waits()), (8, 8));
    });
}

// INV-69
#[test]
fn slots_of_several_replicas_are_on_each_device() {
    generic("update::devices::tests::slots_of_several_replicas_are_on_each_device", || {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let model = strategy.replicate(|vb: VarBuilder| linear(3, 2, vb)).unwrap();
        let optimizer = Adam::new(&model.variables, 0.1).unwrap();
        let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap();
        for _ in 0..3 {
            strategy
                .run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.mean_all()?, 4))
                .unwrap();
        }
        for slots in optimizer.inner.progress.read("test").unwrap().iter() {
            let Slots::OnDevices(all) = slots else { panic!("on the host") };
            let values = |slots: &Vec<Tensor>| -> Vec<Vec<f32>> {
                slots.iter().map(|slot| slot.flatten_all().unwrap().to_vec1().unwrap()).collect()
            };
            assert!(all.len() == 2 && values(&all[0]) == values(&all[1]) && all[0][0].id() != all[1][0].id());
        }
    });
}

// INV-69, INV-70
#[cfg(feature = "cuda")]
#[test]
fn a_lone_replica_makes_a_step_while_its_gpu_is_held_up() {
    use candle_core::backend::BackendDevice;
    use candle_nn::ModuleT;
    use distribute_base::DeviceName;
    use distribute_base::internal::hold_gpu;
    use distribute_data::Dataset;
    use distribute_nn::{BatchNorm, Dropout, batch_norm, loss};

    const TEST: &str = "update::devices::tests::a_lone_replica_makes_a_step_while_its_gpu_is_held_up";
    if child::part().is_none() {
        // Nothing else is on the GPU.
        child::output(child::command(TEST, "alone"), Duration::from_secs(100));
        return;
    }
    watched(|| {
        let device = match DeviceName::gpu(0).to_candle() {
            Ok(Device::Cuda(device)) => device,
            Ok(other) => panic!("{:?} is no GPU of CUDA", other.location()),
            Err(error) => return distribute_testing::skipped(error),
        };
        let strategy: Strategy = OneDeviceStrategy::new("gpu:0").unwrap();
        type Model = (Embedding, BatchNorm, Dropout, Linear);
        let built = |vb: VarBuilder| -> candle_core::Result<Model> {
            let norm = batch_norm(6, 1e-5, vb.pp("norm"))?;
            let fc = linear(6, 4, vb.pp("fc"))?;
            Ok((embedding(9, 6, vb.pp("words"))?, norm, Dropout::new(0.5, 1, "dropout")?, fc))
        };
        let model = strategy.replicate(built).unwrap();
        let optimizer = Adam::new(&model.variables, 0.1).unwrap();
        // Words, followed by the label.
        let rows = Tensor::from_iter((0..96i64).map(|i| i % 4), &Device::Cpu).unwrap();
        let rows = rows.reshape((32, 3)).unwrap();
        let data = Dataset::from_slices(rows).unwrap().batch(4);
        let data = strategy.distribute_dataset(data).unwrap();
        let mut step_number = 0;
        let (mut hold, mut losses) = (None, Vec::new());
        for rows in &data {
            step_number += 1;
            // By then, the kernels have been tried. Losses are read after steps 1, 3 and 7.
            if step_number == 4 {
                hold = Some(hold_gpu(&device));
            }
            type Arguments<'a> = (&'a Model, Tensor);
            let step = |ctx: &ReplicaContext, ((words, norm, dropout, fc), rows): Arguments<'_>| {
                let x = words.forward(&rows.narrow(1, 0, 2)?)?.sum(1)?;
                let x = dropout.forward(&norm.forward_t(&x, true)?.relu()?, true)?;
                let loss = loss::cross_entropy(&fc.forward(&x)?, &rows.get_on_dim(1, 2)?)?;
                optimizer.minimize(ctx, loss, rows.dim(0)?)
            };
            losses.push(strategy.run((&model, rows.unwrap()), step).unwrap());
            if step_number == 6 {
                let (go, said) = hold.take().unwrap();
                go.send(()).unwrap();
                device.synchronize().unwrap();
                assert!(said.recv_timeout(Duration::from_secs(20)).unwrap(), "a step has waited for the GPU");
            }
        }
        assert_eq!(losses.len(), 8);
    });
}
