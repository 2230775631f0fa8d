//! A recommender: it concatenates the embeddings of eight ids from a table of 100 000 × 32, and applies two layers. Its
//! speed is limited by memory.

use super::formula::{noise, unit};
use super::training::{Model, set_layer};
use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use distribute::nn::{Embedding, Linear, Products, embedding, linear, loss};
use distribute::{Result, Variables};

/// A table and two linear layers, of which the first is followed by relu.
pub struct Recommender {
    table: Embedding,
    hidden: Linear,
    out: Linear,
}

/// The number of rows in the table.
pub const ROWS: usize = 100_000;
/// The number of columns in the table.
pub const WIDTH: usize = 32;
/// The number of ids in an example.
pub const IDS: usize = 8;
const HIDDEN: (usize, usize) = (IDS * WIDTH, 128);
const OUT: (usize, usize) = (128, 1);

impl Recommender {
    /// Creates the model with the given number of rows in its table.
    pub fn with_rows(rows: usize, vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            table: embedding(rows, WIDTH, vb.pp("table"))?,
            hidden: linear(HIDDEN.0, HIDDEN.1, vb.pp("hidden"))?.with_activation(Relu),
            out: linear(OUT.0, OUT.1, vb.pp("out"))?,
        })
    }

    /// Returns the loss of candle_nn's layers, with a table of `table` rows.
    pub fn stock_loss_of(
        table: usize,
        vb: &VarBuilder<'_>,
        ids: &Tensor,
        targets: &Tensor,
    ) -> candle_core::Result<Tensor> {
        let rows = candle_nn::embedding(table, WIDTH, vb.pp("table"))?.forward(ids)?.flatten_from(1)?;
        let hidden = candle_nn::linear(HIDDEN.0, HIDDEN.1, vb.pp("hidden"))?.forward(&rows)?.relu()?;
        let logits = candle_nn::linear(OUT.0, OUT.1, vb.pp("out"))?.forward(&hidden)?;
        candle_nn::loss::binary_cross_entropy_with_logit(&logits, targets)
    }

    /// Sets the weights of the layers behind the table.
    pub fn set_layers(variables: &Variables) -> Result<()> {
        set_layer(variables, "hidden", 0, HIDDEN)?;
        set_layer(variables, "out", 1, OUT)
    }

    /// Returns ids for a table with `table` rows, and targets. A target is 1 if the example's first id is in the first
    /// half of the table.
    pub fn batch_of(table: usize, number: u32, first: usize, rows: usize) -> Result<(Tensor, Tensor)> {
        let drawn = (first * IDS..(first + rows) * IDS).map(|i| noise(300 + number, i) % table as u32);
        let ids: Vec<u32> = drawn.collect();
        let targets = ids.iter().step_by(IDS).map(|id| f32::from((*id as usize) < table / 2)).collect();
        let ids = Tensor::from_vec(ids, (rows, IDS), &Device::Cpu)?;
        Ok((ids, Tensor::from_vec::<_, f32>(targets, (rows, 1), &Device::Cpu)?))
    }
}

impl Model for Recommender {
    const NAME: &'static str = "recommender";
    const WORK: &'static str = "a recommender, table 100 000 × 32, 8 ids an example, 256-128-1";
    const BATCH: usize = 1024;
    const LOSS_RATE: f64 = 1.;

    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Self::with_rows(ROWS, vb)
    }

    fn loss(&self, ids: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let rows = self.table.side_by_side(ids)?;
        let logits = self.out.forward(&self.hidden.forward(&rows)?)?;
        Ok(loss::binary_cross_entropy_with_logit(&logits, targets)?)
    }

    fn stock_loss(vb: &VarBuilder<'_>, ids: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        Self::stock_loss_of(ROWS, vb, ids, targets)
    }

    fn products(rows: usize) -> Vec<Products> {
        [HIDDEN, OUT].map(|widths| Products::new(rows, widths, true)).into()
    }

    fn set_formula(variables: &Variables) -> Result<()> {
        let table = (0..ROWS * WIDTH).map(|i| unit(10, i) - 0.5).collect::<Vec<_>>();
        variables.set("table.weight", &Tensor::from_vec(table, (ROWS, WIDTH), &Device::Cpu)?)?;
        Self::set_layers(variables)
    }

    fn batch(number: u32, first: usize, rows: usize) -> Result<(Tensor, Tensor)> {
        Self::batch_of(ROWS, number, first, rows)
    }
}
