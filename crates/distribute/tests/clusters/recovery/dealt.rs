//! Files that are dealt to workers in lock step, while workers are killed and restarted at random. The weights contain
//! each example once for each epoch.

use crate::recovery::job::{Job, WORKERS};
use crate::recovery::program::{At, Place, Task};
use crate::recovery::worker::{self, STEP};
use candle_core::Tensor;
use candle_nn::Init;
use distribute::checkpoint::CheckpointManager;
use distribute::data::{AutoShardPolicy, Files, text_lines};
use distribute::{InputOptions, Result, prelude::*};
use distribute_testing::{SplitMix, child, watched_for};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const WORKER: &str = "recovery::dealt::a_worker_with_dealt_files";

/// The numbers of lines of the files: some have far more lines than a worker can hold, and some are small or empty.
const FILES: [usize; 12] = [40, 3, 0, 17, 5, 1, 29, 8, 2, 11, 0, 9];
const EXAMPLES: usize = 125;

/// The file whose existence ends the training after an epoch.
const STOP: &str = "stop";
const COUNTED: &str = "counted ";

/// Runs a worker in a process that the other test starts. This is not a test itself.
#[test]
fn a_worker_with_dealt_files() {
    if let Some(part) = child::part() {
        worker::live(&part, count);
    }
}

/// Counts in a variable the number of times that each example was used. Returns the counts and the number of epochs.
fn count(task: &Task, at: &At) -> Result<String> {
    let folder = task.folder.as_deref().expect("the job has a folder");
    let strategy = task.builder()?.build()?;
    let model = strategy.replicate(|vb| vb.get_with_hints(EXAMPLES, "counts", Init::Const(0.)))?;
    let optimizer = Sgd::new(&model.variables, 1.)?;
    let files = Files::glob(&format!("{}/*.txt", folder.display()))?;
    let ids = text_lines(files).try_map(|line: String| line.parse::<i64>()).shuffle(6, 3).batch(6);
    let options = InputOptions { auto_shard_policy: AutoShardPolicy::Dealt, ..Default::default() };
    let batches = strategy.distribute_dataset_with(ids, options)?;
    let state = Checkpoint::new()
        .part("strategy", &strategy)
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("batches", &batches);
    let manager = CheckpointManager::new(folder.join("saved"))?;
    state.restore_latest(&manager)?;
    Training::new(state.clone())?.run(|| {
        let mut ends = false;
        while !ends {
            for batch in &batches {
                let stop = if folder.join(STOP).exists() { 1f32 } else { 0. };
                let stopped = strategy.run((&model, batch?), |ctx, (counts, ids): (_, HostTensor)| {
                    let rows = ids.dims().first().copied().unwrap_or(0);
                    let all = ctx.all_reduce(ReduceOp::Sum, rows as f32)?;
                    let stopped = ctx.all_reduce(ReduceOp::Sum, stop)?;
                    if rows == 0 {
                        optimizer.skip(ctx)?;
                        return Ok(stopped);
                    }
                    // The mean over all rows is subtracted, so each row adds one.
                    let ids = Tensor::new(ids.to_vec::<i64>()?, counts.device())?;
                    let sum = counts.index_select(&ids, 0)?.sum_all()?;
                    let loss = (sum * -f64::from(all / rows as f32))?;
                    optimizer.minimize(ctx, loss, rows)?;
                    Ok(stopped)
                })?;
                ends = stopped.values()[0] > 0.;
                at(Place::Made)?;
                if optimizer.finished_steps().is_multiple_of(7) {
                    state.save_to(&manager)?;
                }
            }
        }
        Ok(())
    })?;
    let counts = model.variables.get("counts")?;
    Ok(format!("{COUNTED}{} {:?}", batches.position().epoch, counts.to_vec1::<f32>()?))
}

fn write_files(folder: &Path) {
    let mut next = 0..EXAMPLES;
    for (file, lines) in FILES.iter().enumerate() {
        let text: String = next.by_ref().take(*lines).map(|id| format!("{id}\n")).collect();
        std::fs::write(folder.join(format!("{file:02}.txt")), text).unwrap();
    }
    assert_eq!(next.next(), None);
}

/// Waits until any worker has made a step after the time `since`.
fn wait_for_step(job: &mut Job, since: Duration) {
    job.wait_for_any(&[(0, STEP), (1, STEP), (2, STEP)], since);
}

fn kill(job: &mut Job, worker: usize) {
    job.signal(worker, Signal::KILL);
    job.wait_for_exit(worker);
}

/// Parses the number of epochs and the counts from a line.
fn counted(line: &str) -> (u64, Vec<f32>) {
    let (epochs, counts) = line.split_once(COUNTED).unwrap().1.split_once(' ').unwrap();
    (epochs.parse().unwrap(), serde_json::from_str(counts).unwrap())
}

// INV-42, INV-43, INV-99
#[test]
fn each_example_counts_once_in_an_epoch_if_any_worker_is_killed() {
    if child::part().is_some() {
        return;
    }
    let kills: usize = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(4, |kills| kills.parse().unwrap());
    watched_for(Duration::from_secs(60 + 3 * kills as u64), move || {
        let mut job = Job::new(WORKER).elastic(1).impatient();
        write_files(job.folder());
        job.start_all(None);
        let mut random = SplitMix(kills as u64);
        let (mut killed, mut complete, mut smaller) = (0, 0, 0);
        while killed < kills {
            // Somewhere in an epoch of about 25 steps, each of which every worker reports.
            for _ in 0..1 + random.below(60) {
                let now = job.now();
                wait_for_step(&mut job, now);
            }
            let lost = random.below(WORKERS);
            if killed % 4 == 3 {
                // All of them: the checkpoint is all that remains.
                (0..WORKERS).for_each(|worker| kill(&mut job, worker));
                job.start_all(None);
                complete += 1;
            } else {
                kill(&mut job, lost);
                // The others wait for the first worker, and continue without another one.
                if lost > 0 && random.below(2) == 0 {
                    let now = job.now();
                    wait_for_step(&mut job, now);
                    smaller += 1;
                }
                job.start(lost, None);
            }
            killed += 1;
        }
        let now = job.now();
        wait_for_step(&mut job, now);
        std::fs::write(job.folder().join(STOP), "").unwrap();
        let (epochs, counts) = counted(&job.wait_for_line(0, COUNTED, Duration::ZERO).line);
        let expected = epochs as f32;
        assert_eq!(counts.len(), EXAMPLES);
        let wrong: Vec<_> =
            counts.iter().enumerate().filter(|(_, count)| (**count - expected).abs() > 0.01).collect();
        assert!(wrong.is_empty(), "{epochs} epochs, but {wrong:?}\n{}", job.story());
        println!(
            "{killed} kills, {complete} of all workers at once, {smaller} with steps of fewer workers; {epochs} epochs, each \
             example once in each"
        );
    });
}
