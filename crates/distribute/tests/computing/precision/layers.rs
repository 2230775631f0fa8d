//! Layers and losses in half precision, compared with f32.

use super::HALVES;
use candle_core::{DType, Device, Module, ModuleT, Result, Tensor, Var};
use distribute::nn::rnn::RNN;
use distribute::nn::{self, MixedPrecision};

/// Returns numbers between -1 and 1.
fn numbers(shape: &[usize], phase: f64) -> Tensor {
    let len: usize = shape.iter().product();
    let all: Vec<f32> = (0..len).map(|at| ((at as f64 * 0.7 + phase).sin()) as f32).collect();
    Tensor::from_vec(all, shape, &Device::Cpu).unwrap()
}

fn var(shape: &[usize], phase: f64) -> Var {
    Var::from_tensor(&numbers(shape, phase)).unwrap()
}

/// Computes a layer and its gradients in f32 and in both half precisions, and compares them. Also checks the dtypes:
/// the result has the dtype that `dtype_of` returns, and gradients are f32.
fn compare(
    name: &str,
    variables: &[&Var],
    dtype_of: impl Fn(DType) -> DType,
    layer: impl Fn() -> Result<Tensor>,
) {
    let compute = |precision: MixedPrecision| {
        precision.scope(|| {
            let y = layer().unwrap_or_else(|error| panic!("{name} in {precision:?}: {error}"));
            // Different weights, so that gradients differ.
            let weights = numbers(y.dims(), 0.3).to_dtype(y.dtype()).unwrap();
            let loss = (&y * weights).unwrap().to_dtype(DType::F32).unwrap().sum_all().unwrap();
            let gradients = loss.backward().unwrap();
            let gradients: Vec<Tensor> = variables
                .iter()
                .map(|var| gradients.get(var).unwrap_or_else(|| panic!("{name}: no gradient")).clone())
                .collect();
            (y, gradients)
        })
    };
    let (full, full_gradients) = compute(MixedPrecision::Off);
    for (precision, half, epsilon) in HALVES {
        let (y, gradients) = compute(precision);
        assert_eq!(y.dtype(), dtype_of(half), "{name}");
        require_close(&format!("{name} in {precision:?}"), &y, &full, 8. * epsilon);
        for (gradient, full) in gradients.iter().zip(&full_gradients) {
            assert_eq!(gradient.dtype(), DType::F32, "{name}");
            require_close(&format!("a gradient of {name} in {precision:?}"), gradient, full, 16. * epsilon);
        }
    }
}

/// Panics if the tensors differ by more than `part` times the largest number.
fn require_close(name: &str, found: &Tensor, expected: &Tensor, part: f64) {
    let numbers =
        |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_eq!(found.dims(), expected.dims(), "{name}");
    let (found, expected) = (numbers(found), numbers(expected));
    let largest = expected.iter().fold(0f64, |max, x| max.max(x.abs()));
    let distance = found.iter().zip(&expected).fold(0f64, |max, (x, y)| max.max((x - y).abs()));
    assert!(distance <= part * largest, "{name}: {distance} of {largest}\n{found:?}\n{expected:?}");
}

#[test]
fn layers_with_weights_return_half_precision_and_have_gradients_in_f32() {
    let half = |half| half;
    let (x, weight, bias) = (var(&[3, 4], 0.), var(&[2, 4], 1.), var(&[2], 2.));
    let linear = nn::Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
    compare("linear", &[&x, &weight, &bias], half, || linear.forward(&x));
    let relu = linear.clone().with_activation(candle_nn::Activation::Relu);
    compare("linear with relu", &[&weight, &bias], half, || relu.forward(&x));
    let plain = nn::Linear::new(weight.as_tensor().clone(), None);
    compare("linear without bias", &[&x, &weight], half, || plain.forward(&x));

    let (image, kernel, channels) = (var(&[2, 3, 5, 6], 0.), var(&[4, 3, 2, 2], 1.), var(&[4], 2.));
    let conv =
        nn::Conv2d::new(kernel.as_tensor().clone(), Some(channels.as_tensor().clone()), Default::default());
    compare("conv2d", &[&image, &kernel, &channels], half, || conv.forward(&image));
    let (line, kernel, channels) = (var(&[2, 3, 7], 0.), var(&[4, 3, 2], 1.), var(&[4], 2.));
    let conv =
        nn::Conv1d::new(kernel.as_tensor().clone(), Some(channels.as_tensor().clone()), Default::default());
    compare("conv1d", &[&line, &kernel, &channels], half, || conv.forward(&line));
    let (kernel, channels) = (var(&[3, 4, 2, 2], 1.), var(&[4], 2.));
    let conv = nn::ConvTranspose2d::new(
        kernel.as_tensor().clone(),
        Some(channels.as_tensor().clone()),
        Default::default(),
    );
    compare("conv_transpose2d", &[&image, &kernel, &channels], half, || conv.forward(&image));
    let (kernel, channels) = (var(&[3, 4, 2], 1.), var(&[4], 2.));
    let config = nn::ConvTranspose1dConfig { stride: 2, ..Default::default() };
    let conv =
        nn::ConvTranspose1d::new(kernel.as_tensor().clone(), Some(channels.as_tensor().clone()), config);
    compare("conv_transpose1d", &[&line, &kernel, &channels], half, || conv.forward(&line));

    let table = var(&[5, 4], 0.);
    let ids = Tensor::new(&[[0u32, 4], [4, 2]], &Device::Cpu).unwrap();
    let embedding = nn::Embedding::new(table.as_tensor().clone(), 4);
    compare("embedding", &[&table], half, || embedding.forward(&ids));
    compare("embedding, side by side", &[&table], half, || embedding.side_by_side(&ids));
    let bag = nn::EmbeddingBag::new(table.as_tensor().clone(), nn::BagMode::Mean);
    compare("embedding bag", &[&table], half, || bag.forward(&ids));
}

#[test]
fn recurrent_layers_pass_their_state_in_half_precision() {
    let variables = candle_nn::VarMap::new();
    let vb = nn::VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let lstm = nn::lstm(3, 4, Default::default(), vb.pp("lstm")).unwrap();
    let gru = nn::gru(3, 4, Default::default(), vb.pp("gru")).unwrap();
    let x = var(&[2, 5, 3], 0.);
    compare("lstm", &[&x], |half| half, || lstm.states_to_tensor(&lstm.seq(&x)?));
    compare("gru", &[&x], |half| half, || gru.states_to_tensor(&gru.seq(&x)?));
}

#[test]
fn norms_softmax_attention_and_rotations_keep_the_dtype_of_their_input() {
    // What they get are activations: f32 with full precision.
    let activations = |x: &Var| match MixedPrecision::current().compute_dtype() {
        Some(dtype) => x.to_dtype(dtype),
        None => Ok(x.as_tensor().clone()),
    };
    let half = |half| half;
    let (x, weight, bias) = (var(&[3, 8], 0.), var(&[8], 1.), var(&[8], 2.));
    let norm = nn::LayerNorm::new(weight.as_tensor().clone(), bias.as_tensor().clone(), 1e-5);
    compare("layer_norm", &[&x, &weight, &bias], half, || norm.forward(&activations(&x)?));
    let norm = nn::RmsNorm::new(weight.as_tensor().clone(), 1e-5);
    compare("rms_norm", &[&x, &weight], half, || norm.forward(&activations(&x)?));
    compare("ops::layer_norm", &[&x], half, || nn::ops::layer_norm(&activations(&x)?, &weight, &bias, 1e-5));
    compare("ops::rms_norm", &[&x], half, || nn::ops::rms_norm(&activations(&x)?, &weight, 1e-5));
    compare("softmax", &[&x], half, || nn::ops::softmax_last_dim(&activations(&x)?));
    let [q, k, v] = [0., 1., 2.].map(|phase| var(&[1, 2, 3, 4], phase));
    let mask = numbers(&[1, 1, 3, 3], 5.);
    for mask in [None, Some(&mask)] {
        compare("sdpa", &[&q, &k, &v], half, || {
            nn::ops::sdpa(&activations(&q)?, &activations(&k)?, &activations(&v)?, mask, false, 0.5, 1.)
        });
    }
    let (cos, sin) = (numbers(&[3, 2], 0.), numbers(&[3, 2], 1.));
    compare("rope", &[&q], half, || nn::rotary_emb::rope(&activations(&q)?, &cos, &sin));
    let variables = candle_nn::VarMap::new();
    let vb = nn::VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let norm = nn::batch_norm(8, 1e-5, vb).unwrap();
    compare("batch_norm", &[&x], half, || norm.forward_t(&activations(&x)?, true));
}

#[test]
fn losses_compute_in_f32() {
    let full = |_| DType::F32;
    let half = |x: &Var| x.to_dtype(MixedPrecision::current().compute_dtype().unwrap_or(DType::F32));
    let (x, targets) = (var(&[3, 4], 0.), numbers(&[3, 4], 1.));
    let labels = Tensor::new(&[0u32, 3, 1], &Device::Cpu).unwrap();
    compare("cross_entropy", &[&x], full, || nn::loss::cross_entropy(&half(&x)?, &labels));
    compare("nll", &[&x], full, || nn::loss::nll(&half(&x)?, &labels));
    compare("mse", &[&x], full, || nn::loss::mse(&half(&x)?, &targets));
    compare("binary_cross_entropy", &[&x], full, || {
        nn::loss::binary_cross_entropy_with_logit(&half(&x)?, &targets)
    });
}

#[test]
fn f64_is_not_converted_and_full_precision_requires_equal_dtypes() {
    let weight = numbers(&[2, 4], 1.);
    let wide = nn::Linear::new(weight.to_dtype(DType::F64).unwrap(), None);
    let x = numbers(&[3, 4], 0.);
    MixedPrecision::Bf16.scope(|| {
        assert_eq!(wide.forward(&x.to_dtype(DType::F64).unwrap()).unwrap().dtype(), DType::F64);
    });
    let narrow = nn::Linear::new(weight, None);
    assert!(narrow.forward(&x.to_dtype(DType::BF16).unwrap()).is_err());
}
