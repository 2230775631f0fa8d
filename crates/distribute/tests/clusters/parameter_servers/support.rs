//! Clusters and models that tests share.

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::nn::{self, BagMode, loss};
use distribute::optimizer::rules::Rule;
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::{LocalCluster, Optimizer, ParameterServerStrategy, Replicated, Result, Strategy};

/// Creates the only worker of a cluster of `count` servers, with variables in `shards` shards.
pub fn servers(count: usize, shards: usize) -> ParameterServerStrategy {
    let cluster = LocalCluster::new(1, count).unwrap();
    ParameterServerStrategy::new(cluster.resolver(), FixedShardsPartitioner::new(shards).unwrap()).unwrap()
}

/// A model with tables whose rows layers fetch, one table that candle reads completely, and layers of candle and of
/// this crate.
pub struct Net {
    words: nn::Embedding,
    bags: nn::EmbeddingBag,
    stock: candle_nn::Embedding,
    hidden: candle_nn::Linear,
    out: nn::Linear,
}

pub const WORDS: usize = 23;
pub const BAGS: usize = 11;
pub const STOCK: usize = 7;

impl Net {
    pub fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            words: nn::embedding(WORDS, 4, vb.pp("words"))?,
            bags: nn::embedding_bag(BAGS, 4, BagMode::Mean, vb.pp("bags"))?.with_padding(BAGS),
            stock: candle_nn::embedding(STOCK, 4, vb.pp("stock"))?,
            hidden: candle_nn::linear(12, 6, vb.pp("hidden"))?,
            out: nn::linear(6, 3, vb.pp("out"))?,
        })
    }

    /// Returns the loss of the given number of examples of a step.
    pub fn loss(&self, examples: usize, step: usize) -> Result<Tensor> {
        let ids = |height: usize, each: usize, turn: usize| {
            let ids = (0..examples * each).map(|i| ((i * i * 3 + i * turn + step * 5) % height) as u32);
            Tensor::from_vec(ids.collect::<Vec<_>>(), (examples, each), &Device::Cpu)
        };
        let words = self.words.forward(&ids(WORDS, 1, 1)?.squeeze(1)?)?;
        let bags = self.bags.forward(&ids(BAGS + 1, 3, 2)?)?;
        let stock = self.stock.forward(&ids(STOCK, 1, 3)?.squeeze(1)?)?;
        let all = Tensor::cat(&[words, bags, stock], 1)?;
        let out = self.out.forward(&self.hidden.forward(&all)?.tanh()?)?;
        let labels = (0..examples).map(|i| ((i + step) % 3) as u32).collect::<Vec<_>>();
        Ok(loss::cross_entropy(&out, &Tensor::new(labels, &Device::Cpu)?)?)
    }
}

/// Trains some steps, two of them in one run, and returns the losses.
pub fn train<R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Net>,
    optimizer: &Optimizer<R>,
    steps: std::ops::Range<usize>,
) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in steps {
        let of_replicas = strategy.run(model, |ctx, model| {
            let examples = [5, 3][ctx.replica_id_in_sync_group() % 2];
            let mut loss = optimizer.minimize(ctx, model.loss(examples, step)?, examples)?;
            if step % 3 == 1 {
                loss = optimizer.minimize(ctx, model.loss(examples, step + 100)?, examples)?;
            }
            Ok(loss.to_dtype(DType::F32)?.to_scalar::<f32>()?)
        });
        losses.extend(of_replicas.unwrap_or_else(|error| panic!("{}", error.root_cause())).into_values());
    }
    losses
}

/// Returns the bits of all variables and slots.
pub fn state<M, R: Rule>(model: &Replicated<M>, optimizer: &Optimizer<R>) -> Vec<(String, Vec<u32>)> {
    let bits = |tensor: Tensor| {
        let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for name in model.variables.names() {
        all.push((name.clone(), bits(model.variables.get(&name).unwrap())));
        for slot in optimizer.slot_names() {
            all.push((format!("{name} {slot}"), bits(optimizer.slot(&name, slot).unwrap())));
        }
    }
    all
}
