//! Variables that have drifted on a minority of the workers, and are healed with the state of another worker.

use super::replicated::assert_copies;
use candle_core::{Device, Tensor, Var};
use candle_nn::{Module, linear};
use distribute::checkpoint::{Checkpointed, Reader, Restore, Writer};
use distribute::cluster::Fault;
use distribute::strategy::Links;
use distribute::{
    Adam, Checkpoint, Dataset, Error, MultiWorkerMirroredStrategy, Result, Strategy, Training, Variable,
};
use distribute_collective::group::local;
use distribute_testing::watched;
use std::cell::Cell;
use std::thread;

/// A training in which weights drift, as a case of a test.
#[derive(Clone, Copy)]
struct Case {
    workers: usize,
    /// The workers on which a bit flips in the middle of the training.
    culprits: &'static [usize],
    /// The number of steps within which all variables are compared.
    every: u64,
    /// A function that returns whether a worker enables healing.
    heals: fn(usize) -> bool,
    /// Whether the variable that drifts is a component of the training's state.
    is_component: bool,
    sharded: bool,
    /// Whether each worker has a copy of another worker's shard.
    replicated: bool,
    /// Whether a component of the training cannot be saved.
    is_unsaved: bool,
}

const CASE: Case = Case {
    workers: 3,
    culprits: &[1],
    every: 1,
    heals: |_| true,
    is_component: true,
    sharded: false,
    replicated: false,
    is_unsaved: false,
};

/// The number of steps before a bit flips.
const BEFORE: u64 = 5;

/// A component of the training's state, which may be one that cannot be saved.
struct Component {
    is_unsaved: bool,
}

impl Checkpointed for Component {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        if self.is_unsaved { Err(Error::other("it cannot be saved")) } else { Ok(()) }
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

fn flip(variable: &Var) -> Result<()> {
    let mut elements = variable.flatten_all()?.to_vec1::<f32>()?;
    elements[3] = f32::from_bits(elements[3].to_bits() ^ 1 << 22);
    Ok(variable.set(&Tensor::from_vec(elements, variable.dims(), &Device::Cpu)?)?)
}

/// Trains, and returns the checksum of the weights and the number of times that the closure was called.
fn train(strategy: &Strategy, case: Case) -> Result<(String, u32)> {
    let other = strategy
        .scope(|| Variable::new("other", Tensor::zeros(8, candle_core::DType::F32, &Device::Cpu)?))?;
    let outputs = if case.replicated { 2000 } else { 3 };
    let model = strategy.replicate(move |vb| linear(4, outputs, vb.pp("fc")))?;
    let mut optimizer = Adam::new(&model.variables, 0.05)?;
    if case.sharded {
        optimizer = optimizer.shard_state()?;
    }
    if case.replicated {
        optimizer = optimizer.shard_state_replicated()?;
    }
    let points = Tensor::arange(0f32, 96., &Device::Cpu)?.sin()?.reshape((24, 4))?;
    let batches = strategy.distribute_dataset(Dataset::from_slices(points)?.shuffle(24, 3).batch(6))?;
    let state = Checkpoint::new().part("strategy", strategy).part("model", &model.variables);
    let component = Component { is_unsaved: case.is_unsaved };
    let state = state.part("optimizer", &optimizer).part("batches", &batches).part("component", &component);
    let training = Training::builder(state);
    let heals = (case.heals)(strategy.world().worker());
    let training = if heals { training.heal_drift() } else { training };
    let (training, has_flipped, begun) = (training.build()?, Cell::new(false), Cell::new(0));
    let trained = training.run(|| {
        begun.set(begun.get() + 1);
        while batches.position().epoch < 4 {
            for batch in &batches {
                let is_time = optimizer.finished_steps() == BEFORE
                    && !has_flipped.replace(optimizer.finished_steps() >= BEFORE);
                if is_time && case.culprits.contains(&strategy.world().worker()) {
                    if case.is_component {
                        flip(&model.variables.trainable()?[1].1)?;
                    } else {
                        other.assign(Tensor::ones(8, candle_core::DType::F32, &Device::Cpu)?)?;
                    }
                }
                strategy.run((&model, batch?), |ctx, (model, points)| {
                    optimizer.minimize(ctx, model.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?)
                })?;
            }
        }
        Ok(())
    });
    if case.is_unsaved {
        // The group is the same, so steps are still possible.
        assert!(trained.is_err());
        strategy.run((), |_, ()| Ok(()))?;
    }
    trained?;
    if case.replicated {
        assert_copies(strategy, &optimizer)?;
    }
    Ok((model.variables.sha256()?, begun.get()))
}

fn trained(case: Case) -> Vec<Result<(String, u32)>> {
    watched(move || {
        let groups = local::groups(Links::Memory, case.workers, 1).unwrap();
        thread::scope(|scope| {
            let start = |group| {
                scope.spawn(move || {
                    let builder = MultiWorkerMirroredStrategy::builder().group(group);
                    train(&builder.check_drift_every(case.every).build()?, case)
                })
            };
            let threads: Vec<_> = groups.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    })
}

/// Returns the error of each worker, all of which must fail.
fn errors(case: Case) -> Vec<Error> {
    trained(case).into_iter().map(|result| result.unwrap_err()).collect()
}

// INV-105
#[test]
fn weights_after_healing_are_those_of_an_undisturbed_training() {
    for (workers, culprits) in [(3, &[0][..]), (3, &[1]), (3, &[2]), (5, &[0, 3])] {
        let case = Case { workers, ..CASE };
        let undisturbed = trained(Case { culprits: &[], ..case }).remove(0).unwrap();
        assert_eq!(undisturbed.1, 1);
        for healed in trained(Case { culprits, ..case }) {
            assert_eq!(healed.unwrap(), (undisturbed.0.clone(), 2), "{culprits:?} of {workers}");
        }
    }
}

// INV-105
#[test]
fn drift_that_is_found_later_leaves_all_workers_with_the_same_weights() {
    let all: Vec<_> = trained(Case { every: 4, ..CASE }).into_iter().map(Result::unwrap).collect();
    assert!(all.iter().all(|one| *one == all[0]) && all[0].1 == 2, "{all:?}");
}

// INV-105
#[test]
fn without_a_majority_or_the_option_all_workers_get_the_error() {
    for case in [Case { workers: 2, ..CASE }, Case { heals: |_| false, ..CASE }] {
        let errors = errors(case);
        let text = super::one_message(&errors, &["run: before step 6, variable fc.", "restore a checkpoint"]);
        assert!(matches!(errors[0], Error::Drift { step: 6, .. }), "{text}");
    }
}

// INV-105
#[test]
fn a_variable_outside_of_the_state_is_named_after_the_attempt() {
    let errors = errors(Case { is_component: false, ..CASE });
    let text =
        super::one_message(&errors, &["variable other (float32[8]) on worker 1 is not that of the other 2"]);
    assert!(matches!(errors[0], Error::Drift { .. }), "{text}");
}

// INV-105, INV-109
#[test]
fn a_sharded_state_with_copies_is_healed() {
    let case = Case { replicated: true, ..CASE };
    let undisturbed = trained(Case { culprits: &[], ..case }).remove(0).unwrap();
    for culprits in [&[0][..], &[1], &[2]] {
        for healed in trained(Case { culprits, ..case }) {
            assert_eq!(healed.unwrap(), (undisturbed.0.clone(), 2), "{culprits:?}");
        }
    }
    // The shards of neighbours cannot be replaced.
    let errors = errors(Case { workers: 5, culprits: &[0, 4], ..case });
    assert!(errors.iter().all(|error| matches!(error, Error::Drift { .. })), "{errors:#?}");
}

#[test]
fn a_state_that_is_spread_over_the_workers_is_not_healed() {
    let errors = errors(Case { sharded: true, ..CASE });
    assert!(errors.iter().all(|error| matches!(error, Error::Drift { .. })), "{errors:#?}");
}

// INV-105
#[test]
fn a_worker_with_another_setting_is_named_when_the_training_is_created() {
    let errors = errors(Case { heals: |worker| worker != 1, ..CASE });
    super::one_message(&errors, &["heal_drift"]);
    let blame = errors[0].blame().unwrap();
    assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Mismatch, &[1][..]), "{blame}");
}

// INV-105
#[test]
fn after_a_transfer_that_failed_the_next_step_reports_the_drift_again() {
    let errors = errors(Case { is_unsaved: true, ..CASE });
    assert!(errors.iter().all(|error| matches!(error, Error::Drift { step: 6, .. })), "{errors:#?}");
}
