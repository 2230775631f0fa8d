//! Random bits that flip: in a weight of a worker, in a message, and in a file of a checkpoint. Each flip that would
//! change a weight is detected, and the error names its location.

use candle_core::{Device, Tensor};
use candle_nn::Module;
use distribute::checkpoint::Reader;
use distribute::cluster::{Cause, World};
use distribute::nn::{embedding, linear, loss};
use distribute::optimizer::rules;
use distribute::strategy::Checksums;
use distribute::{
    Adam, Checkpoint, Dataset, Error, MultiWorkerMirroredStrategy, Optimizer, Replicated, Result, Strategy,
};
use distribute_collective::group::{Group, Inbox};
use distribute_net::memory::{self, Memory};
use distribute_net::{Message, PollOutcome, Receiver, Transport};
use distribute_testing::{SplitMix, watched_for};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Returns the number of bits to flip of each kind: the value of `DISTRIBUTE_TEST_FLIPS`, or 150 by default.
fn flips() -> usize {
    std::env::var("DISTRIBUTE_TEST_FLIPS").map_or(150, |text| text.parse().unwrap())
}

/// Returns the time limit of a test: one minute plus 50 ms for each bit.
fn limit() -> Duration {
    Duration::from_secs(60) + Duration::from_millis(50) * flips() as u32
}

/// A bit flip in one message from a worker to another.
#[derive(Clone, Copy, Debug)]
struct Flip {
    from: usize,
    to: usize,
    /// The number of messages from this sender before the changed one.
    before: usize,
    of_head: bool,
    bit: u64,
}

/// Links in memory, on which a bit may flip.
#[derive(Debug)]
struct Flipping {
    inner: Memory,
    worker: usize,
    flip: Option<Flip>,
    seen: AtomicUsize,
    /// Whether the bit has flipped.
    flipped: Arc<AtomicBool>,
}

impl Flipping {
    fn change(&self, to: usize, message: Message) -> Message {
        let Some(flip) = self.flip.filter(|flip| (flip.from, flip.to) == (self.worker, to)) else {
            return message;
        };
        let part = if flip.of_head { &message.head } else { &message.body };
        if part.is_empty() || self.seen.fetch_add(1, Ordering::Relaxed) != flip.before {
            return message;
        }
        self.flipped.store(true, Ordering::Relaxed);
        let (mut bytes, bit) = (part.to_vec(), (flip.bit % (8 * part.len() as u64)) as usize);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if flip.of_head {
            Message { head: bytes.into(), ..message }
        } else {
            Message { body: bytes.into(), ..message }
        }
    }
}

impl Transport for Flipping {
    fn send(&self, to: usize, message: Message) {
        self.inner.send(to, self.change(to, message));
    }
    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.inner.poll(patience, is_there)
    }
    fn close(&self) {
        self.inner.close();
    }
}

/// Runs `worker` on each of `workers` workers, and returns their results and whether the bit has flipped.
fn on_workers<R: Send>(
    workers: usize,
    flip: Option<Flip>,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> (Vec<Result<R>>, bool) {
    let flipped = Arc::new(AtomicBool::new(false));
    let inboxes: Vec<_> = (0..workers).map(|_| Inbox::new(workers)).collect();
    let receivers = inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
    let links = memory::transports(receivers).into_iter().zip(inboxes).enumerate();
    let results = thread::scope(|scope| {
        let start = |(rank, (inner, inbox))| {
            let links =
                Flipping { inner, worker: rank, flip, seen: AtomicUsize::new(0), flipped: flipped.clone() };
            let group = Group::new(World::new(workers, rank, 1).unwrap(), Arc::new(links), inbox);
            let worker = &worker;
            scope.spawn(move || {
                let builder = MultiWorkerMirroredStrategy::builder().group(group.clone());
                let strategy = builder.checksums(Checksums::Always).check_drift_every(1).build()?;
                let result = worker(&strategy);
                // The others don't wait for a worker that has failed.
                group.end();
                result
            })
        };
        let threads: Vec<_> = links.map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let flipped = flipped.load(Ordering::Relaxed);
    (results, flipped)
}

type Forward = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync>;

fn model(strategy: &Strategy) -> Result<Replicated<Forward>> {
    strategy.replicate(|vb| -> candle_core::Result<Forward> {
        let (table, hidden) = (embedding(20, 6, vb.pp("table"))?, linear(6, 30, vb.pp("hidden"))?);
        let out = linear(30, 3, vb.pp("out"))?;
        Ok(Box::new(move |ids: &Tensor| out.forward(&hidden.forward(&table.forward(ids)?)?.tanh()?)))
    })
}

const STEPS: usize = 5;

/// Trains some steps, and returns the checksum of the weights.
fn train(strategy: &Strategy) -> Result<String> {
    let model = model(strategy)?;
    let optimizer = Optimizer::with_rule(rules::Adam::lazy(), &model.variables, 0.01)?;
    let ids = Tensor::new((0..12u32).map(|i| i * 7 % 20).collect::<Vec<_>>(), &Device::Cpu)?;
    let labels = Tensor::new((0..12u32).map(|i| i % 3).collect::<Vec<_>>(), &Device::Cpu)?;
    for batch in &strategy.distribute_dataset(Dataset::from_slices((ids, labels))?.repeat(STEPS).batch(12))? {
        strategy.run((&model, batch?), |ctx, (model, (ids, labels))| {
            let loss = loss::cross_entropy(&model(&ids)?, &labels)?;
            optimizer.minimize(ctx, loss, labels.dim(0)?)
        })?;
    }
    model.variables.sha256()
}

// INV-104
#[test]
fn each_flipped_bit_of_a_message_is_named_or_changes_nothing() {
    watched_for(limit(), || {
        let undisturbed: Vec<String> =
            (2..=3).map(|workers| on_workers(workers, None, train).0.remove(0).unwrap()).collect();
        let (mut random, mut corrupted, mut lost, mut flipped_at_all) = (SplitMix(37), 0, 0, 0);
        for case in 0..flips() {
            let workers = 2 + case % 2;
            let from = random.below(workers);
            let to = (from + 1 + random.below(workers - 1)) % workers;
            let of_head = random.below(4) == 0;
            let flip = Flip {
                from,
                to,
                before: random.below(if of_head { 60 } else { 30 }),
                of_head,
                bit: random.bits(),
            };
            let (results, flipped) = on_workers(workers, Some(flip), train);
            let (mut is_corrupted, mut is_lost) = (false, false);
            for result in &results {
                let error = match result {
                    // It had completed all of its steps before, or needed none of the data.
                    Ok(sha256) => {
                        assert_eq!(*sha256, undisturbed[workers - 2], "{flip:?}: changed weights");
                        continue;
                    }
                    Err(error) => error,
                };
                let blame = error.blame().unwrap_or_else(|| panic!("{flip:?}: {error}"));
                match &blame.cause {
                    Cause::Corrupted { corruption, .. } => {
                        assert_eq!((corruption.sender, corruption.receiver), (from, to), "{flip:?}");
                        is_corrupted = true;
                    }
                    // A worker that had the data of all learns only that another one has ended.
                    Cause::Lost { worker, .. } => is_lost |= of_head && *worker == from,
                    _ => panic!("{flip:?}: {error}"),
                }
            }
            let is_named = is_corrupted || is_lost;
            // A bit that has flipped is named, unless all have made their last call.
            assert!(is_named || results.iter().all(Result::is_ok), "{flip:?}: {results:?}");
            flipped_at_all += usize::from(flipped);
            corrupted += usize::from(is_corrupted);
            lost += usize::from(!is_corrupted && is_lost);
        }
        println!("{flipped_at_all} flipped: {corrupted} named as changed, {lost} as unreadable");
        assert!(10 * (corrupted + lost) >= 9 * flipped_at_all, "{corrupted} and {lost} of {flipped_at_all}");
        assert!(2 * flipped_at_all > flips(), "{flipped_at_all}");
    });
}

// INV-37
#[test]
fn each_flipped_bit_of_a_weight_is_named_with_its_worker() {
    watched_for(limit(), || {
        let (results, _) = on_workers(3, None, |strategy| {
            let model = model(strategy)?;
            let all = model.variables.trainable()?;
            let mut random = SplitMix(5);
            for _ in 0..flips() {
                let ((name, variable), culprit) = (random.of(&all), random.below(3));
                let (element, bit) = (random.below(variable.elem_count()), random.below(32));
                let flip = || {
                    if strategy.world().worker() != culprit {
                        return Ok(());
                    }
                    let mut elements = variable.flatten_all()?.to_vec1::<f32>()?;
                    elements[element] = f32::from_bits(elements[element].to_bits() ^ 1 << bit);
                    Ok::<_, Error>(variable.set(&Tensor::from_vec(
                        elements,
                        variable.dims(),
                        &Device::Cpu,
                    )?)?)
                };
                flip()?;
                let error = strategy.run((), |_, ()| Ok(())).unwrap_err();
                let Error::Drift { variables, workers, .. } = &error else { panic!("{error}") };
                assert_eq!((&variables[..], &workers[..]), (&[name][..], &[culprit][..]));
                flip()?;
            }
            strategy.run((), |_, ()| Ok(()))?;
            Ok(())
        });
        results.into_iter().for_each(|result| result.unwrap());
    });
}

fn files_of(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

// INV-22
#[test]
fn each_flipped_bit_of_a_checkpoint_is_named_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let strategy = distribute::MirroredStrategy::cpus(1).unwrap();
    let model = model(&strategy).unwrap();
    let optimizer = Adam::new(&model.variables, 0.01).unwrap();
    let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    state.save(&path).unwrap();
    let files = files_of(&path);
    let before = model.variables.sha256().unwrap();
    let mut random = SplitMix(11);
    for _ in 0..flips() {
        let file = random.of(&files);
        let good = std::fs::read(&file).unwrap();
        let (mut bytes, bit) = (good.clone(), random.below(8 * good.len()));
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&file, &bytes).unwrap();
        // A restore reads what it needs; `verify` reads everything.
        let read = Reader::open(&path).and_then(|reader| reader.verify());
        let error = read.unwrap_err().to_string();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(error.contains(&name), "bit {bit} of {name}: {error}");
        let _ = state.restore(&path);
        assert_eq!(model.variables.sha256().unwrap(), before, "bit {bit} of {name}");
        std::fs::write(&file, &good).unwrap();
    }
    state.restore(&path).unwrap();
}
