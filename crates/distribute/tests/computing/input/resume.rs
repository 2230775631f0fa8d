//! A training that is killed within an epoch resumes from its last checkpoint. Every element of the epoch occurs once.
//! On the same number of replicas, the weights are bit-identical to those of an uninterrupted training.

use crate::input::mirrored;
use candle_core::{Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::checkpoint::CheckpointManager;
use distribute::data::Dataset;
use distribute::input::DistributedDataset;
use distribute::{Adam, Checkpoint, Optimizer, Replicated, Strategy};
use distribute_testing::watched;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ROWS: usize = 60;
const BATCH: usize = 7;

struct Training {
    strategy: Strategy,
    model: Replicated<Linear>,
    optimizer: Adam,
    batches: DistributedDataset<(Tensor, Tensor)>,
    /// The ids of the examples that have been used in this epoch.
    seen: Vec<u32>,
}

impl Training {
    fn new(replicas: usize) -> Self {
        let strategy = mirrored(replicas);
        let model = strategy.replicate(|vb: VarBuilder| linear(3, 1, vb.pp("fc"))).unwrap();
        let optimizer = Optimizer::with_rule(Default::default(), &model.variables, 0.01).unwrap();
        let ids = Tensor::arange(0u32, ROWS as u32, &Device::Cpu).unwrap();
        let x = Tensor::arange(0f32, 3. * ROWS as f32, &Device::Cpu).unwrap().sin().unwrap();
        let rows = Dataset::from_slices((x.reshape((ROWS, 3)).unwrap(), ids)).unwrap();
        let batches = strategy.distribute_dataset(rows.shuffle(ROWS, 5).batch(BATCH)).unwrap();
        Self { strategy, model, optimizer, batches, seen: Vec::new() }
    }

    fn parts(&self) -> Checkpoint<'_> {
        Checkpoint::new()
            .part("model", &self.model.variables)
            .part("optimizer", &self.optimizer)
            .part("steps", &self.strategy)
            .part("input", &self.batches)
    }

    /// Trains until the end of a pass, and calls `after` after each step.
    fn train(&mut self, mut after: impl FnMut(&Self)) {
        for batch in self.batches.iter() {
            let batch = batch.unwrap();
            for (_, ids) in &batch {
                self.seen.extend(ids.to_vec1::<u32>().unwrap());
            }
            let step = self.strategy.run((&self.model, batch), |ctx, (model, (x, ids))| {
                let loss = model.forward(&x)?.sqr()?.mean_all()?;
                self.optimizer.minimize(ctx, loss, ids.dim(0)?)
            });
            step.unwrap();
            after(self);
        }
    }

    fn restore(&mut self, folder: &Path) {
        let saved = CheckpointManager::new(folder).unwrap().latest().unwrap().expect("a checkpoint");
        self.parts().restore_from(&saved).unwrap();
        self.seen = serde_json::from_value(saved.metadata("seen").unwrap().clone()).unwrap();
    }

    fn weights(&self) -> String {
        self.model.variables.sha256().unwrap()
    }
}

/// The environment variable with the folder of checkpoints, for the process that is killed.
const FOLDER: &str = "DISTRIBUTE_TEST_KILLED";

/// Runs in the process that is killed: saves after each step, reports it, and waits until its parent lets it continue.
#[test]
fn killed_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let manager = CheckpointManager::new(folder).unwrap();
    let mut orders = std::io::stdin().lines();
    Training::new(2).train(|training| {
        manager.save(&training.parts().metadata("seen", training.seen.clone()).writer().unwrap(), 1).unwrap();
        println!("\nsaved");
        std::io::stdout().flush().unwrap();
        orders.next().unwrap().unwrap();
    });
}

/// A process that is killed when this is dropped, even if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Lets a process train `steps` steps, and then kills it.
fn kill_after(steps: usize, folder: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "input::resume::killed_process", "--nocapture"]).env(FOLDER, folder);
    let mut process =
        Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut orders = process.0.stdin.take().unwrap();
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    for step in 1..=steps {
        assert!(lines.by_ref().any(|line| line.unwrap() == "saved"), "it ended before step {step}");
        if step < steps {
            writeln!(orders, "go on").unwrap();
        }
    }
}

#[test]
fn a_killed_epoch_resumes_with_every_element_once() {
    watched(|| {
        let mut through = Training::new(2);
        through.train(|_| ());
        let folder = tempfile::tempdir().unwrap();
        kill_after(4, folder.path());
        for replicas in [2, 3, 1] {
            let mut resumed = Training::new(replicas);
            resumed.restore(folder.path());
            assert_eq!(resumed.seen, through.seen[..4 * BATCH]);
            assert_eq!((resumed.batches.position().steps, resumed.strategy.steps()), (4, 4));
            resumed.train(|_| ());
            let mut all = resumed.seen.clone();
            all.sort_unstable();
            assert_eq!(all, (0..ROWS as u32).collect::<Vec<_>>(), "{replicas} replicas");
            assert_eq!(resumed.batches.position().epoch, 1);
            if replicas == 2 {
                assert_eq!(resumed.seen, through.seen);
                assert_eq!(resumed.weights(), through.weights());
            }
        }
    });
}

#[test]
fn a_checkpoint_without_a_position_or_with_another_datasets_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let strategy = mirrored(2);
    let data = |batch| strategy.distribute_dataset(Dataset::range(8).batch(batch)).unwrap();
    let (four, two) = (data(4), data(2));
    Checkpoint::new().part("input", &four).metadata("odd:position", 7).save(&path).unwrap();
    let refused = |name| Checkpoint::new().part(name, &two).restore(&path).unwrap_err().to_string();
    assert!(
        refused("other").contains("saved has no position of a dataset named \"other\""),
        "{}",
        refused("other")
    );
    assert!(refused("odd").contains("saved has no position in \"odd:position\""), "{}", refused("odd"));
    assert!(refused("input").contains("the batch size is 2 here"), "{}", refused("input"));
    assert_eq!(two.position().epoch, 0);
}
