//! The loss of a worker that sends compressed gradients. Its residuals are lost; the other workers keep theirs.

use crate::recovery::autoencoder::{self, Outcome, Program};
use crate::recovery::program::{At, Place, Task};
use crate::recovery::threads::train;
use distribute::strategy::Compression;
use distribute::{ReduceOp, ReplicaContext, Result};
use distribute_testing::watched;

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
