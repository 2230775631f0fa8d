//! A model that predicts a package's section from its words, the packages around it, or both.

use crate::Kind;
use crate::data::{Batch, Packages};
use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Activation, Init, VarBuilder};
use distribute::nn::{
    BagMode, Embedding, EmbeddingBag, Linear, embedding_bag_init, embedding_init, linear, prefetch_rows,
};

/// A model that returns logits of the sections.
pub struct Model {
    words: Option<EmbeddingBag>,
    graph: Option<Sage>,
    output: Linear,
}

const WORD: usize = 64;
const NODE: usize = 32;
const HIDDEN: usize = 64;

/// The initial values of tables of embeddings.
const TABLE: Init = Init::Randn { mean: 0., stdev: 0.03 };

impl Model {
    pub fn new(kind: Kind, packages: &Packages, vb: VarBuilder) -> Result<Self> {
        let words = (kind != Kind::Graph).then(|| {
            // One row for each word; padding has no row.
            let words = embedding_bag_init(packages.vocabulary, WORD, BagMode::SqrtN, TABLE, vb.pp("words"));
            words.map(|words| words.with_padding(packages.padding()))
        });
        let graph = (kind != Kind::Words).then(|| Sage::new(packages.count(), vb.pp("graph")));
        let (words, graph) = (words.transpose()?, graph.transpose()?);
        let width = words.as_ref().map_or(0, |_| WORD) + graph.as_ref().map_or(0, |_| NODE + HIDDEN);
        Ok(Self { words, graph, output: linear(width, packages.section_names.len(), vb.pp("output"))? })
    }

    pub fn forward(&self, batch: &Batch) -> Result<Tensor> {
        let words = self.words.as_ref().map(|words| words.forward(&batch.words)).transpose()?;
        let graph =
            self.graph.as_ref().map(|graph| graph.forward(&batch.first, &batch.second)).transpose()?;
        let parts: Vec<_> = words.into_iter().chain(graph).collect();
        let all = if let [one] = parts.as_slice() { one.clone() } else { Tensor::cat(&parts, 1)? };
        self.output.forward(&all)
    }

    /// Announces the ids of the next batch, whose rows are then fetched while a step ends.
    pub fn prefetch(&self, batch: &Batch) -> Result<()> {
        if let Some(words) = &self.words {
            prefetch_rows(&[(words, &batch.words)])?;
        }
        if let Some(graph) = &self.graph {
            let Sage { itself, around, .. } = graph;
            prefetch_rows(&[(itself, &batch.first), (around, &batch.first), (around, &batch.second)])?;
        }
        Ok(())
    }
}

/// GraphSAGE with the mean of sampled neighbours (Hamilton, Ying and Leskovec, 2017). A layer computes the next
/// representation of a package from its representation and the mean of its neighbours' representations. The model's
/// output layer acts as the weights of the second layer. A package's own embedding does not participate, because the
/// training packages would memorize their sections.
struct Sage {
    itself: Embedding,
    around: EmbeddingBag,
    hidden: Linear,
}

impl Sage {
    fn new(packages: usize, vb: VarBuilder) -> Result<Self> {
        // One table for a package as itself and as a neighbour.
        let itself = embedding_init(packages, NODE, TABLE, vb.pp("packages"))?;
        let around = embedding_bag_init(packages, NODE, BagMode::Mean, TABLE, vb.pp("packages"))?;
        // A smooth activation: at relu's corner, a last bit that rounds differently with another number of
        // replicas would turn a unit on or off.
        let hidden = linear(2 * NODE, HIDDEN, vb.pp("hidden"))?.with_activation(Activation::Sigmoid);
        Ok(Self { itself, around, hidden })
    }

    /// Returns `[n, NODE + HIDDEN]`: the means over each package's neighbours of their embeddings, and of the
    /// first layer's output for them.
    fn forward(&self, first: &Tensor, second: &Tensor) -> Result<Tensor> {
        let known = Tensor::cat(&[self.itself.forward(first)?, self.around.forward(second)?], D::Minus1)?;
        let hidden = self.hidden.forward(&known)?.mean(1)?;
        Tensor::cat(&[self.around.forward(first)?, hidden], 1)
    }
}
