//! Files that a coordinator deals to idle workers, while workers and servers are killed.

use crate::coordinator::counters::{ROWS, counters_of, make_counters, patient, read};
use crate::coordinator::support::{kills, strategy};
use crate::support::cluster::{Cluster, MINUTE, is_task};
use distribute::data::{DealtFile, FileDeck, Files, text_lines};
use distribute::remote::WorkerContext;
use distribute::tensor::IndexedSlices;
use distribute::{Checkpoint, HostTensor, Result, Variable};
use distribute_testing::{SplitMix, watched_for};
use std::path::Path;

/// The number of files in an epoch.
const FILES: usize = 10;
const LINES: usize = 30;

/// Increments, for each line of a file, the row that the line names.
#[distribute::remote]
fn count_lines(_worker: &WorkerContext, counters: &Variable, pattern: String, file: DealtFile) -> Result<()> {
    let file = Files::glob(&pattern)?.dealt(&file)?;
    for row in &text_lines(file).map(|line| line.parse::<i64>().unwrap_or(i64::MAX)) {
        let one = HostTensor::new(vec![1i64], [1, 1])?;
        counters.scatter_add(IndexedSlices::new(one, HostTensor::vector(vec![row?]), None)?)?;
    }
    Ok(())
}

/// Writes the files, and returns the number of times that each row is in them.
fn write_files(folder: &Path) -> Vec<i64> {
    let (mut random, mut counts) = (SplitMix(1), vec![0i64; ROWS]);
    for file in 0..FILES {
        let rows: Vec<usize> = (0..LINES).map(|_| random.below(ROWS)).collect();
        rows.iter().for_each(|row| counts[*row] += 1);
        let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
        std::fs::write(folder.join(format!("{file}.txt")), lines.join("\n")).unwrap();
    }
    counts
}

/// Checks that each example is used exactly once even if workers are lost. TensorFlow's data service also deals files
/// dynamically, but loses the files of a lost worker.
// INV-59, INV-60
#[test]
fn each_line_of_dealt_files_counts_once_if_any_process_is_killed() {
    if is_task() {
        return;
    }
    let kills = kills(4);
    watched_for(MINUTE * (kills as u32).div_ceil(20), move || {
        const TEST: &str =
            "coordinator::files::each_line_of_dealt_files_counts_once_if_any_process_is_killed";
        let folder = tempfile::tempdir().unwrap();
        let each_epoch = write_files(folder.path());
        let pattern = format!("{}/*.txt", folder.path().display());
        let deck = || FileDeck::new(Files::glob(&pattern).unwrap()).shuffle(7);
        let mut cluster = Cluster::start(TEST, 2, 2);
        let strategy = strategy(cluster.spec());
        let coordinator = patient(&strategy);
        let counters = coordinator.create_per_worker_value(make_counters, ()).unwrap();
        let all = counters_of(&strategy).unwrap();
        let mut random = SplitMix(kills as u64);
        let (mut dealt, mut killed, mut saves, mut files) = (0, 0, 0, deck());
        // It ends at the end of an epoch, after the last kill.
        while killed < kills || dealt % FILES > 0 {
            for _ in 0..1 + random.below(4) {
                if let Some(file) = files.deal() {
                    coordinator.schedule(count_lines, (&counters, pattern.clone(), file)).unwrap();
                    dealt += 1;
                }
            }
            if killed < kills {
                // While a file is being read.
                cluster.restart(random.below(cluster.tasks().count()));
                killed += 1;
            }
            // The coordinator may be another program from now on: only the checkpoint is used.
            if killed % 3 == 2 {
                saves += 1;
                let saved = folder.path().join(format!("saved-{saves}"));
                coordinator.join().unwrap();
                Checkpoint::new().part("counters", &all).part("files", &files).save(&saved).unwrap();
                files = deck();
                Checkpoint::new().part("counters", &all).part("files", &files).restore(&saved).unwrap();
            }
        }
        coordinator.join().unwrap();
        let epochs = (dealt / FILES) as i64;
        assert_eq!(read(&all), each_epoch.iter().map(|count| count * epochs).collect::<Vec<_>>());
        println!(
            "{killed} kills, {saves} restores, {dealt} files, {} lines, each counted once",
            dealt * LINES
        );
        drop((coordinator, counters));
        strategy.end_servers().unwrap();
        cluster.wait_for_exit();
    });
}
