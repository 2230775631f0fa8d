//! Training of a model on several replicas, for timed steps, memory and losses.

use super::{BATCHES, RATE, formula};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use distribute::nn::Products;
use distribute::{MirroredStrategy, PerReplica, ReduceOp, Replicated, Result, Sgd, Strategy, Variables};

/// A model that this program and the peers train.
pub trait Model: Sized + Send + Sync + 'static {
    /// The name of the model in figures.
    const NAME: &'static str;
    /// A description of the model.
    const WORK: &'static str;
    /// The number of examples in a global batch.
    const BATCH: usize;
    /// A learning rate with which the losses of a few steps differ enough to be compared.
    const LOSS_RATE: f64;

    /// Creates the model with the fast layers of `distribute`.
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self>;

    /// Returns the mean loss of a batch.
    fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Result<Tensor>;

    /// Returns the same loss with candle_nn's layers, from the same variables.
    fn stock_loss(vb: &VarBuilder<'_>, inputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor>;

    /// Returns the matrix products of a step on one replica with the given number of rows.
    fn products(rows: usize) -> Vec<Products>;

    /// Sets the initial weights, which the peers also use.
    fn set_formula(variables: &Variables) -> Result<()>;

    /// Returns the examples from `first` to `first + rows` of a batch, computed by a formula.
    fn batch(number: u32, first: usize, rows: usize) -> Result<(Tensor, Tensor)>;
}

/// Sets the variables of a linear layer to values computed by a formula.
pub fn set_layer(variables: &Variables, name: &str, k: u32, (width, height): (usize, usize)) -> Result<()> {
    let (weight, bias) = formula::layer(k, width, height);
    let weight = Tensor::from_vec(weight, (height, width), &Device::Cpu)?;
    variables.set(&format!("{name}.weight"), &weight)?;
    variables.set(&format!("{name}.bias"), &Tensor::from_vec(bias, height, &Device::Cpu)?)
}

/// A replicated model, its optimizer and its batches.
pub struct Training<M> {
    strategy: Strategy,
    model: Replicated<M>,
    optimizer: Sgd,
    batches: Vec<PerReplica<(Tensor, Tensor)>>,
    done: usize,
}

impl<M: Model> Training<M> {
    /// Creates a training run with the formula's initial weights and the learning rate of timed steps.
    pub fn new(replicas: usize) -> Result<Self> {
        Self::with(replicas, RATE, M::BATCH)
    }

    /// Creates a training run with the given learning rate and number of examples in a global batch.
    pub fn with(replicas: usize, rate: f64, batch: usize) -> Result<Self> {
        Self::by(MirroredStrategy::cpus(replicas)?, rate, batch)
    }

    /// Creates a training run on the replicas of a strategy. `batch` is the number of examples in a global batch, of
    /// which each replica gets an equal part.
    pub fn by(strategy: Strategy, rate: f64, batch: usize) -> Result<Self> {
        let model = strategy.replicate(M::new)?;
        M::set_formula(&model.variables)?;
        let world = strategy.world();
        let each = batch / world.num_replicas_in_sync();
        let piece = |number, replica| M::batch(number, replica * each, each);
        let batches = (0..BATCHES).map(|number| {
            Ok(PerReplica::from_values(
                world.local_replicas().map(|replica| piece(number, replica)).collect::<Result<Vec<_>>>()?,
            ))
        });
        Ok(Self {
            optimizer: Sgd::new(&model.variables, rate)?,
            batches: batches.collect::<Result<_>>()?,
            strategy,
            model,
            done: 0,
        })
    }

    /// Returns a function that averages a number over all replicas.
    pub fn agreement(&self) -> impl FnOnce(f64) -> Result<f64> + use<M> {
        let strategy = self.strategy.clone();
        move |mine| {
            let all = strategy.run((), |ctx, ()| {
                let mine = Tensor::new(mine, &Device::Cpu)?;
                Ok(ctx.all_reduce(ReduceOp::Mean, mine)?.to_scalar::<f64>()?)
            })?;
            Ok(all.values()[0])
        }
    }

    /// Makes a step on the next batch. Returns the global mean loss.
    pub fn step(&mut self) -> Result<Tensor> {
        let batch = &self.batches[self.done % self.batches.len()];
        self.done += 1;
        let loss = self.strategy.run((&self.model, batch), |ctx, (model, (inputs, targets))| {
            self.optimizer.minimize(ctx, model.loss(inputs, targets)?, targets.dim(0)?)
        })?;
        Ok(loss.values()[0].clone())
    }
}
