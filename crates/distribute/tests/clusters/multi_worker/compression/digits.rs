//! The loss of a training on handwritten digits, for each kind of compression.

use super::{LOSSY, on_groups};
use candle_core::{Device, Tensor};
use candle_nn::{Activation, Module};
use distribute::data::Csv;
use distribute::nn::{linear, loss};
use distribute::strategy::{Compression, Links};
use distribute::{Adam, Error, Result, Strategy};
use distribute_collective::group::local;
use distribute_testing::watched;

/// Trains on the digits, and returns the mean loss of the last epoch.
fn train(strategy: &Strategy, epochs: usize) -> Result<f64> {
    let bytes = include_bytes!("../../../../../../examples/data/digits.csv.gz");
    let (images, labels) = Csv::bytes("digits.csv.gz", bytes).without_header().labelled(64)?.load()?;
    let images = (images.to_candle(&Device::Cpu)? / 16.)?;
    let digits = distribute::Dataset::from_slices((images, labels.to_candle(&Device::Cpu)?))?;
    let batches = strategy.distribute_dataset(digits.shuffle(1797, 1).batch(64))?;
    let model = strategy.replicate_seeded(5, |vb| {
        Ok::<_, Error>((
            linear(64, 128, vb.pp("hidden"))?.with_activation(Activation::Relu),
            linear(128, 10, vb.pp("out"))?,
        ))
    })?;
    let optimizer = Adam::new(&model.variables, 1e-3)?;
    let mut last = Vec::new();
    for _ in 0..epochs {
        last.clear();
        for batch in &batches {
            let losses = strategy.run(
                (&model, batch?),
                |ctx, ((hidden, out), (images, labels)): (_, (Tensor, Tensor))| {
                    let loss = loss::cross_entropy(&out.forward(&hidden.forward(&images)?)?, &labels)?;
                    optimizer.minimize(ctx, loss, labels.dim(0)?)
                },
            )?;
            last.push(f64::from(losses.values()[0].to_scalar::<f32>()?));
        }
    }
    Ok(last.iter().sum::<f64>() / last.len() as f64)
}

/// Returns and prints the final loss for each kind of compression.
fn losses(epochs: usize, forms: &[Compression]) -> Vec<f64> {
    let of = |form: &Compression| {
        let groups = local::groups(Links::Memory, 2, 1).unwrap();
        let loss = on_groups(groups, |_| *form, |strategy| train(strategy, epochs))[0];
        println!("{form}, {epochs} epochs: {loss:.4}");
        loss
    };
    forms.iter().map(of).collect()
}

#[test]
fn eight_bits_change_the_final_loss_on_digits_by_little() {
    watched(|| {
        let all = losses(14, &[Compression::None, Compression::EightBits]);
        let change = all[1] / all[0] - 1.;
        assert!(change.abs() < 0.005, "{:+.2} %", change * 100.);
    });
}

#[test]
fn a_hundredth_of_the_bytes_trains_on_digits() {
    watched(|| {
        // Before the first step, the loss is 2.3.
        for loss in losses(8, &LOSSY[1..]) {
            assert!(loss < 1.);
        }
    });
}
