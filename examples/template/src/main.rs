//! A training to start from: replace the data, the model and the loss.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Activation, Module, VarBuilder};
use distribute::nn::{Linear, linear, loss};
use distribute::prelude::*;
use distribute::runner::{self, Datasets, Trainer};

const EPOCHS: usize = 10;
/// The number of examples of a replica in a step.
const BATCH: usize = 32;
const LEARNING_RATE: f64 = 3e-3;
/// The folder of backups, from which a restarted training continues.
const RUN: &str = "run";

/// Points `[n, 2]` and their labels `[n]`.
type Points = Dataset<(Tensor, Tensor)>;

/// The data: points of a square, and whether each is inside a circle. `data` has files: `Csv`, `TfRecord`, `Text`.
fn points() -> distribute::Result<(Points, Points)> {
    const COUNT: usize = 4096;
    let i = Tensor::arange(0f64, COUNT as f64, &Device::Cpu)?;
    let points = Tensor::stack(&[(&i * 12.9898)?.sin()?, (&i * 78.233)?.sin()?], 1)?;
    let inside = points.sqr()?.sum(1)?.lt(0.6)?.to_dtype(DType::U32)?;
    let all = Dataset::from_slices((points.to_dtype(DType::F32)?, inside))?;
    Ok((all.skip(COUNT / 4), all.take(COUNT / 4)))
}

struct Model {
    hidden: [Linear; 2],
    output: Linear,
}

impl Model {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        let [first, second] = [linear(2, 64, vb.pp("hidden1"))?, linear(64, 64, vb.pp("hidden2"))?];
        let hidden = [first, second].map(|layer| layer.with_activation(Activation::Relu));
        Ok(Self { hidden, output: linear(64, 2, vb.pp("output"))? })
    }

    fn forward(&self, points: &Tensor) -> candle_core::Result<Tensor> {
        let [first, second] = &self.hidden;
        self.output.forward(&second.forward(&first.forward(points)?)?)
    }
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    // A replica on each core of this process, and of all others if a launcher or a scheduler started several.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let strategy = MultiWorkerMirroredStrategy::builder().replicas(cores).build()?;
    let model = strategy.replicate_seeded(42, Model::new)?;
    let optimizer = Adam::new(&model.variables, LEARNING_RATE)?;

    let (training, held_out) = points()?;
    let tested = held_out.clone();
    let datasets = Datasets::new(move |context| {
        // The shard of this process, in another order in each epoch.
        Ok(training.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(4096, 42))
    })
    .validation(move |context| Ok(held_out.shard(context.num_input_pipelines, context.input_pipeline_id)));

    let trainer = Trainer::new(BATCH * strategy.num_replicas_in_sync()).epochs(EPOCHS).backup(RUN);
    runner::run(&trainer, &model, &optimizer, &datasets, |model, (points, labels), _phase| {
        Ok((loss::cross_entropy(&model.forward(&points)?, &labels)?, labels.dim(0)?))
    })?;

    let batches = strategy.distribute_dataset(tested.batch(1024))?;
    let accuracy = runner::evaluate(&model, &batches, |model, (points, labels)| {
        let (right, all) = (loss::correct(&model.forward(&points)?, &labels)?, labels.dim(0)?);
        Ok((Tensor::new(right as f32 / all.max(1) as f32, &Device::Cpu)?, all))
    })?;
    if strategy.is_chief() {
        println!("{:.1} % of the held-out points are right", 100. * accuracy);
    }
    model.variables.save("model.safetensors") // called on all workers, written by the first
}
