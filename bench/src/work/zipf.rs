//! A recommender with a table of ten million rows, a few of which are looked up most of the time: row k with a
//! probability of about 1/k.

use super::formula::noise;
use super::recommender::{IDS, Recommender};
use super::training::Model;
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use distribute::nn::Products;
use distribute::{Result, Variables};

/// The model of [`Recommender`], with a larger table.
pub struct Zipf(Recommender);

/// The number of rows in the table.
const ROWS: usize = 10_000_000;

/// Returns an id for a table of [`ROWS`] rows, computed by a formula from 24 random bits.
fn id(bits: u32) -> u32 {
    let unit = f64::from(bits) / f64::from(1 << 24);
    ((ROWS as f64).powf(unit) as u32 - 1).min(ROWS as u32 - 1)
}

impl Model for Zipf {
    const NAME: &'static str = "zipf";
    const WORK: &'static str = "a recommender, table 10 000 000 × 32, 8 Zipf ids an example, 256-128-1";
    const BATCH: usize = 4096;
    const LOSS_RATE: f64 = 1.;

    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Recommender::with_rows(ROWS, vb).map(Self)
    }

    fn loss(&self, ids: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.0.loss(ids, targets)
    }

    fn stock_loss(vb: &VarBuilder<'_>, ids: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        Recommender::stock_loss_of(ROWS, vb, ids, targets)
    }

    fn products(rows: usize) -> Vec<Products> {
        Recommender::products(rows)
    }

    /// Sets the layers. The rows keep their initial values, which do not change the time of a step.
    fn set_formula(variables: &Variables) -> Result<()> {
        Recommender::set_layers(variables)
    }

    fn batch(number: u32, first: usize, rows: usize) -> Result<(Tensor, Tensor)> {
        let ids: Vec<u32> = (first * IDS..(first + rows) * IDS).map(|i| id(noise(300 + number, i))).collect();
        let targets = ids.iter().step_by(IDS).map(|id| (id % 2) as f32).collect();
        let ids = Tensor::from_vec(ids, (rows, IDS), &Device::Cpu)?;
        Ok((ids, Tensor::from_vec::<_, f32>(targets, (rows, 1), &Device::Cpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_rows_and_small_ones_are_frequent() {
        let ids: Vec<_> = (0..100_000).map(|i| id(noise(300, i))).collect();
        assert!(ids.iter().all(|id| (*id as usize) < ROWS) && id(u32::MAX >> 8) as usize >= ROWS - 20);
        let below = |bound| ids.iter().filter(|id| **id < bound).count() as f64 / ids.len() as f64;
        // The logarithm of an id is uniform, and three of seven orders of magnitude are below a thousand.
        assert!((below(1_000) - 3. / 7.).abs() < 0.01, "{}", below(1_000));
    }
}
