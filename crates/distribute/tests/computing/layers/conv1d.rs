//! Convolution of sequences: candle's values, and gradients compared with finite differences, because candle's own are
//! wrong.

use super::{assert_close, by_differences, flat, numbers, var};
use candle_core::{DType, Device, Module, Tensor};
use distribute::nn::{Conv1d, Conv1dConfig};

fn config(padding: usize, stride: usize, dilation: usize, groups: usize) -> Conv1dConfig {
    Conv1dConfig { padding, stride, dilation, groups, ..Default::default() }
}

#[test]
fn values_equal_candles_and_gradients_differences() {
    for (padding, stride, dilation, groups) in
        [(0, 1, 1, 1), (0, 2, 1, 1), (1, 1, 1, 1), (2, 2, 1, 2), (0, 1, 2, 1), (1, 3, 2, 2)]
    {
        let config = config(padding, stride, dilation, groups);
        let (x, weight, bias) = (var(&[3, 4, 8]), var(&[6, 4 / groups, 3]), var(&[6]));
        let layer = Conv1d::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()), config);
        let stock =
            candle_nn::Conv1d::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()), config);
        let y = layer.forward(&x).unwrap();
        assert_close(&y, &stock.forward(&x).unwrap(), 1e-12, &format!("{config:?}"));

        let of_each = numbers(y.dims(), DType::F64);
        let loss = || (layer.forward(&x)? * &of_each)?.sum_all();
        let gradients = loss().unwrap().backward().unwrap();
        for (name, of) in [("x", &x), ("weight", &weight), ("bias", &bias)] {
            let found = flat(gradients.get(of).unwrap());
            for (found, expected) in found.into_iter().zip(by_differences(of, &loss)) {
                assert!((found - expected).abs() < 1e-6, "{config:?} {name}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn zero_sequences_give_zero_sequences_and_other_shapes_are_refused() {
    let layer = Conv1d::new(numbers(&[6, 4, 3], DType::F32), None, config(1, 2, 1, 1));
    let none = Tensor::zeros((0, 4, 8), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&none).unwrap().dims(), [0, 6, 4]);
    let error = layer.forward(&numbers(&[4, 8], DType::F32)).unwrap_err().to_string();
    assert!(error.contains("x has to be [n, in, length]") && error.contains("[4, 8]"), "{error}");
    for padding in [1 << 62, usize::MAX] {
        let layer = Conv1d::new(numbers(&[6, 4, 3], DType::F32), None, config(padding, 2, 1, 1));
        for x in [&none, &numbers(&[1, 4, 8], DType::F32)] {
            let error = layer.forward(x).unwrap_err().to_string();
            assert!(
                error.contains("conv1d: the result") && error.contains("than memory has addresses"),
                "{error}"
            );
        }
    }
}
