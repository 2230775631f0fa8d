//! Steps in which a GPU has no memory, at any allocation: CUDA in software fails one allocation after another. A real
//! GPU fails none.

use super::gpus::{alone, on, with_gpus};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::nn::{self, Embedding, Linear};
use distribute::optimizer::Transform;
use distribute::optimizer::rules::{Adam, Momentum, Rule, Sgd};
use distribute::{Error, Optimizer, ReplicaContext, Strategy, Variables};
use distribute_testing::child::{command, output, part};
use std::time::Duration;

const TEST: &str = "memory::a_step_out_of_gpu_memory_changes_nothing_or_reports_that_it_was_applied";
const REFUSE: &str = "SOFT_CUDA_REFUSE";
/// The number of consecutive steps without an error after which all allocations, except optional ones, have failed
/// once.
const ENOUGH: usize = 12;

#[test]
fn a_step_out_of_gpu_memory_changes_nothing_or_reports_that_it_was_applied() {
    if part().is_some() {
        return each_allocation();
    }
    // In a separate process, because allocations of other tests would fail as well.
    with_gpus(2, || {
        output(command(TEST, "child"), Duration::from_secs(50));
    });
}

fn each_allocation() {
    for strategy in [alone("gpu:0"), on(&["gpu:0", "gpu:1"]), on(&["gpu:0", "cpu:0"])] {
        refused(&strategy, Adam::lazy(), false);
        refused(&strategy, Momentum::default(), true);
        refused(&strategy, Sgd, false);
    }
}

/// Checks the error for a variable that cannot be copied to a GPU. CUDA cannot allocate empty memory.
#[test]
fn a_variable_that_cannot_be_copied_to_a_gpu_is_named() {
    with_gpus(1, || {
        let none = alone("gpu:0").replicate(|vb| vb.get((0, 4), "none")).map(drop).unwrap_err();
        let text = none.to_string();
        assert!(matches!(none, Error::Device { .. }), "{text}");
        assert!(text.contains("GPU:0") && text.contains("variable none, float32[0, 4], cannot be"), "{text}");
    });
}

type Model = (Embedding, Linear);

fn refused<R: Rule>(strategy: &Strategy, rule: R, clips: bool) {
    let built = |vb: VarBuilder<'_>| -> candle_core::Result<Model> {
        let vb = vb.to_dtype(DType::F64);
        Ok((nn::embedding(9, 4, vb.pp("table"))?, nn::linear(4, 3, vb.pp("out"))?))
    };
    let model = strategy.replicate_seeded(3, built).unwrap();
    let mut optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
    if clips {
        optimizer = optimizer.after_reduce(Transform::clip_by_global_norm(0.5)).unwrap();
    }
    let step = || {
        strategy.run(&model, |ctx: &ReplicaContext, (table, out): &Model| {
            let ids = Tensor::new(&[ctx.replica_id_in_sync_group() as u32, 4], &Device::Cpu)?;
            let loss = out.forward(&table.forward(&ids)?)?.sqr()?.mean_all()?;
            optimizer.minimize(ctx, loss, 2)
        })
    };
    step().unwrap();
    let (mut number, mut in_a_row, mut failed) = (1, 0, 0);
    while in_a_row < ENOUGH {
        let (before, finished) = (state(&model.variables, &optimizer), optimizer.finished_steps());
        // SAFETY: of this process, in which no other thread asks for settings now.
        unsafe { std::env::set_var(REFUSE, number.to_string()) };
        let made = step();
        // SAFETY: as above.
        unsafe { std::env::remove_var(REFUSE) };
        number += 1;
        in_a_row += 1;
        if let Err(error) = made {
            (in_a_row, failed) = (0, failed + 1);
            let error = error.to_string();
            let was_made = error.contains("the step was applied, but");
            assert_eq!(optimizer.finished_steps(), finished + u64::from(was_made), "{number}: {error}");
            assert!(was_made || state(&model.variables, &optimizer) == before, "{number}: {error}");
        }
    }
    println!("{failed} refused of {number}");
}

/// Returns the bits of all weights and slots.
fn state<R: Rule>(variables: &Variables, optimizer: &Optimizer<R>) -> Vec<Vec<u64>> {
    let bits = |value: Tensor| -> Vec<u64> {
        let value: Vec<f64> = value.flatten_all().unwrap().to_vec1().unwrap();
        value.into_iter().map(f64::to_bits).collect()
    };
    let mut all: Vec<_> = variables.names().iter().map(|name| bits(variables.get(name).unwrap())).collect();
    for slot in optimizer.slot_names() {
        all.extend(optimizer.variable_names().map(|name| bits(optimizer.slot(name, slot).unwrap())));
    }
    all
}
