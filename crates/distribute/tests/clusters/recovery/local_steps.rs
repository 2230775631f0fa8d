//! The loss of a worker that trains alone. Its replacement continues with the state of another worker. Residuals of
//! compressed outer steps are lost with the worker; the others keep theirs.

use crate::recovery::autoencoder::{self, Outcome, Program};
use crate::recovery::program::{At, Place, Task};
use crate::recovery::threads::train;
use distribute::strategy::{Compression, LocalSteps, Outer};
use distribute::{Result, Sgd};
use distribute_testing::watched;

const DILOCO: Outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };

fn program(task: &Task, at: &At, local: LocalSteps) -> Result<Outcome> {
    compressed(task, at, local, Compression::None)
}

fn compressed(task: &Task, at: &At, local: LocalSteps, form: Compression) -> Result<Outcome> {
    let strategy = task.builder()?.local_steps(local).compression(form).build()?;
    autoencoder::train(&strategy, at, |_| Ok(()), |optimizer| optimizer.finish_local_steps())
}

// INV-42
fn assert_converges(places: &'static [Place], run: Program) {
    watched(move || {
        let undisturbed = train(2, 1, None, run);
        assert_eq!(undisturbed[0].0, undisturbed[1].0);
        for place in places {
            let all = train(2, 1, Some((1, *place)), run);
            assert_eq!(all[0].0, all[1].0, "{place:?}: {all:?}");
            for ((_, generation, loss), (_, _, expected)) in all.iter().zip(&undisturbed) {
                assert_eq!(*generation, 2, "{place:?}");
                assert!(*loss < 1.5 * expected + 0.01, "{place:?}: {loss} and {expected}");
            }
        }
    });
}

#[test]
fn all_workers_agree_after_the_loss_of_one_that_trained_alone() {
    // Outer steps after the 3rd, 6th, 9th step: a worker is lost after the 5th, and in the 7th.
    fn diloco(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, LocalSteps { steps: 3, outer: DILOCO })
    }
    assert_converges(&[Place::Between, Place::InStep, Place::AfterUpdate], diloco);
}

#[test]
fn all_workers_agree_after_the_loss_of_one_in_an_outer_step() {
    // An outer step after the 7th step, in which a worker is lost.
    fn average(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, LocalSteps { steps: 7, outer: Outer::Average })
    }
    assert_converges(&[Place::InStep, Place::AfterUpdate], average);
}

// INV-42, INV-98
#[test]
fn a_loss_right_after_an_outer_step_changes_no_bit_if_the_rule_has_no_slots() {
    fn diloco(task: &Task, at: &At) -> Result<Outcome> {
        // A worker is lost after the 5th step.
        let strategy = task.builder()?.local_steps(LocalSteps { steps: 5, outer: DILOCO }).build()?;
        let sgd = |variables: &_| Sgd::new(variables, 0.1);
        autoencoder::train_with(&strategy, at, sgd, |_| Ok(()), |optimizer| optimizer.finish_local_steps())
    }
    watched(|| {
        let undisturbed = train(2, 1, None, diloco).remove(0);
        for (weights, generation, loss) in train(2, 1, Some((1, Place::Between)), diloco) {
            assert_eq!((weights, generation), (undisturbed.0.clone(), 2), "{loss} and {}", undisturbed.2);
        }
    });
}

#[test]
fn all_workers_agree_after_the_loss_of_one_with_residuals() {
    // The replacement has no residuals in the outer step after the 9th step.
    fn eight_bits(task: &Task, at: &At) -> Result<Outcome> {
        compressed(task, at, LocalSteps { steps: 3, outer: DILOCO }, Compression::EightBits)
    }
    fn top_k(task: &Task, at: &At) -> Result<Outcome> {
        compressed(task, at, LocalSteps { steps: 2, outer: Outer::Average }, Compression::TopK)
    }
    assert_converges(&[Place::Between, Place::InStep, Place::AfterUpdate], eight_bits);
    assert_converges(&[Place::Between], top_k);
}

#[test]
fn all_workers_agree_after_the_loss_of_one_in_a_compressed_outer_step() {
    // An outer step after the 7th step, in which a worker is lost, and after the 14th.
    fn low_rank(task: &Task, at: &At) -> Result<Outcome> {
        compressed(task, at, LocalSteps { steps: 7, outer: DILOCO }, Compression::LowRank { rank: 2 })
    }
    assert_converges(&[Place::InStep, Place::AfterUpdate], low_rank);
}
