//! The main job in small: a model trains to the same weights on 1 to 8 replicas.

#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::data::Dataset;
use distribute::{nn::loss, prelude::*};

struct Mlp {
    a: Linear,
    b: Linear,
}
impl Mlp {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self { a: linear(4, 8, vb.pp("a"))?, b: linear(8, 3, vb.pp("b"))? })
    }
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.b.forward(&self.a.forward(x)?.relu()?)
    }
}

fn train(strategy: &Strategy, clip: bool) -> distribute::Result<(f32, Tensor)> {
    let model = strategy.replicate(|vb: VarBuilder| Mlp::new(vb))?;
    let mut optimizer = Adam::new(&model.variables, 1e-2)?;
    if clip {
        optimizer = optimizer.clip_global_norm(0.1)?;
    }
    let x = Tensor::arange(0f32, 40., &Device::Cpu)?.reshape((10, 4))?.affine(0.05, 0.)?;
    let y = Tensor::from_vec((0..10).map(|i| i % 3).collect::<Vec<u32>>(), 10, &Device::Cpu)?;
    let batches = strategy.distribute_dataset(Dataset::from_slices((x, y))?.batch(4))?;
    let mut last = 0.;
    for _ in 0..10 {
        for batch in &batches {
            let loss = strategy.run((&model, batch?), |ctx, (model, (x, y))| {
                let loss = loss::cross_entropy(&model.forward(&x)?, &y)?;
                optimizer.minimize(ctx, loss, y.dim(0)?)
            })?;
            last = loss.values()[0].to_scalar::<f32>()?;
        }
    }
    Ok((last, model.variables.get("a.weight")?.to_dtype(DType::F64)?))
}

// INV-9: with 8 replicas, and in each last batch with 3 or more, some pieces are empty.
#[test]
fn trains() {
    for clip in [false, true] {
        let (l1, w1) = train(&OneDeviceStrategy::new("cpu:0").unwrap(), clip).unwrap();
        for n in [1, 2, 3, 4, 8] {
            let (l, w) = train(&MirroredStrategy::cpus(n).unwrap(), clip).unwrap();
            let d = (w - &w1).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
            println!("{n} {l} {d}");
            assert!((l - l1).abs() < 1e-5 && d < 1e-5);
        }
    }
}
