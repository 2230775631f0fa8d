//! `nn::Conv2d` compared with candle_nn's.

use crate::fused::{Lies, assert_same, numbers, results};
use candle_core::{DType, Device, Module, Result, Tensor};
use distribute::nn::{Conv2d, Conv2dConfig};
use proptest::prelude::*;

/// Computes a convolution by its definition: the sum over the weights of the kernel, each times the elements under it.
fn plain(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &Conv2dConfig) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let (outputs, channels, k_height, k_width) = weight.dims4()?;
    let &Conv2dConfig { padding, stride, dilation, groups, .. } = config;
    let x = x.pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
    let of = |input: usize, kernel: usize| (input + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    let (out_height, out_width) = (of(height, k_height), of(width, k_width));
    let ids = |start: usize, n: usize| {
        Tensor::from_vec((0..n).map(|i| (start + i * stride) as u32).collect::<Vec<_>>(), n, &Device::Cpu)
    };
    let mut all = Vec::new();
    for output in 0..outputs {
        let group = output / (outputs / groups);
        let mut sum: Option<Tensor> = None;
        for channel in 0..channels {
            let plane = x.narrow(1, group * channels + channel, 1)?;
            for k_y in 0..k_height {
                let lines = plane.contiguous()?.index_select(&ids(k_y * dilation, out_height)?, 2)?;
                for k_x in 0..k_width {
                    let seen = lines.index_select(&ids(k_x * dilation, out_width)?, 3)?;
                    let one = weight.narrow(0, output, 1)?.narrow(1, channel, 1)?;
                    let one = one.narrow(2, k_y, 1)?.narrow(3, k_x, 1)?;
                    let term = seen.broadcast_mul(&one)?;
                    sum = Some(sum.map_or(Ok(term.clone()), |sum| sum + term)?);
                }
            }
        }
        all.push(sum.unwrap());
    }
    let y = Tensor::cat(&all, 1)?;
    bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.reshape((1, outputs, 1, 1))?))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn equals_the_definition(
        (images, groups, channels, outputs) in (1usize..4, 1usize..3, 1usize..3, 1usize..3),
        (height, width) in (1usize..8, 1usize..8),
        (k_height, k_width) in (1usize..4, 1usize..4),
        (padding, stride, dilation) in (0usize..4, 1usize..4, 1usize..3),
        (f64, bias) in (any::<bool>(), any::<bool>()),
        lies in prop::array::uniform2(prop::sample::select(vec![Lies::Plain, Lies::Transposed, Lies::Inside])),
    ) {
        let fits = |input: usize, kernel: usize| input + 2 * padding > dilation * (kernel - 1);
        prop_assume!(fits(height, k_height) && fits(width, k_width));
        let dtype = if f64 { DType::F64 } else { DType::F32 };
        let config = Conv2dConfig { padding, stride, dilation, groups, ..Default::default() };
        let x = [images, channels * groups, height, width];
        let weight = [outputs * groups, channels, k_height, k_width];
        let mut inputs = vec![(numbers(&x, dtype, 1), lies[0]), (numbers(&weight, dtype, 2), lies[1])];
        if bias {
            inputs.push((numbers(&weight[..1], dtype, 3), Lies::Inside));
        }
        let fast = results(&inputs, |t| Conv2d::new(t[1].clone(), t.get(2).cloned(), config).forward(&t[0]));
        let stock = results(&inputs, |t| plain(&t[0], &t[1], t.get(2), &config));
        assert_same(&fast.unwrap(), &stock.unwrap(), &format!("{x:?} {weight:?} {config:?} {lies:?}"));
    }
}

#[test]
fn equals_candles_and_refuses_the_same_input() {
    for (padding, stride, dilation, groups) in [(0, 1, 1, 1), (1, 2, 1, 2), (2, 1, 2, 1), (1, 1, 1, 2)] {
        let config = Conv2dConfig { padding, stride, dilation, groups, ..Default::default() };
        let (x, w) = (numbers(&[3, 4, 9, 8], DType::F64, 1), numbers(&[6, 4 / groups, 3, 3], DType::F64, 2));
        let b = numbers(&[6], DType::F64, 3);
        let fast = Conv2d::new(w.clone(), Some(b.clone()), config).forward(&x).unwrap();
        let stock = candle_nn::Conv2d::new(w, Some(b), config).forward(&x).unwrap();
        assert_same(&[fast], &[stock], &format!("{config:?}"));
    }
    let layer = Conv2d::new(numbers(&[2, 3, 3, 3], DType::F32, 1), None, Conv2dConfig::default());
    assert!(layer.forward(&numbers(&[1, 2, 5, 5], DType::F32, 1)).is_err());
    assert!(layer.forward(&numbers(&[3, 5, 5], DType::F32, 1)).is_err());
    assert!(layer.forward(&numbers(&[1, 3, 5, 5], DType::F64, 1)).is_err());
    // With this padding, the number of output positions overflows.
    let padded = Conv2dConfig { padding: 1 << (usize::BITS / 2 - 1), ..Default::default() };
    let huge = Conv2d::new(numbers(&[2, 3, 1, 1], DType::F32, 1), None, padded);
    let error = huge.forward(&numbers(&[1, 3, 2, 2], DType::F32, 1)).unwrap_err().to_string();
    assert!(error.contains("conv2d") && error.contains("more elements than memory has addresses"), "{error}");
    // candle panics in this case.
    assert!(
        layer
            .forward(&numbers(&[1, 3, 2, 5], DType::F32, 1))
            .unwrap_err()
            .to_string()
            .contains("does not fit")
    );
    assert!(layer.forward(&numbers(&[0, 3, 5, 2], DType::F32, 1)).is_err());
    let config = Conv2dConfig { stride: 0, ..Default::default() };
    let layer = Conv2d::new(layer.weight().clone(), None, config);
    assert!(layer.forward(&numbers(&[1, 3, 5, 5], DType::F32, 1)).is_err());
}
