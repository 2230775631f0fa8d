//! Checks that `runner::run` is bit-identical to a custom loop, under each strategy, even if it is interrupted. Test
//! names contain the rules.

mod backups;
mod callbacks;
mod early;
mod evaluate;
mod evaluator;
mod places;
mod servers;

use crate::everywhere::everywhere;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::data::InputContext;
use distribute::nn::loss;
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::runner::{self, Datasets, Epoch, History, Phase, Trainer};
use distribute::{
    Adam, Dataset, Error, LocalCluster, MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy,
    Optimizer, ParameterServerStrategy, ReduceOp, Replicated, Result, Strategy,
};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};

const EPOCHS: usize = 4;
const GLOBAL_BATCH: usize = 12;
const ROWS: usize = 90;

struct Net(Linear, Linear);

impl Net {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self(linear(3, 7, vb.pp("hidden"))?, linear(7, 3, vb.pp("out"))?))
    }

    fn loss(&self, (x, y): &(Tensor, Tensor)) -> Result<(Tensor, usize)> {
        let out = self.1.forward(&self.0.forward(x)?.tanh()?)?;
        Ok((loss::cross_entropy(&out, y)?, y.dim(0)?))
    }
}

type Rows = Dataset<(Tensor, Tensor)>;

fn rows(count: usize, turn: usize) -> Rows {
    let x: Vec<f32> = (0..count * 3).map(|i| ((i * 37 + turn) % 41) as f32 / 20. - 1.).collect();
    let y: Vec<u32> = (0..count).map(|i| ((i * 7 + turn) % 3) as u32).collect();
    let x = Tensor::from_vec(x, (count, 3), &Device::Cpu).unwrap();
    Dataset::from_slices((x, Tensor::new(y, &Device::Cpu).unwrap())).unwrap()
}

fn mine(context: InputContext) -> Rows {
    rows(ROWS, 11).shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(ROWS, 5)
}

fn held_out(context: InputContext) -> Rows {
    rows(31, 4).shard(context.num_input_pipelines, context.input_pipeline_id)
}

fn datasets() -> Datasets<(Tensor, Tensor)> {
    Datasets::new(|context| Ok(mine(context))).validation(|context| Ok(held_out(context)))
}

fn made(strategy: &Strategy, seed: u64) -> (Replicated<Net>, Adam) {
    let model = strategy.replicate_seeded(seed, Net::new).unwrap();
    let optimizer = Adam::new(&model.variables, 0.05).unwrap();
    (model, optimizer)
}

/// The values that are compared: the steps and the bits of both losses of each epoch, and the checksum of the weights.
type Outcome = (Vec<(usize, u64, Option<u64>)>, String);

fn outcome(history: &History, model: &Replicated<Net>) -> Outcome {
    let epoch = |epoch: &Epoch| (epoch.steps, epoch.loss.to_bits(), epoch.validation_loss.map(f64::to_bits));
    (history.epochs.iter().map(epoch).collect(), model.variables.sha256().unwrap())
}

/// Trains with `runner::run`.
fn by_runner(strategy: &Strategy) -> Outcome {
    let (model, optimizer) = made(strategy, 7);
    let trainer = Trainer::new(GLOBAL_BATCH).epochs(EPOCHS);
    let history =
        runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch)).unwrap();
    outcome(&history, &model)
}

/// Trains with a custom loop, without `runner::run`.
fn by_hand(strategy: &Strategy) -> Outcome {
    let (model, optimizer) = made(strategy, 7);
    let of = |provider: fn(InputContext) -> Rows| {
        let batch = move |context: InputContext| {
            Ok(provider(context).batch(context.get_per_replica_batch_size(GLOBAL_BATCH)?))
        };
        strategy.distribute_datasets_from_function(batch).unwrap()
    };
    let (batches, validation) = (of(mine), of(held_out));
    let f64_of = |loss: Tensor| Ok(loss.to_dtype(DType::F64)?.to_scalar::<f64>()?);
    let mut epochs = Vec::new();
    for _ in 0..EPOCHS {
        let (mut steps, mut sum) = (0, 0.);
        for batch in &batches {
            let losses = strategy.run((&model, batch.unwrap()), |ctx, (net, batch)| {
                let (loss, n) = net.loss(&batch)?;
                f64_of(optimizer.minimize(ctx, loss, n)?)
            });
            sum += losses.unwrap().values()[0];
            steps += 1;
        }
        let (mut all, mut count) = (0., 0.);
        for batch in &validation {
            let counted = strategy.run((&model, batch.unwrap()), |_, (net, batch)| {
                let (loss, n) = net.loss(&batch)?;
                Ok((if n == 0 { 0. } else { f64_of(loss)? * n as f64 }, n as f64))
            });
            let (losses, counts) = counted.unwrap().unzip();
            all += strategy.reduce(ReduceOp::Sum, losses, None).unwrap();
            count += strategy.reduce(ReduceOp::Sum, counts, None).unwrap();
        }
        assert_eq!(count, 31.);
        epochs.push((steps, (sum / steps as f64).to_bits(), Some((all / count).to_bits())));
    }
    (epochs, model.variables.sha256().unwrap())
}

/// Creates a strategy with parameter servers and one worker, which trains in lock step.
fn servers() -> Strategy {
    let cluster = LocalCluster::new(1, 2).unwrap();
    let partitioner = FixedShardsPartitioner::new(2).unwrap();
    (*ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap()).clone()
}

// GNN-4
#[test]
fn gnn_4_the_history_and_the_weights_equal_those_of_a_manual_loop() {
    watched(|| {
        for (strategy, workers) in everywhere(|strategy| (by_runner(strategy), by_hand(strategy))) {
            for (found, expected) in &workers {
                assert_eq!(found, expected, "{strategy}");
                assert_eq!(found, &workers[0].0, "{strategy}");
                assert_eq!(found.0.len(), EPOCHS);
                assert!(f64::from_bits(found.0[EPOCHS - 1].1) < f64::from_bits(found.0[0].1), "{strategy}");
            }
        }
    });
}

// GNN-4
#[test]
fn gnn_4_epochs_of_counted_steps_continue_through_the_dataset() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let (model, optimizer) = made(&strategy, 7);
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let trainer =
            Trainer::new(GLOBAL_BATCH).epochs(4).steps_per_epoch(3).validation_steps(4).validate_every(2);
        let history = runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, phase| {
            counts[usize::from(phase == Phase::Validation)].fetch_add(batch.1.dim(0)?, Ordering::Relaxed);
            net.loss(&batch)
        });
        let epochs = history.unwrap().epochs;
        assert_eq!(epochs.iter().map(|epoch| epoch.steps).collect::<Vec<_>>(), [3; 4]);
        assert_eq!(
            epochs.iter().map(|epoch| epoch.validation_loss.is_some()).collect::<Vec<_>>(),
            [false, true, false, true]
        );
        // Each step has a whole batch, though the validation has 31 examples.
        assert_eq!(counts.map(AtomicUsize::into_inner), [4 * 3 * GLOBAL_BATCH, 2 * 4 * GLOBAL_BATCH]);
    });
}

/// Checks an optimizer of another strategy than the model's. Variables belong to the strategy under which they were
/// created.
#[test]
fn an_optimizer_of_another_strategy_is_refused() {
    watched(|| {
        let (model, _) = made(&MirroredStrategy::cpus(2).unwrap(), 7);
        let (_, other): (_, Optimizer<_>) = made(&MirroredStrategy::cpus(2).unwrap(), 7);
        let error =
            runner::run(&Trainer::new(12), &model, &other, &datasets(), |net, batch, _| net.loss(&batch))
                .unwrap_err();
        assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
    });
}

#[test]
fn a_batched_dataset_is_refused_with_advice() {
    watched(|| {
        let (model, optimizer) = made(&MirroredStrategy::cpus(2).unwrap(), 7);
        let train = |datasets: &Datasets<(Tensor, Tensor)>| {
            let trainer = Trainer::new(12).epochs(1);
            runner::run(&trainer, &model, &optimizer, datasets, |net, batch, _| net.loss(&batch))
        };
        let error = train(&Datasets::new(|context| Ok(mine(context).batch(6)))).unwrap_err().to_string();
        let says =
            "the dataset already yields batches of 6, but the runner makes batches of 6 for each replica";
        assert!(error.contains(says) && error.contains("without batch"), "{error}");
        train(&Datasets::new(|context| Ok(mine(context)))).unwrap();
    });
}
