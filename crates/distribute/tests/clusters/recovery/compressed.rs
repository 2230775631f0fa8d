//! The loss of a worker that sends compressed gradients. Its residuals are lost; the other workers keep theirs.

use crate::recovery::autoencoder::{self, Outcome, Program};
use crate::recovery::program::{At, Place, Task};
use crate::recovery::threads::train;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::checkpoint::Reader;
use distribute::strategy::{Compression, LocalSteps, Outer};
use distribute::{Error, ReduceOp, ReplicaContext, Result, prelude::*};
use distribute_testing::watched;
use std::cell::Cell;

fn program(task: &Task, at: &At, form: Compression) -> Result<Outcome> {
    let strategy = task.builder()?.compression(form).build()?;
    let all_reduce = |ctx: &ReplicaContext| ctx.all_reduce(ReduceOp::Sum, 1f32).map(drop);
    autoencoder::train(&strategy, at, all_reduce, |_| Ok(()))
}

// INV-42
fn assert_converges(places: &'static [Place], run: Program) {
    watched(move || {
        let (undisturbed, _, loss) = train(2, 1, None, run).remove(0);
        for place in places {
            let all = train(2, 1, Some((1, *place)), run);
            assert!(all.iter().all(|one| one == &all[0]), "{place:?}: {all:?}");
            let (weights, generation, after) = &all[0];
            assert_eq!(*generation, 2);
            // The residual of the lost worker was not zero.
            assert_ne!(*weights, undisturbed, "{place:?}");
            assert!(*after < 1.5 * loss + 0.01, "{place:?}: {after} and {loss}");
        }
    });
}

#[test]
fn all_workers_have_the_same_weights_after_a_loss() {
    fn eight_bits(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, Compression::EightBits)
    }
    assert_converges(&[Place::InStep, Place::AfterUpdate], eight_bits);
}

#[test]
fn all_workers_have_the_same_factors_after_a_loss() {
    fn low_rank(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, Compression::LowRank { rank: 2 })
    }
    assert_converges(&[Place::Between], low_rank);
}

/// Trains. After the loss of a worker, returns on the chief the workers whose residuals are not zero before the next
/// step is made.
fn left_over(task: &Task, at: &At, local: LocalSteps) -> Result<Option<Vec<usize>>> {
    let builder = task.builder()?.compression(Compression::TopK).local_steps(local);
    let strategy = builder.build()?;
    let model = strategy.replicate_seeded(3, |vb| linear(40, 64, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let parts = || {
        let parts = Checkpoint::new().part("strategy", &strategy).part("model", &model.variables);
        parts.part("optimizer", &optimizer)
    };
    let training = Training::new(parts())?;
    let found = Cell::new(None);
    training.run(|| {
        if training.generation() == 2 {
            let folder = tempfile::tempdir().map_err(Error::other)?;
            let path = folder.path().join("after");
            parts().save(&path)?;
            if strategy.is_chief() {
                found.set(Some(not_zero(&Reader::open(&path)?, strategy.world().workers())?));
            }
        }
        while optimizer.finished_steps() < 8 {
            if optimizer.finished_steps() == 4 {
                at(Place::Between)?;
            }
            strategy.run(&model, |ctx, fc| {
                let step = optimizer.finished_steps() as f64 + ctx.replica_id_in_sync_group() as f64;
                let x = Tensor::arange(0f32, 80., &Device::Cpu)?.affine(0.3, step)?.sin()?;
                optimizer.minimize(ctx, fc.forward(&x.reshape((2, 40))?)?.sqr()?.mean_all()?, 2)
            })?;
        }
        Ok(())
    })?;
    Ok(found.take())
}

/// Returns the workers, or replicas, whose residuals in a checkpoint are not zero.
fn not_zero(checkpoint: &Reader, workers: usize) -> Result<Vec<usize>> {
    let mut all = Vec::new();
    for worker in 0..workers {
        let name = format!("optimizer/compression/residual/{worker}/fc.weight");
        let residual = checkpoint.tensor(&name)?.into_vec::<f32>()?;
        all.extend(residual.iter().any(|x| *x != 0.).then_some(worker));
    }
    Ok(all)
}

// INV-42, INV-94. A worker that has sent a packet of a step that it has not completed: `changed.rs`.
#[test]
fn the_other_workers_keep_their_residuals_in_lock_step_and_after_local_steps() {
    fn lock_step(task: &Task, at: &At) -> Result<Option<Vec<usize>>> {
        left_over(task, at, LocalSteps { steps: 1, outer: Outer::Average })
    }
    fn local(task: &Task, at: &At) -> Result<Option<Vec<usize>>> {
        left_over(task, at, LocalSteps { steps: 2, outer: Outer::Average })
    }
    watched(|| {
        for program in [lock_step, local] {
            for (lost, others) in [(0, [1, 2]), (1, [0, 2])] {
                let found = train(3, 1, Some((lost, Place::Between)), program).remove(0);
                assert_eq!(found.as_deref(), Some(&others[..]));
            }
        }
    });
}
