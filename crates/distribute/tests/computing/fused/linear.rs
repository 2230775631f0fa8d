//! `nn::Linear` compared with candle_nn's.

use crate::fused::{Lies, assert_same, numbers, results};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Activation, VarBuilder};
use distribute::nn;
use proptest::prelude::*;

fn activations() -> Vec<Option<Activation>> {
    use Activation::*;
    let all = [
        Gelu,
        NewGelu,
        Relu,
        Relu2,
        Relu6,
        Silu,
        Sigmoid,
        HardSigmoid,
        Swish,
        HardSwish,
        Elu(0.7),
        LeakyRelu(0.1),
        LeakyRelu(0.),
        LeakyRelu(-0.2),
        GeluPytorchTanh,
    ];
    all.map(Some).into_iter().chain([None]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn equals_candles(
        dims in prop::collection::vec(1usize..6, 1..4),
        (width, out) in (1usize..20, 1usize..20),
        (f64, bias, activation) in (any::<bool>(), any::<bool>(), prop::sample::select(activations())),
        lies in prop::array::uniform2(prop::sample::select(vec![Lies::Plain, Lies::Transposed, Lies::Inside])),
    ) {
        let dtype = if f64 { DType::F64 } else { DType::F32 };
        let shape = [dims.as_slice(), &[width]].concat();
        let mut inputs = vec![(numbers(&shape, dtype, 1), lies[0]), (numbers(&[out, width], dtype, 2), lies[1])];
        if bias {
            inputs.push((numbers(&[out], dtype, 3), Lies::Inside));
        }
        let fast = results(&inputs, |t| {
            let layer = nn::Linear::new(t[1].clone(), t.get(2).cloned());
            activation.map_or(layer.clone(), |activation| layer.with_activation(activation)).forward(&t[0])
        });
        let stock = results(&inputs, |t| {
            let y = t[0].contiguous()?.broadcast_matmul(&t[1].t()?.contiguous()?)?;
            let y = t.get(2).map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))?;
            match activation {
                Some(activation) => activation.forward(&y),
                None => Ok(y),
            }
        });
        assert_same(&fast.unwrap(), &stock.unwrap(), &format!("{shape:?} {out} {activation:?} {lies:?}"));
    }
}

#[test]
fn swiglu_halves_the_outputs() {
    for shape in [&[3, 4][..], &[2, 3, 4]] {
        let inputs =
            [(numbers(shape, DType::F64, 1), Lies::Plain), (numbers(&[6, 4], DType::F64, 2), Lies::Plain)];
        let fast = results(&inputs, |t| {
            nn::Linear::new(t[1].clone(), None).with_activation(Activation::Swiglu).forward(&t[0])
        });
        let stock = results(&inputs, |t| candle_nn::ops::swiglu(&t[0].broadcast_matmul(&t[1].t()?)?));
        assert_same(&fast.unwrap(), &stock.unwrap(), "swiglu");
    }
}

#[test]
fn at_inputs_of_0_relu_has_no_slope_and_leaky_relu_the_lower_one() {
    let (x, weight) =
        (numbers(&[4, 3], DType::F64, 1), numbers(&[2, 3], DType::F64, 2).zeros_like().unwrap());
    let total = crate::fused::flat(&x.sum(0).unwrap()).repeat(2);
    for (activation, slope) in [(Activation::Relu, 0.), (Activation::LeakyRelu(0.1), 0.1)] {
        let weight = candle_core::Var::from_tensor(&weight).unwrap();
        let layer = nn::Linear::new(weight.as_tensor().clone(), None).with_activation(activation);
        let store = layer.forward(&x).unwrap().sum_all().unwrap().backward().unwrap();
        let near = |(g, total): (&f64, &f64)| (g - slope * total).abs() < 1e-12;
        assert!(
            crate::fused::flat(store.get(&weight).unwrap()).iter().zip(&total).all(near),
            "{activation:?}"
        );
    }
}

#[test]
fn zero_rows_and_other_shapes_equal_candles() {
    let layer = nn::Linear::new(numbers(&[3, 4], DType::F32, 1), Some(numbers(&[3], DType::F32, 2)));
    let none = Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&none).unwrap().dims(), [0, 3]);
    assert!(layer.forward(&numbers(&[2, 5], DType::F32, 3)).is_err());
    assert!(layer.forward(&numbers(&[2, 4], DType::F64, 3)).is_err());
    let half = layer.weight().to_dtype(DType::F16).unwrap();
    let y = nn::Linear::new(half, None).forward(&numbers(&[2, 4], DType::F16, 3)).unwrap();
    assert_eq!((y.dims(), y.dtype()), ([2, 3].as_slice(), DType::F16));
}

#[test]
fn variables_have_the_names_of_candles_layers() {
    let strategy = distribute::OneDeviceStrategy::new("cpu:0").unwrap();
    let fast = strategy.replicate_seeded(3, |vb: VarBuilder| {
        let _ = nn::linear(3, 4, vb.pp("a"))?;
        let _ = nn::linear_no_bias(3, 4, vb.pp("b"))?;
        let _ = nn::layer_norm(3, 1e-5, vb.pp("c"))?;
        let _ = nn::rms_norm(3, 1e-5, vb.pp("d"))?;
        let _ = nn::layer_norm_no_bias(3, 1e-5, vb.pp("e"))?;
        let _ = nn::conv2d_no_bias(2, 4, 3, nn::Conv2dConfig::default(), vb.pp("f"))?;
        nn::conv2d(2, 4, 3, nn::Conv2dConfig::default(), vb.pp("g")).map(drop)
    });
    let stock = strategy.replicate_seeded(3, |vb: VarBuilder| {
        let _ = candle_nn::linear(3, 4, vb.pp("a"))?;
        let _ = candle_nn::linear_no_bias(3, 4, vb.pp("b"))?;
        let _ = candle_nn::layer_norm(3, 1e-5, vb.pp("c"))?;
        let _ = candle_nn::rms_norm(3, 1e-5, vb.pp("d"))?;
        let _ = candle_nn::layer_norm_no_bias(3, 1e-5, vb.pp("e"))?;
        let _ = candle_nn::conv2d_no_bias(2, 4, 3, nn::Conv2dConfig::default(), vb.pp("f"))?;
        candle_nn::conv2d(2, 4, 3, nn::Conv2dConfig::default(), vb.pp("g")).map(drop)
    });
    let (fast, stock) = (fast.unwrap().variables, stock.unwrap().variables);
    assert_eq!(fast.names(), stock.names());
    for name in fast.names() {
        let (a, b) = (fast.get(&name).unwrap(), stock.get(&name).unwrap());
        let different = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().sum(D::Minus1).unwrap();
        assert_eq!(different.to_scalar::<f32>().unwrap(), 0., "{name}");
    }
}

#[test]
fn zero_rows_are_accepted_for_each_rank() {
    let layer = nn::Linear::new(numbers(&[2, 3], DType::F32, 1), Some(numbers(&[2], DType::F32, 2)));
    for dims in [&[0][..], &[0, 4], &[4, 0], &[2, 0, 5]] {
        let y = layer.forward(&Tensor::zeros([dims, &[3]].concat(), DType::F32, &Device::Cpu).unwrap());
        assert_eq!(y.unwrap().dims(), [dims, &[2]].concat());
    }
}

#[test]
fn a_result_that_no_memory_holds_is_an_error() {
    // The number of elements wraps to 0. All rows are views of one number, so the test needs little memory.
    let half = 1usize << (usize::BITS / 2);
    let long = numbers(&[1, 1], DType::F32, 1).broadcast_as((half, 1)).unwrap();
    let error = nn::Linear::new(long.clone(), None).forward(&long).unwrap_err().to_string();
    assert!(error.contains("linear") && error.contains("more elements than memory has addresses"), "{error}");
}
