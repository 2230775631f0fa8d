//! `nn::LayerNorm` and `nn::RmsNorm` compared with candle's operations that have gradients.

use crate::fused::{Lies, assert_same, numbers, results};
use candle_core::{D, DType, Device, Module, Result, Tensor};
use distribute::nn::{LayerNorm, RmsNorm};
use proptest::prelude::*;

/// Computes the norm by its definition.
fn plain(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, remove_mean: bool, eps: f64) -> Result<Tensor> {
    let size = x.dim(D::Minus1)? as f64;
    let x = if remove_mean { x.broadcast_sub(&(x.sum_keepdim(D::Minus1)? / size)?)? } else { x.clone() };
    let variance = (x.sqr()?.sum_keepdim(D::Minus1)? / size)?;
    let y = x.broadcast_div(&(variance + eps)?.sqrt()?)?.broadcast_mul(weight)?;
    bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn equals_the_definition(
        dims in prop::collection::vec(1usize..5, 0..4),
        size in 1usize..40,
        (f64, bias, remove_mean) in (any::<bool>(), any::<bool>(), any::<bool>()),
        lies in prop::array::uniform2(prop::sample::select(vec![Lies::Plain, Lies::Transposed, Lies::Inside])),
    ) {
        let dtype = if f64 { DType::F64 } else { DType::F32 };
        let shape = [dims.as_slice(), &[size]].concat();
        let mut inputs = vec![(numbers(&shape, dtype, 1), lies[0]), (numbers(&[size], dtype, 2), lies[1])];
        if bias && remove_mean {
            inputs.push((numbers(&[size], dtype, 3), Lies::Inside));
        }
        let fast = results(&inputs, |t| match (t.get(2), remove_mean) {
            (Some(bias), _) => LayerNorm::new(t[1].clone(), bias.clone(), 1e-3).forward(&t[0]),
            (None, true) => LayerNorm::new_no_bias(t[1].clone(), 1e-3).forward(&t[0]),
            (None, false) => RmsNorm::new(t[1].clone(), 1e-3).forward(&t[0]),
        });
        let stock = results(&inputs, |t| plain(&t[0], &t[1], t.get(2), remove_mean, 1e-3));
        assert_same(&fast.unwrap(), &stock.unwrap(), &format!("{shape:?} {remove_mean} {lies:?}"));
    }
}

#[test]
fn a_mean_far_from_0_costs_no_precision() {
    let x = (numbers(&[4, 33], DType::F64, 1) + 1e6).unwrap();
    let inputs = [(x, Lies::Plain), (numbers(&[33], DType::F64, 2), Lies::Plain)];
    let fast = results(&inputs, |t| LayerNorm::new_no_bias(t[1].clone(), 1e-5).forward(&t[0])).unwrap();
    let stock = results(&inputs, |t| plain(&t[0], &t[1], None, true, 1e-5)).unwrap();
    // The elements are accurate to 1e-10 of their distance from the mean.
    for (fast, stock) in fast.iter().zip(&stock) {
        let apart = (fast - stock).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
        assert!(apart < 1e-8, "{apart}");
    }
}

#[test]
fn half_precision_can_be_trained_and_zero_rows_are_accepted() {
    let inputs = [
        (numbers(&[4, 6], DType::F16, 1), Lies::Plain),
        (numbers(&[6], DType::F16, 2), Lies::Plain),
        (numbers(&[6], DType::F16, 3), Lies::Plain),
    ];
    let all = results(&inputs, |t| LayerNorm::new(t[1].clone(), t[2].clone(), 1e-3).forward(&t[0])).unwrap();
    let wide = inputs.map(|(t, lies)| (t.to_dtype(DType::F32).unwrap(), lies));
    let exact = results(&wide, |t| plain(&t[0], &t[1], t.get(2), true, 1e-3)).unwrap();
    for (half, exact) in all.iter().zip(&exact) {
        let apart = (half.to_dtype(DType::F32).unwrap() - exact).unwrap().abs().unwrap();
        assert!(apart.max_all().unwrap().to_scalar::<f32>().unwrap() < 0.05, "{half} {exact}");
    }
    let layer = LayerNorm::new(numbers(&[6], DType::F32, 2), numbers(&[6], DType::F32, 3), 1e-3);
    let none = Tensor::zeros((0, 6), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&none).unwrap().dims(), [0, 6]);
    assert!(layer.forward(&numbers(&[2, 5], DType::F32, 1)).is_err());
}

#[test]
fn a_scalar_is_an_error() {
    let nothing = Tensor::zeros(0, DType::F32, &Device::Cpu).unwrap();
    let scalar = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    assert!(LayerNorm::new(nothing.clone(), nothing.clone(), 1e-3).forward(&scalar).is_err());
    assert!(RmsNorm::new(nothing, 1e-3).forward(&scalar).is_err());
}
