//! Passes that take each step before they yield the previous one.

use crate::input::{ids, steps};
use crate::support::mirrored;
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::checkpoint::Checkpointed;
use distribute::data::Dataset;
use distribute::input::DistributedDataset;
use distribute::{Error, HostTensor, Result, Sgd};
use distribute_testing::watched;
use std::cell::RefCell;

fn data() -> DistributedDataset<HostTensor> {
    mirrored(2).distribute_dataset(Dataset::range(23).shuffle(23, 5).batch(4)).unwrap()
}

fn nothing(_: &HostTensor) -> Result<()> {
    Ok(())
}

/// Returns the ids of a pass that takes each step early, by step and replica.
fn early_steps(data: &DistributedDataset<HostTensor>) -> Vec<Vec<Vec<i64>>> {
    data.iter().look_ahead(nothing).map(ids).collect()
}

/// Checks that the closure gets each batch before the previous step is yielded.
#[test]
fn batches_are_seen_one_step_early() {
    let (data, seen) = (data(), RefCell::new(Vec::new()));
    let look = |batch: &HostTensor| -> Result<()> {
        seen.borrow_mut().push(batch.to_vec::<i64>()?);
        Ok(())
    };
    let mut yielded = Vec::new();
    for step in data.iter().look_ahead(look) {
        yielded.extend(ids(step));
        let (early, late) = (seen.borrow().len(), yielded.len());
        assert!(early == late + 2 || (early == 12 && late == 12), "{early} {late}");
    }
    assert_eq!(*seen.borrow(), yielded);
    // The next pass is the next epoch.
    let other = self::data();
    assert_eq!(yielded, steps(&other).concat());
    assert_eq!(early_steps(&data), steps(&other));
}

/// Checks that a step that was taken early but not yielded is not part of a position, so a resumed pass takes it again.
// INV-103
#[test]
fn a_step_that_was_not_yielded_is_taken_again() {
    let all = steps(&data());
    for count in 0..=all.len() {
        let (data, plain) = (data(), data());
        let mut pass = data.iter().look_ahead(nothing);
        let mut plain_pass = plain.iter();
        for step in &all[..count] {
            assert_eq!(ids(pass.next().unwrap()), *step);
            plain_pass.next().unwrap().unwrap();
            assert_eq!((pass.position(), data.position()), (plain_pass.position(), plain.position()));
        }
        let resumed = self::data();
        resumed.resume(data.position()).unwrap();
        assert_eq!(early_steps(&resumed), all[count..]);
        // The end of the pass is recorded when it is yielded.
        assert_eq!(data.position().epoch, 0);
        assert_eq!(pass.by_ref().count(), all.len() - count);
        assert_eq!(data.position().epoch, 1);
        assert!(pass.next().is_none());
        assert_eq!(data.position().epoch, 1);
    }
}

/// Checks that after a failed step, a dataset continues with the batch that is not in the weights.
// INV-103
#[test]
fn a_failed_step_is_repeated() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        let data = strategy.distribute_dataset(Dataset::range(12).batch(2)).unwrap();
        let train = |w: &Tensor, ctx: &distribute::ReplicaContext, batch: &HostTensor| {
            let x = Tensor::new(batch.to_vec::<i64>()?, &Device::Cpu)?.to_dtype(candle_core::DType::F32)?;
            optimizer.minimize(ctx, w.broadcast_mul(&x)?.sum_all()?, 1)
        };
        let mut made = Vec::new();
        for attempt in 0..2 {
            for batch in data.iter().look_ahead(nothing) {
                let batch = batch.unwrap();
                let first = batch.values()[0].to_vec::<i64>().unwrap()[0];
                let result = strategy.run((&model, batch), |ctx, (w, batch)| match first {
                    6 if attempt == 0 => Err(Error::other("lost")),
                    _ => train(w, ctx, &batch),
                });
                match result {
                    Ok(_) => made.push(first),
                    Err(_) => break,
                }
            }
            data.rewind().unwrap();
        }
        assert_eq!(made, [0, 2, 4, 6, 8, 10]);
    });
}

/// Checks that an error is returned in place of its own step, after the steps before it.
#[test]
fn errors_are_in_the_place_of_their_steps() {
    let fails = |id: i64| if id == 9 { Err("no nine") } else { Ok(id) };
    let data = mirrored(2).distribute_dataset(Dataset::range(20).try_map(fails).batch(4)).unwrap();
    let mut pass = data.iter().look_ahead(nothing);
    assert_eq!(ids(pass.next().unwrap()), [[0, 1], [2, 3]]);
    assert_eq!(ids(pass.next().unwrap()), [[4, 5], [6, 7]]);
    assert!(pass.next().unwrap().unwrap_err().to_string().contains("no nine"));
    assert!(pass.next().is_none());
    assert_eq!(data.position().steps, 2);

    let data = self::data();
    let (all, count) = (steps(&self::data()), RefCell::new(0));
    let mut pass = data.iter().look_ahead(|_: &HostTensor| {
        *count.borrow_mut() += 1;
        if *count.borrow() == 6 { Err(Error::other("unknown id")) } else { Ok(()) }
    });
    assert_eq!(ids(pass.next().unwrap()), all[0]);
    assert_eq!(ids(pass.next().unwrap()), all[1]);
    assert_eq!(pass.next().unwrap().unwrap_err().to_string(), "unknown id");
    assert!(pass.next().is_none());
    assert_eq!(data.position().steps, 2);
}
