//! An MLP with layers of 784, 512, 256 and 10 elements, whose speed is limited by matrix products.

use super::formula::{noise, unit};
use super::training::{Model, set_layer};
use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use distribute::nn::{Linear, Products, linear, loss};
use distribute::{Result, Variables};

/// Three linear layers, of which the first two are followed by relu.
pub struct Mlp([Linear; 3]);

/// The widths of the layers.
const WIDTHS: [(usize, usize); 3] = [(784, 512), (512, 256), (256, 10)];
const NAMES: [&str; 3] = ["a", "b", "c"];

impl Model for Mlp {
    const NAME: &'static str = "mlp";
    const WORK: &'static str = "an MLP 784-512-256-10";
    const BATCH: usize = 128;
    const LOSS_RATE: f64 = 0.1;

    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let [a, b, c] = WIDTHS;
        Ok(Self([
            linear(a.0, a.1, vb.pp(NAMES[0]))?.with_activation(Relu),
            linear(b.0, b.1, vb.pp(NAMES[1]))?.with_activation(Relu),
            linear(c.0, c.1, vb.pp(NAMES[2]))?,
        ]))
    }

    fn loss(&self, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let [a, b, c] = &self.0;
        loss::cross_entropy(&c.forward(&b.forward(&a.forward(images)?)?)?, labels)
            .map_err(distribute::Error::from)
    }

    fn stock_loss(vb: &VarBuilder<'_>, images: &Tensor, labels: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = images.clone();
        for ((width, height), name) in WIDTHS.into_iter().zip(NAMES) {
            x = candle_nn::linear(width, height, vb.pp(name))?.forward(&x)?;
            if name != "c" {
                x = x.relu()?;
            }
        }
        candle_nn::loss::cross_entropy(&x, labels)
    }

    fn products(rows: usize) -> Vec<Products> {
        // The gradient of the images is not needed.
        WIDTHS.into_iter().enumerate().map(|(k, widths)| Products::new(rows, widths, k > 0)).collect()
    }

    fn set_formula(variables: &Variables) -> Result<()> {
        (0..).zip(WIDTHS).zip(NAMES).try_for_each(|((k, widths), name)| set_layer(variables, name, k, widths))
    }

    fn batch(number: u32, first: usize, rows: usize) -> Result<(Tensor, Tensor)> {
        let labels: Vec<u32> = (first..first + rows).map(|i| noise(200 + number, i) % 10).collect();
        let mut images: Vec<f32> =
            (first * 784..(first + rows) * 784).map(|i| unit(100 + number, i)).collect();
        // Makes the data learnable: for each label, its own ten pixels are brighter.
        for (image, label) in images.chunks_mut(784).zip(&labels) {
            image[*label as usize * 10..][..10].iter_mut().for_each(|pixel| *pixel += 1.);
        }
        let images = Tensor::from_vec(images, (rows, 784), &Device::Cpu)?;
        Ok((images, Tensor::from_vec(labels, rows, &Device::Cpu)?))
    }
}
