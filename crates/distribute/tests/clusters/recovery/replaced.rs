//! Three workers and a spare: the spare takes the place of a worker that is slow. No step is lost, and the weights are
//! those of a training in which no worker is slow.

use crate::recovery::in_parent_for;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::program::{At, Place, Taken, Task};
use crate::recovery::slowness::{Reaction, Slowness, Work};
use crate::recovery::worker;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::{Error, Result, prelude::*};
use distribute_testing::child;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const WORKER: &str = "recovery::replaced::a_worker_in_a_separate_process";

/// The number of the spare, which is the task after the workers.
const SPARE: usize = WORKERS;

const STEPS: u64 = 160;
const STEPS_OF_EPOCH: u64 = 4;

const WAITS: &str = "waits as a spare";
const TAKES_PART: &str = "a spare that takes part from now on, as generation ";

/// The work of each step. The slow worker needs some 110 ms, the others some 12.
const WORK: Work = Work { computing: Duration::from_millis(8), slowness: None, reaction: Reaction::Replace };
const LONGER: Duration = Duration::from_millis(100);

/// The time limit of a test. A straggler is only found after 10 s.
pub const LIMIT: Duration = Duration::from_secs(150);

/// The number of examples of a batch.
const ROWS: usize = 12;

/// The number of examples that each worker reads for a batch.
const READS: u32 = ROWS as u32 / WORKERS as u32;

/// Runs a worker in a process that another test starts. This is not a test itself.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, |task, at| match trained(task, at) {
            Err(error @ Error::UnusedSpare { .. }) => Ok(error.to_string()),
            trained => trained,
        });
    }
}

/// Trains, and works in each step until the group has re-formed. Returns the checksum of the weights, the
/// number of times that the group has formed, and that of stragglers that were replaced.
pub fn trained(task: &Task, at: &At) -> Result<String> {
    let strategy = task.builder()?.build()?;
    let (work, works) = (task.work, Arc::new(AtomicBool::new(true)));
    let work_of = |works: &Arc<AtomicBool>| {
        let works = works.clone();
        move || work.filter(|_| works.load(Ordering::Relaxed))
    };
    let (work, reading) = (work_of(&works), work_of(&works));
    let model = strategy.replicate(|vb| linear(3, 2, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.05)?;
    let read = move |id: i64| {
        reading().iter().for_each(Work::read);
        id
    };
    let rows = STEPS_OF_EPOCH as usize * ROWS;
    let ids = Dataset::range(rows as i64).shuffle(rows, 7).map(read).batch(ROWS);
    let batches = strategy.distribute_dataset(ids)?;
    let taken = Taken { at: at.clone(), from_others: AtomicBool::new(true) };
    let state = Checkpoint::new().part("strategy", &strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches).part("taken", &taken);
    let training = Training::new(state)?;
    training.run(|| {
        works.store(training.generation() == 1, Ordering::Relaxed);
        while batches.position().epoch < STEPS / STEPS_OF_EPOCH {
            for batch in &batches {
                let batch = batch?;
                let before = optimizer.finished_steps();
                strategy.run((&model, batch), |ctx, (fc, ids): (_, HostTensor)| {
                    work().iter().for_each(Work::compute);
                    let ids = ids.to_vec::<i64>()?;
                    let x: Vec<f32> =
                        ids.iter().flat_map(|id| (0..3).map(move |i| ((id * 3 + i) as f32).sin())).collect();
                    let x = Tensor::from_vec(x, (ids.len(), 3), &Device::Cpu)?;
                    let loss = fc.forward(&x)?.sqr()?.mean_all()?;
                    optimizer.minimize(ctx, loss, ids.len())
                })?;
                assert_eq!(optimizer.finished_steps(), before + 1);
                work().iter().for_each(Work::between);
            }
        }
        Ok(())
    })?;
    assert_eq!((optimizer.finished_steps(), strategy.steps()), (STEPS, STEPS));
    let (replaced, _) = strategy.straggler_replacements();
    Ok(format!("trained {} {} {replaced}", model.variables.sha256()?, training.generation()))
}

/// Returns the checksum of the weights of a training in which no worker is slow.
fn undisturbed() -> &'static str {
    static SHA256: OnceLock<String> = OnceLock::new();
    SHA256.get_or_init(|| {
        let mut job = Job::new(WORKER);
        job.start_all(None);
        let said = job.wait_for_line(0, "trained ", Duration::ZERO).line;
        said.split_whitespace().nth(1).unwrap().to_owned()
    })
}

/// Waits until these workers have exited with the weights of a training in which no worker is slow, in the given
/// generation.
fn end(job: &mut Job, members: &[usize], generation: u64) {
    for worker in members {
        let said = job.wait_for_line(*worker, "trained ", Duration::ZERO).line;
        let expected = format!("trained {} {generation} ", undisturbed());
        assert!(said.starts_with(&expected), "{said}\n{}", job.story());
        job.wait_until_ended(*worker);
    }
    // The chief has seen the replacement.
    assert!(job.lines(0, "trained ")[0].ends_with(" 1"), "{}", job.story());
    assert!(job.lines(0, "the training stops").is_empty() || generation > 2, "{}", job.story());
}

/// Makes a worker slow, and checks that the spare takes its place.
fn replaced(slow: usize, slowness: Slowness, why: &str) {
    let mut job = Job::with_spares(WORKER, 1).working(WORK, Some((slow, slowness)));
    job.start_all(None);
    let said = job.wait_for_line(slow, "a spare takes the place of ", Duration::ZERO);
    let expected = format!("a spare takes the place of worker {slow} (");
    assert!(said.line.contains(&expected) && said.line.contains(why), "{}", said.line);
    job.wait_for_line(slow, WAITS, said.at);
    job.wait_for_line(SPARE, &format!("{TAKES_PART}2"), Duration::ZERO);
    let members: Vec<_> = (0..=SPARE).filter(|member| *member != slow).collect();
    end(&mut job, &members, 2);
    job.wait_for_line(slow, "was not needed", said.at);
    job.wait_until_ended(slow);
}

// INV-42, INV-113
#[test]
fn a_spare_takes_the_place_of_a_worker_whose_input_is_slow() {
    in_parent_for(LIMIT, || replaced(1, Slowness::Input(LONGER / READS), "its input is slow"));
}

// INV-42, INV-113
#[test]
fn a_spare_takes_the_place_of_a_worker_that_computes_longer() {
    in_parent_for(LIMIT, || replaced(2, Slowness::Computing(LONGER), "it computes longer than the others"));
}

// INV-42, INV-113
#[test]
fn a_slow_worker_returns_if_the_spare_is_lost() {
    in_parent_for(LIMIT, || {
        let mut job = Job::with_spares(WORKER, 1).working(WORK, Some((1, Slowness::Input(LONGER / READS))));
        (0..WORKERS).for_each(|worker| job.start(worker, None));
        job.start(SPARE, Some(Place::TakingOver));
        let left = job.wait_for_line(1, "a spare takes the place of ", Duration::ZERO).at;
        job.wait_for_line(SPARE, "at TakingOver", left);
        job.signal(SPARE, Signal::KILL);
        job.wait_for_exit(SPARE);
        job.wait_for_line(1, &format!("{TAKES_PART}3"), left);
        end(&mut job, &[0, 1, 2], 3);
    });
}

// INV-113
#[test]
fn the_chief_and_a_worker_whose_program_is_slow_stay() {
    in_parent_for(LIMIT, || {
        for slow in [(0, Slowness::Input(LONGER / READS)), (1, Slowness::Outside(LONGER))] {
            let mut job = Job::with_spares(WORKER, 1).working(WORK, Some(slow));
            job.start_all(None);
            let warned = job.wait_for_line(0, "all workers wait for worker ", Duration::ZERO).line;
            assert!(warned.contains(&format!("worker {} (", slow.0)), "{warned}");
            for worker in 0..WORKERS {
                let said = job.wait_for_line(worker, "trained ", Duration::ZERO).line;
                assert_eq!(said, format!("trained {} 1 0", undisturbed()), "{}", job.story());
            }
        }
    });
}
