//! Comparisons of the gradients that candle's backward pass computes for the fused operations of the patched candle-nn,
//! with finite differences of the values of these operations or of candle's slow variants.

use candle::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::attention::{flash_attn, AttnMask};
use candle_nn::kv_cache::{ConcatKvCache, KvCache, RotatingKvCache};
use candle_nn::{ops, rotary_emb, LayerNorm, RmsNorm};

/// Returns a variable of numbers between -1 and 1, always the same for a shape and a seed.
fn numbers(shape: &[usize], seed: usize) -> Var {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> =
        (0..n).map(|i| ((i * 7919 + seed * 104_729 + 13) % 211) as f64 / 105. - 1.).collect();
    Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
}

type Inputs<'a> = &'a [&'a Var];

/// Returns a weighted sum of the results.
fn loss(inputs: Inputs, f: impl Fn(Inputs) -> Result<Tensor>) -> Tensor {
    let y = f(inputs).unwrap();
    let weights = numbers(y.dims(), 5).as_detached_tensor().to_dtype(y.dtype()).unwrap();
    (y * weights).unwrap().sum_all().unwrap()
}

/// Compares the gradients of `f`, whose inputs are `of_f`, with finite differences of `reference`, whose inputs must be
/// the same numbers as f64. Differences must be less than `limit`.
fn compare(
    what: &str,
    inputs: Inputs,
    of_f: Inputs,
    f: impl Fn(Inputs) -> Result<Tensor>,
    reference: impl Fn(Inputs) -> Result<Tensor>,
    limit: f64,
) {
    let value = || loss(inputs, &reference).to_scalar::<f64>().unwrap();
    let store = loss(of_f, f).backward().unwrap();
    for (number, (input, of_f)) in inputs.iter().zip(of_f).enumerate() {
        let gradient = store.get(of_f).unwrap_or_else(|| panic!("{what}: input {number} has no gradient"));
        assert_eq!(
            (gradient.dims(), gradient.dtype()),
            (input.dims(), of_f.dtype()),
            "{what}: input {number}"
        );
        let gradient =
            gradient.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let values = input.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let set = |values: &[f64]| {
            input.set(&Tensor::from_slice(values, input.dims(), &Device::Cpu).unwrap()).unwrap()
        };
        let h = 1e-5;
        for (i, found) in gradient.into_iter().enumerate() {
            let [above, below] = [h, -h].map(|h| {
                let mut moved = values.clone();
                moved[i] += h;
                set(&moved);
                value()
            });
            let expected = (above - below) / (2. * h);
            assert!(
                (found - expected).abs() < limit,
                "{what}: input {number}, element {i}: {found}, not {expected}"
            );
        }
        set(&values);
    }
}

/// Compares the gradients of all inputs, whose dtype must be f64, with finite differences.
fn check(what: &str, inputs: Inputs, f: impl Fn(Inputs) -> Result<Tensor>) {
    compare(what, inputs, inputs, &f, &f, 1e-8);
}

/// Acts like [`check`] for a fused operation that candle has only for f32, by finite differences of its slow variant.
fn check_f32(
    what: &str,
    inputs: Inputs,
    f: impl Fn(Inputs) -> Result<Tensor>,
    slow: impl Fn(Inputs) -> Result<Tensor>,
) {
    let narrow: Vec<Var> =
        inputs.iter().map(|v| Var::from_tensor(&v.to_dtype(DType::F32).unwrap()).unwrap()).collect();
    compare(what, inputs, &narrow.iter().collect::<Vec<_>>(), f, slow, 2e-6);
}

#[test]
fn softmax_and_norms() {
    let (x, alpha, beta) = (numbers(&[2, 3, 5], 1), numbers(&[5], 2), numbers(&[5], 3));
    check("softmax_last_dim", &[&x], |v| ops::softmax_last_dim(v[0]));
    let (rms, layer) = (
        |v: Inputs| ops::rms_norm_slow(v[0], v[1], 1e-5),
        |v: Inputs| ops::layer_norm_slow(v[0], v[1], v[2], 1e-5),
    );
    check_f32("rms_norm", &[&x, &alpha], |v| ops::rms_norm(v[0], v[1], 1e-5), rms);
    check_f32("RmsNorm", &[&x, &alpha], |v| RmsNorm::new(v[1].as_tensor().clone(), 1e-5).forward(v[0]), rms);
    check_f32("layer_norm", &[&x, &alpha, &beta], |v| ops::layer_norm(v[0], v[1], v[2], 1e-5), layer);
    let of_layer =
        |v: Inputs| LayerNorm::new(v[1].as_tensor().clone(), v[2].as_tensor().clone(), 1e-5).forward(v[0]);
    check_f32("LayerNorm", &[&x, &alpha, &beta], of_layer, layer);
}

#[test]
fn rotary_embeddings_and_their_tables() {
    // Tables longer than the input, and tables of each example.
    for tables in [vec![4, 2], vec![2, 3, 2]] {
        let (cos, sin) = (numbers(&tables, 2), numbers(&tables, 3));
        let x = numbers(&[2, 2, 3, 4], 1);
        check("rope", &[&x, &cos, &sin], |v| rotary_emb::rope(v[0], v[1], v[2]));
        check("rope_i", &[&x, &cos, &sin], |v| rotary_emb::rope_i(v[0], v[1], v[2]));
        let x = numbers(&[2, 3, 2, 4], 1);
        check("rope_thd", &[&x, &cos, &sin], |v| rotary_emb::rope_thd(v[0], v[1], v[2]));
        let (cos, sin) = (cos.as_detached_tensor(), sin.as_detached_tensor());
        check("rope_thd by constants", &[&x], |v| rotary_emb::rope_thd(v[0], &cos, &sin));
    }
}

#[test]
fn attention_is_that_of_the_kernel_with_gradients() {
    // Two heads of queries share one of keys. Of one example and of two, for which candle has other kernels.
    for batch in [1, 2] {
        let inputs = [[batch, 3, 2, 4], [batch, 3, 1, 4], [batch, 3, 1, 4]];
        let [q, k, v] = [0, 1, 2].map(|i| numbers(&inputs[i], i + 1));
        for mask in [AttnMask::None, AttnMask::causal()] {
            let attend = |q: &Tensor, k: &Tensor, v: &Tensor| {
                flash_attn::<f64>(q, k, v, 0.5, mask.clone(), None, None)
            };
            check("flash_attn", &[&q, &k, &v], |i| attend(i[0], i[1], i[2]));
            let [q, k, v] = [&q, &k, &v].map(|t| t.as_detached_tensor().to_dtype(DType::F32).unwrap());
            let kernel = flash_attn::<f32>(&q, &k, &v, 0.5, mask.clone(), None, None).unwrap();
            let tracked = Var::from_tensor(&q).unwrap();
            let ours = flash_attn::<f32>(&tracked, &k, &v, 0.5, mask.clone(), None, None).unwrap();
            let difference =
                (kernel - ours).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(difference < 1e-6, "{mask:?}: {difference}");
        }
    }
    let [q, k, v] =
        [([1, 2, 2, 4], 1), ([1, 1, 3, 4], 2), ([1, 1, 3, 4], 3)].map(|(shape, seed)| numbers(&shape, seed));
    check("sdpa", &[&q, &k, &v], |i| ops::sdpa(i[0], i[1], i[2], None, true, 0.5, 2.));
}

#[test]
fn caches_keep_the_graph_of_what_is_trained() {
    let (first, second) = (numbers(&[1, 1, 3, 2], 1), numbers(&[1, 1, 2, 2], 2));
    check("KvCache", &[&first, &second], |v| {
        let mut cache = KvCache::new(2, 4);
        cache.append(v[0], v[0])?;
        let (k, v) = cache.append(v[1], v[1])?;
        assert_eq!((k.dims(), cache.current_seq_len()), (&[1, 1, 5, 2][..], 5));
        k + v.sqr()?
    });
    check("ConcatKvCache", &[&first, &second], |v| {
        let mut cache = ConcatKvCache::new(2);
        cache.append(v[0], v[0])?;
        let (k, v) = cache.append(v[1], v[1])?;
        k + v.sqr()?
    });
    check("RotatingKvCache", &[&first, &second], |v| {
        let mut cache = RotatingKvCache::new(2, 4);
        let (k, _) = cache.append(v[0], v[0])?;
        assert_eq!(k.dims(), [1, 1, 3, 2]);
        // The fifth position takes the place of the first.
        let (k, v) = cache.append(v[1], v[1])?;
        assert_eq!(k.dims(), [1, 1, 4, 2]);
        // The first position is gone, so its gradient is 0.
        k + v.sqr()?
    });
}

#[test]
fn half_precision_has_gradients_of_its_dtype() {
    for dtype in [DType::F16, DType::BF16] {
        let of =
            |shape: &[usize], seed| Var::from_tensor(&numbers(shape, seed).to_dtype(dtype).unwrap()).unwrap();
        let (x, alpha, beta) = (of(&[2, 4], 1), of(&[4], 2), of(&[4], 3));
        let y = ops::layer_norm(&x, &alpha, &beta, 1e-5).unwrap();
        let y = ops::softmax_last_dim(&ops::rms_norm(&y, &alpha, 1e-5).unwrap()).unwrap();
        let store = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for input in [&x, &alpha, &beta] {
            assert_eq!(store.get(input).unwrap().dtype(), dtype);
        }
    }
}

#[test]
fn a_linear_layer_of_a_transposed_batch_is_right() {
    let (x, weight) = (numbers(&[2, 4, 3], 1), numbers(&[5, 4], 2));
    let layer = candle_nn::Linear::new(weight.as_tensor().clone(), None);
    let x = x.transpose(1, 2).unwrap();
    let (found, right) = (layer.forward(&x).unwrap(), layer.forward(&x.contiguous().unwrap()).unwrap());
    let difference = (found - right).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
    assert!(difference < 1e-12, "{difference}");
}
