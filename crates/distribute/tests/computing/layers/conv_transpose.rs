//! Transposed convolutions: values by definition, candle's values if it has the same operation, and gradients compared
//! with finite differences.

use super::{assert_close, by_differences, flat, numbers, var};
use candle_core::{DType, Device, Module, Tensor};
use distribute::nn::{ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig};

/// Returns the result for `x`, `[n, in, length]`, by the definition: element i of x times element k of the kernel is
/// added at i · stride + k · dilation.
fn by_definition(x: &Tensor, weight: &Tensor, bias: &Tensor, config: &ConvTranspose1dConfig) -> Vec<f64> {
    let &ConvTranspose1dConfig { padding, output_padding, stride, dilation, groups } = config;
    let (images, inputs, length) = x.dims3().unwrap();
    let (_, channels, width) = weight.dims3().unwrap();
    let size = (length - 1) * stride + dilation * (width - 1) + 1 + output_padding - 2 * padding;
    let (x, weight, bias) = (flat(x), flat(weight), flat(bias));
    let mut y: Vec<f64> =
        (0..images * channels * groups * size).map(|at| bias[at / size % bias.len()]).collect();
    for image in 0..images {
        for input in 0..inputs {
            let group = input / (inputs / groups);
            for (channel, i, k) in (0..channels)
                .flat_map(|channel| (0..length).flat_map(move |i| (0..width).map(move |k| (channel, i, k))))
            {
                let Some(at) = (i * stride + k * dilation).checked_sub(padding).filter(|at| *at < size)
                else {
                    continue;
                };
                let output = (image * groups + group) * channels + channel;
                y[output * size + at] += x[(image * inputs + input) * length + i]
                    * weight[(input * channels + channel) * width + k];
            }
        }
    }
    y
}

#[test]
fn sequences_follow_the_definition_with_gradients_of_differences() {
    for (padding, output_padding, stride, dilation, groups) in
        [(0, 0, 1, 1, 1), (1, 1, 2, 1, 2), (2, 0, 3, 2, 1), (0, 2, 1, 3, 4), (1, 2, 2, 1, 1)]
    {
        let config = ConvTranspose1dConfig { padding, output_padding, stride, dilation, groups };
        let (x, weight, bias) = (var(&[2, 4, 5]), var(&[4, 3, 3]), var(&[3 * groups]));
        let layer = ConvTranspose1d::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()), config);
        let y = layer.forward(&x).unwrap();
        let expected = by_definition(&x, &weight, &bias, &config);
        assert_eq!(y.elem_count(), expected.len(), "{config:?}");
        for (found, expected) in flat(&y).into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{config:?}: {found}, not {expected}");
        }
        let of_each = numbers(y.dims(), DType::F64);
        let loss = || (layer.forward(&x)? * &of_each)?.sum_all();
        let store = loss().unwrap().backward().unwrap();
        for (name, of) in [("x", &x), ("weight", &weight), ("bias", &bias)] {
            for (found, expected) in flat(store.get(of).unwrap()).into_iter().zip(by_differences(of, &loss)) {
                assert!((found - expected).abs() < 1e-6, "{config:?} {name}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn images_have_candles_values_and_gradients_of_differences() {
    for (padding, output_padding, stride, dilation) in
        [(0, 0, 1, 1), (1, 1, 2, 1), (1, 0, 2, 2), (0, 2, 1, 1)]
    {
        let config = ConvTranspose2dConfig { padding, output_padding, stride, dilation };
        let (x, weight, bias) = (var(&[2, 3, 4, 3]), var(&[3, 2, 3, 2]), var(&[2]));
        for with_bias in [true, false] {
            let bias_of = with_bias.then(|| bias.as_tensor().clone());
            let layer = ConvTranspose2d::new(weight.as_tensor().clone(), bias_of.clone(), config);
            let stock = candle_nn::ConvTranspose2d::new(weight.as_tensor().clone(), bias_of, config);
            let y = layer.forward(&x).unwrap();
            assert_close(&y, &stock.forward(&x).unwrap(), 1e-12, &format!("{config:?}"));
            let of_each = numbers(y.dims(), DType::F64);
            let loss = || (layer.forward(&x)? * &of_each)?.sum_all();
            let store = loss().unwrap().backward().unwrap();
            let all = [("x", &x), ("weight", &weight), ("bias", &bias)];
            for (name, of) in &all[..if with_bias { 3 } else { 2 }] {
                for (found, expected) in
                    flat(store.get(of).unwrap()).into_iter().zip(by_differences(of, &loss))
                {
                    assert!((found - expected).abs() < 1e-6, "{config:?} {name}: {found}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn empty_input_gives_empty_output_and_mismatches_are_refused() {
    let config = ConvTranspose2dConfig { padding: 1, stride: 2, ..Default::default() };
    let layer =
        ConvTranspose2d::new(numbers(&[3, 2, 3, 3], DType::F32), Some(numbers(&[2], DType::F32)), config);
    let none = Tensor::zeros((0, 3, 4, 5), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&none).unwrap().dims(), [0, 2, 7, 9]);
    let error = layer.forward(&numbers(&[1, 4, 5, 5], DType::F32)).unwrap_err().to_string();
    assert!(error.contains("4 channels don't fit a weight [3, 2, 3, 3]"), "{error}");
    for config in [
        ConvTranspose2dConfig { stride: usize::MAX, ..config },
        ConvTranspose2dConfig { dilation: 1 << 62, ..config },
        ConvTranspose2dConfig { output_padding: usize::MAX, ..config },
        ConvTranspose2dConfig { output_padding: 1 << 62, ..config },
        ConvTranspose2dConfig { padding: usize::MAX, ..config },
    ] {
        let layer = ConvTranspose2d::new(numbers(&[3, 2, 3, 3], DType::F32), None, config);
        for images in [0, 1] {
            let x = numbers(&[1, 3, 5, 5], DType::F32).narrow(0, 0, images).unwrap();
            let error = layer.forward(&x).unwrap_err().to_string();
            assert!(error.starts_with("conv_transpose2d: "), "{config:?}: {error}");
        }
    }
    let config = ConvTranspose1dConfig { padding: 3, output_padding: 1, ..Default::default() };
    let layer =
        ConvTranspose1d::new(numbers(&[3, 2, 3], DType::F32), Some(numbers(&[2], DType::F32)), config);
    let none = Tensor::zeros((0, 3, 9), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&none).unwrap().dims(), [0, 2, 6]);
    let error = layer.forward(&numbers(&[1, 3, 2], DType::F32)).unwrap_err().to_string();
    assert!(error.contains("a padding of 3 cuts off all of the 4 + 1 elements"), "{error}");
    let error = layer.forward(&numbers(&[3, 2], DType::F32)).unwrap_err().to_string();
    assert!(error.contains("x has to be [n, in, length]") && error.contains("[3, 2]"), "{error}");
}
