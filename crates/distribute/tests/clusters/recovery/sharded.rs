//! A worker with a shard of the optimizer's state is lost. With copies no step is lost, and the weights and slots are
//! those of a training without interruption.

use crate::multi_worker::replicated::assert_copies;
use crate::recovery::in_parent;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::program::{At, EPOCHS, Place, SAVE_EVERY, STEPS, Taken, Task};
use crate::recovery::worker::{self, GO, UPDATED};
use candle_core::{Device, Tensor};
use candle_nn::{Linear, Module, linear};
use distribute::checkpoint::CheckpointManager;
use distribute::nn::{Embedding, embedding};
use distribute::optimizer::rules::{self, Float, Formula, SlotSpec, Step};
use distribute::{Result, prelude::*};
use distribute_testing::child;
use rustix::process::Signal;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WORKER: &str = "recovery::sharded::a_worker_in_a_separate_process";

/// The number of rows of the table.
const ROWS: u32 = 1300;

/// The number of the step in which the locations inside a step are reached.
const STEP: u64 = 7;

/// A momentum rule with an average of the weights, which reaches a location when it computes the new weights of a step.
struct Watched(At);

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

impl Formula for Watched {
    type Slots<T: Copy> = [T; 2];

    fn label(&self) -> &'static str {
        "watched"
    }

    fn layout(&self) -> [SlotSpec; 2] {
        [SlotSpec::zeros("m"), SlotSpec::zeros("average")]
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 2]) -> (F, [F; 2]) {
        if at.number() == STEP {
            self.0(Place::InUpdate).unwrap();
        }
        let [beta, rest, rate] = [0.9, 0.1, at.learning_rate()].map(F::from_f64);
        move |var, grad, [m, average]| {
            let m = beta * m + grad;
            (var - rate * m, [m, beta * average + rest * var])
        }
    }
}

/// A helper, not a test: the other tests run it in processes.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, program);
    }
}

/// Runs a worker's program. Returns the checksums of weights and slots.
fn program(task: &Task, at: &At) -> Result<String> {
    let strategy = task.builder()?.build()?;
    // Variables of several blocks, so that each worker has a shard. The gradients of the table are by row.
    let model = strategy.replicate(|vb| {
        let table = embedding(ROWS as usize, 5, vb.pp("table"))?;
        distribute::Ok((table, linear(5, 2500, vb.pp("fc"))?))
    })?;
    let optimizer = Optimizer::with_rule(Watched(at.clone()), &model.variables, 0.05)?;
    let optimizer = optimizer.shard_state_replicated()?;
    let rows = 16usize;
    let ids = Dataset::range(rows as i64).shuffle(rows, 7).batch(rows / STEPS as usize);
    let batches = strategy.distribute_dataset(ids)?;
    let taken = Taken { at: at.clone(), from_others: AtomicBool::new(false) };
    let state = Checkpoint::new().part("strategy", &strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches).part("taken", &taken);
    let manager = task.folder.as_ref().map(CheckpointManager::new).transpose()?;
    if let Some(manager) = &manager {
        state.restore_latest(manager)?;
    }
    taken.from_others.store(true, Ordering::Relaxed);
    at(Place::Setup)?;
    let training = Training::new(state.clone())?;
    at(Place::First)?;
    training.run(|| {
        while batches.position().epoch < EPOCHS {
            for batch in &batches {
                let batch = batch?;
                let before = optimizer.finished_steps();
                if before + 2 == STEP {
                    at(Place::Between)?;
                }
                strategy.run(
                    (&model, batch),
                    |ctx, ((table, fc), ids): (&(Embedding, Linear), HostTensor)| {
                        let ids: Vec<u32> =
                            ids.to_vec::<i64>()?.iter().map(|id| (id * 53 + 7) as u32 % ROWS).collect();
                        if before + 1 == STEP {
                            at(Place::InStep)?;
                        }
                        if ids.is_empty() {
                            optimizer.skip(ctx)?;
                        } else {
                            let x = table.forward(&Tensor::from_slice(&ids, ids.len(), &Device::Cpu)?)?;
                            optimizer.minimize(ctx, fc.forward(&x)?.sqr()?.mean_all()?, ids.len())?;
                        }
                        if before + 1 == STEP {
                            at(Place::AfterUpdate)?;
                        }
                        ctx.all_reduce(ReduceOp::Sum, 1f32).map(drop)
                    },
                )?;
                at(Place::Made)?;
                if let Some(manager) = manager.as_ref().filter(|_| (before + 1).is_multiple_of(SAVE_EVERY)) {
                    state.save_to(manager)?;
                }
            }
            if batches.position().epoch == 2 {
                at(Place::AtEnd)?;
            }
        }
        at(Place::Ending)
    })?;
    assert_eq!(optimizer.finished_steps(), EPOCHS * STEPS);
    assert_copies(&strategy, &optimizer)?;
    Ok(format!("trained {} {}", model.variables.sha256()?, slots(&optimizer)?))
}

/// Returns a checksum of all slots.
fn slots<R: rules::Rule>(optimizer: &Optimizer<R>) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for name in optimizer.variable_names() {
        for slot in optimizer.slot_names() {
            let slot = optimizer.slot(name, slot)?.flatten_all()?.to_vec1::<f32>()?;
            slot.iter().for_each(|x| x.to_bits().hash(&mut hasher));
        }
    }
    Ok(hasher.finish())
}

/// Returns the line of a worker whose training had no interruption.
fn undisturbed() -> &'static str {
    static LINE: OnceLock<String> = OnceLock::new();
    LINE.get_or_init(|| {
        let mut job = Job::new(WORKER);
        job.start_all(None);
        let line = job.wait_for_line(0, "trained ", Duration::ZERO).line;
        (0..WORKERS).for_each(|worker| job.wait_until_ended(worker));
        line
    })
}

fn start(stop_at: (usize, Place)) -> Job {
    let mut job = Job::new(WORKER);
    job.start_all(Some(stop_at));
    job.wait_for_line(stop_at.0, &format!("at {:?}", stop_at.1), Duration::ZERO);
    job
}

/// Kills a worker, and starts a new process that replaces it and stops at a location, if one is given. Returns the time
/// of the kill.
fn replace(job: &mut Job, worker: usize, stop_at: Option<Place>) -> Duration {
    let fault = job.now();
    job.signal(worker, Signal::KILL);
    job.wait_for_exit(worker);
    job.start(worker, stop_at);
    fault
}

/// Waits until the others of a worker have resumed after this step.
fn resumed(job: &mut Job, worker: usize, step: u64, since: Duration) {
    for other in (0..WORKERS).filter(|other| *other != worker) {
        job.wait_for_line(other, &format!("the training resumes after step {step},"), since);
    }
}

/// Waits until all have ended with the weights and slots of a training without interruption.
fn end(mut job: Job) {
    let undisturbed = undisturbed();
    for worker in 0..WORKERS {
        let said = job.wait_for_line(worker, "trained ", Duration::ZERO).line;
        assert_eq!(said, undisturbed, "worker {worker}:\n{}", job.story());
        job.wait_until_ended(worker);
    }
}

/// Kills each worker at a location. The training resumes after `step`.
fn killed_at(place: Place, step: u64) {
    in_parent(move || {
        for worker in 0..WORKERS {
            let mut job = start((worker, place));
            let fault = replace(&mut job, worker, None);
            resumed(&mut job, worker, step, fault);
            end(job);
        }
    });
}

// INV-109
#[test]
fn a_worker_that_is_killed_before_the_first_step_costs_no_step() {
    killed_at(Place::First, 0);
}

// INV-109
#[test]
fn a_worker_that_is_killed_between_steps_costs_no_step() {
    killed_at(Place::Between, STEP - 2);
}

// INV-109
#[test]
fn a_worker_that_is_killed_before_the_exchange_of_gradients_costs_no_step() {
    killed_at(Place::InStep, STEP - 1);
}

/// All others have computed the slots of the step, and none has its weights.
// INV-109
#[test]
fn a_worker_that_is_killed_before_the_exchange_of_weights_costs_no_step() {
    killed_at(Place::InUpdate, STEP - 1);
}

// INV-109
#[test]
fn a_worker_that_is_killed_after_the_update_costs_no_step() {
    killed_at(Place::AfterUpdate, STEP);
}

// INV-109
#[test]
fn a_worker_that_is_killed_when_a_pass_ends_costs_no_step() {
    killed_at(Place::AtEnd, 2 * STEPS);
}

/// Worker 2 sends its weights to worker 1 but not to worker 0, makes the step, and is killed. Worker 0 has the shard of
/// worker 2 after the step, which it has not made.
// INV-109
#[test]
fn a_step_that_one_of_the_others_has_made_is_made_by_all() {
    in_parent(|| {
        let mut job = Job::new(WORKER);
        let relay = job.relay(0);
        job.start_all(Some((2, Place::InUpdate)));
        job.wait_for_line(2, "at InUpdate", Duration::ZERO);
        relay.fall_silent_one_way();
        job.send(2, GO);
        job.wait_for_line(2, UPDATED, Duration::ZERO);
        job.wait_for_line(1, UPDATED, Duration::ZERO);
        let fault = replace(&mut job, 2, None);
        resumed(&mut job, 2, STEP, fault);
        assert!(job.lines(0, UPDATED).is_empty(), "worker 0 has not made the step:\n{}", job.story());
        end(job);
    });
}

// INV-109
#[test]
fn a_replacement_that_is_killed_while_it_receives_the_state_is_replaced_in_turn() {
    in_parent(|| {
        let mut job = start((1, Place::Between));
        replace(&mut job, 1, Some(Place::TakingOver));
        job.wait_for_line(1, "at TakingOver", Duration::ZERO);
        let fault = replace(&mut job, 1, None);
        resumed(&mut job, 1, STEP - 2, fault);
        end(job);
    });
}

/// Worker 1, which has been replaced, has the copy of worker 0.
// INV-109
#[test]
fn the_copies_of_a_replacement_are_used_in_turn() {
    in_parent(|| {
        let mut job = Job::new(WORKER);
        job.start(0, Some(Place::AtEnd));
        job.start(1, Some(Place::Between));
        job.start(2, None);
        job.wait_for_line(1, "at Between", Duration::ZERO);
        replace(&mut job, 1, None);
        job.wait_for_line(0, "at AtEnd", Duration::ZERO);
        let fault = replace(&mut job, 0, None);
        resumed(&mut job, 0, 2 * STEPS, fault);
        end(job);
    });
}

/// A spare replaces a worker, and all workers after that one have other ranks.
// INV-109, INV-100
#[test]
fn a_spare_receives_a_shard_and_the_others_those_of_their_ranks() {
    in_parent(|| {
        for (worker, place, step) in
            [(1, Place::First, 0), (1, Place::InUpdate, STEP - 1), (2, Place::AfterUpdate, STEP)]
        {
            let mut job = Job::with_spares(WORKER, 1);
            job.start_all(Some((worker, place)));
            job.wait_for_line(WORKERS, "waits as a spare", Duration::ZERO);
            job.wait_for_line(worker, &format!("at {place:?}"), Duration::ZERO);
            job.signal(worker, Signal::KILL);
            job.wait_for_exit(worker);
            for member in (0..=WORKERS).filter(|member| *member != worker) {
                if member < WORKERS {
                    let text = format!("the training resumes after step {step},");
                    job.wait_for_line(member, &text, Duration::ZERO);
                }
                let said = job.wait_for_line(member, "trained ", Duration::ZERO).line;
                assert_eq!(said, undisturbed(), "worker {member}:\n{}", job.story());
                job.wait_until_ended(member);
            }
        }
    });
}

// INV-109
#[test]
fn two_workers_that_are_lost_at_once_need_the_checkpoint_and_the_log_says_so() {
    in_parent(|| {
        let mut job = start((1, Place::InStep));
        job.signal(1, Signal::KILL);
        job.signal(2, Signal::KILL);
        job.wait_for_exit(1);
        job.wait_for_exit(2);
        job.start(1, None);
        job.start(2, None);
        let text = "the training cannot resume: the shards of the optimizer's state of these workers are lost, together \
                    with their copies at the next workers: 1; restart all workers from the last checkpoint";
        for worker in 0..WORKERS {
            job.wait_for_line(worker, text, Duration::ZERO);
            job.wait_for_exit(worker);
        }
        job.start_all(None);
        end(job);
    });
}
