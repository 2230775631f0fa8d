//! `nn::ops` and `nn::rotary_emb` compared with candle's operations that have gradients: values and gradients.

use crate::fused::{Lies, assert_same, flat, numbers, results};
use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use distribute::nn::{LayerNorm, RmsNorm, ops, rotary_emb};
use proptest::prelude::*;

fn dtype(f64: bool) -> DType {
    if f64 { DType::F64 } else { DType::F32 }
}

fn layouts() -> impl Strategy<Value = Lies> {
    prop::sample::select(vec![Lies::Plain, Lies::Transposed, Lies::Inside])
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    let powers = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
}

/// Computes candle's rope with operations that have gradients. These operations support only one table for all
/// examples, so examples with separate tables are computed one by one.
fn plain_rope(name: &str, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    if cos.rank() == 3 {
        let example = |i| plain_rope(name, &x.narrow(0, i, 1)?, &cos.get(i)?, &sin.get(i)?);
        return Tensor::cat(&(0..x.dim(0)?).map(example).collect::<Result<Vec<_>>>()?, 0);
    }
    match name {
        "rope" => rotary_emb::rope_slow(x, cos, sin),
        "rope_i" => rotary_emb::rope_i_slow(&x.contiguous()?, cos, sin),
        _ => rotary_emb::rope_slow(&x.transpose(1, 2)?, cos, sin)?.transpose(1, 2),
    }
}

fn fast_rope(name: &str, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    match name {
        "rope" => rotary_emb::rope(x, cos, sin),
        "rope_i" => rotary_emb::rope_i(x, cos, sin),
        _ => rotary_emb::rope_thd(x, cos, sin),
    }
}

const ROPES: [&str; 3] = ["rope", "rope_i", "rope_thd"];

/// A mask that hides keys from queries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    /// An additive mask: `[queries, keys]`, `[batch, 1, 1, keys]`, `[1, heads, queries, 1]`.
    Pairs,
    Keys,
    Heads,
    /// A u8 mask, `[batch, 1, 1, keys]`.
    Hidden,
}

impl Mask {
    fn tensor(self, [batch, heads, queries, keys]: [usize; 4], dtype: DType) -> Option<Tensor> {
        match self {
            Mask::None => None,
            Mask::Pairs => Some(numbers(&[queries, keys], dtype, 5)),
            Mask::Keys => Some(numbers(&[batch, 1, 1, keys], dtype, 5)),
            Mask::Heads => Some(numbers(&[1, heads, queries, 1], dtype, 5)),
            // The first key is never hidden, so every query sees a key.
            Mask::Hidden => {
                let hidden: Vec<u8> =
                    (0..batch * keys).map(|i| u8::from(i % keys > 0 && i % 3 > 0)).collect();
                Some(Tensor::from_vec(hidden, (batch, 1, 1, keys), &Device::Cpu).unwrap())
            }
        }
    }
}

/// Computes attention with candle's operations, as models do.
fn plain_sdpa(t: &[Tensor], mask: Option<&Tensor>, causal: bool, scale: f32, cap: f64) -> Result<Tensor> {
    let (q, k, v) = (&t[0], &t[1], &t[2]);
    let each = q.dim(1)? / k.dim(1)?;
    let repeated = |x: &Tensor| {
        let heads = (0..x.dim(1)? * each).map(|head| x.narrow(1, head / each, 1));
        Tensor::cat(&heads.collect::<Result<Vec<_>>>()?, 1)?.contiguous()
    };
    let (k, v) = (repeated(k)?, repeated(v)?);
    let mut scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * f64::from(scale))?;
    if cap != 1. {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(mask) = mask {
        scores = match mask.dtype() {
            DType::U8 => {
                let low = Tensor::new(f32::NEG_INFINITY, &Device::Cpu)?.to_dtype(q.dtype())?;
                mask.broadcast_as(scores.shape())?.where_cond(&low.broadcast_as(scores.shape())?, &scores)?
            }
            _ => scores.broadcast_add(mask)?,
        };
    }
    if causal {
        let (queries, keys) = (q.dim(2)?, k.dim(2)?);
        let hidden = candle_transformers::utils::build_causal_mask(queries, keys - queries, &Device::Cpu)?;
        let low = Tensor::new(f32::NEG_INFINITY, &Device::Cpu)?.to_dtype(q.dtype())?;
        let hidden = hidden.broadcast_as(scores.shape())?;
        scores = hidden.where_cond(&low.broadcast_as(scores.shape())?, &scores)?;
    }
    softmax(&scores)?.matmul(&v)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn softmax_is_the_formula(
        dims in prop::collection::vec(1usize..5, 0..4),
        size in 1usize..70,
        f64 in any::<bool>(),
        lies in layouts(),
    ) {
        let shape = [dims.as_slice(), &[size]].concat();
        let inputs = [((numbers(&shape, dtype(f64), 1) * 8.).unwrap(), lies)];
        let fast = results(&inputs, |t| ops::softmax_last_dim(&t[0])).unwrap();
        let stock = results(&inputs, |t| softmax(&t[0])).unwrap();
        assert_same(&fast, &stock, &format!("{shape:?} {lies:?}"));
        for dim in 0..shape.len() {
            let fast = results(&inputs, |t| ops::softmax(&t[0], dim)).unwrap();
            let stock = results(&inputs, |t| candle_nn::ops::softmax(&t[0], dim)).unwrap();
            assert_same(&fast, &stock, &format!("{shape:?} {lies:?} over {dim}"));
        }
    }

    #[test]
    fn norms_equal_those_of_candle_that_have_gradients(
        dims in prop::collection::vec(1usize..5, 0..3),
        size in 1usize..40,
        f64 in any::<bool>(),
        lies in prop::array::uniform3(layouts()),
    ) {
        let (shape, dtype) = ([dims.as_slice(), &[size]].concat(), dtype(f64));
        let [x, alpha, beta] = [(&shape[..], 1), (&[size], 2), (&[size], 3)].map(|(s, seed)| numbers(s, dtype, seed));
        let inputs = [(x, lies[0]), (alpha, lies[1]), (beta, lies[2])];
        let fast = results(&inputs, |t| ops::layer_norm(&t[0], &t[1], &t[2], 1e-3)).unwrap();
        let stock = results(&inputs, |t| ops::layer_norm_slow(&t[0], &t[1], &t[2], 1e-3)).unwrap();
        assert_same(&fast, &stock, &format!("layer norm {shape:?} {lies:?}"));
        let fast = results(&inputs[..2], |t| ops::rms_norm(&t[0], &t[1], 1e-3)).unwrap();
        let stock = results(&inputs[..2], |t| ops::rms_norm_slow(&t[0], &t[1], 1e-3)).unwrap();
        assert_same(&fast, &stock, &format!("rms norm {shape:?} {lies:?}"));
    }

    #[test]
    fn rope_is_the_formula(
        (batch, heads, positions, half) in (1usize..4, 1usize..4, 1usize..5, 1usize..9),
        (more, f64, per_batch) in (0usize..3, any::<bool>(), any::<bool>()),
        name in prop::sample::select(ROPES.to_vec()),
        lies in prop::array::uniform3(layouts()),
    ) {
        let dtype = dtype(f64);
        let shape = match name {
            "rope_thd" => [batch, positions, heads, 2 * half],
            _ => [batch, heads, positions, 2 * half],
        };
        let table = [&[batch][..usize::from(per_batch)], &[positions + more, half]].concat();
        // The tables are trained, too.
        let inputs =
            [(numbers(&shape, dtype, 1), lies[0]), (numbers(&table, dtype, 2), lies[1]), (numbers(&table, dtype, 3), lies[2])];
        let fast = results(&inputs, |t| fast_rope(name, &t[0], &t[1], &t[2])).unwrap();
        let stock = results(&inputs, |t| plain_rope(name, &t[0], &t[1], &t[2])).unwrap();
        assert_same(&fast, &stock, &format!("{name} {shape:?} {table:?} {lies:?}"));
        if !per_batch {
            // The forward results are also those of candle's functions.
            let t: Vec<_> = inputs.iter().map(|(t, _)| t.clone()).collect();
            let stock = match name {
                "rope" => candle_nn::rotary_emb::rope(&t[0], &t[1], &t[2]),
                "rope_i" => candle_nn::rotary_emb::rope_i(&t[0], &t[1], &t[2]),
                _ => candle_nn::rotary_emb::rope_thd(&t[0], &t[1], &t[2]),
            };
            assert_same(&fast[..1], &[stock.unwrap()], name);
        }
    }

    #[test]
    fn attention_is_the_formula(
        (batch, kv_heads, each) in (1usize..3, 1usize..3, 1usize..4),
        (queries, more_keys, width, value) in (1usize..6, 0usize..4, 1usize..9, 1usize..9),
        (f64, causal) in (any::<bool>(), any::<bool>()),
        mask in prop::sample::select(vec![Mask::None, Mask::Pairs, Mask::Keys, Mask::Heads, Mask::Hidden]),
        cap in prop::sample::select(vec![1f32, 1., 1., 2.]),
        lies in prop::array::uniform3(layouts()),
    ) {
        let (dtype, heads, keys) = (dtype(f64), kv_heads * each, queries + more_keys);
        let mask = mask.tensor([batch, heads, queries, keys], dtype);
        let inputs = [
            ((numbers(&[batch, heads, queries, width], dtype, 1) * 2.).unwrap(), lies[0]),
            (numbers(&[batch, kv_heads, keys, width], dtype, 2), lies[1]),
            (numbers(&[batch, kv_heads, keys, value], dtype, 3), lies[2]),
        ];
        let what = format!("{batch} {heads} {kv_heads} {queries} {keys} {width} {value} {causal} {cap} {mask:?} {lies:?}");
        let fast = results(&inputs, |t| ops::sdpa(&t[0], &t[1], &t[2], mask.as_ref(), causal, 0.7, cap));
        let stock = results(&inputs, |t| plain_sdpa(t, mask.as_ref(), causal, 0.7, cap.into()));
        assert_same(&fast.unwrap(), &stock.unwrap(), &what);
    }
}

#[test]
fn a_softmax_of_many_narrow_numbers_is_one() {
    for (dtype, precision) in [(DType::F16, 2e-3), (DType::BF16, 1e-2)] {
        let x = Var::zeros((4096, 2), dtype, &Device::Cpu).unwrap();
        let sums = |y: Result<Tensor>, dim| {
            let y = y.unwrap();
            assert_eq!(y.dtype(), dtype);
            flat(&y.to_dtype(DType::F64).unwrap().sum(dim).unwrap())
        };
        for sum in [sums(ops::softmax_last_dim(&x.t().unwrap()), 1), sums(ops::softmax(x.as_tensor(), 0), 0)]
            .concat()
        {
            assert!((sum - 1.).abs() < precision, "{dtype:?}: {sum}");
        }
        let first = ops::softmax(x.as_tensor(), 0).unwrap().narrow(0, 0, 1).unwrap().sum_all().unwrap();
        assert_eq!(first.backward().unwrap().get(&x).unwrap().dtype(), dtype);
    }
}

#[test]
fn a_mask_that_is_trained_gets_its_gradient() {
    // A bias of relative positions, as T5 has it.
    let of = |shape: &[usize], seed| (numbers(shape, DType::F64, seed), Lies::Plain);
    let inputs = [of(&[2, 4, 3, 5], 1), of(&[2, 2, 3, 5], 2), of(&[2, 2, 3, 4], 3), of(&[1, 4, 3, 3], 4)];
    let fast = results(&inputs, |t| ops::sdpa(&t[0], &t[1], &t[2], Some(&t[3]), true, 0.5, 1.)).unwrap();
    let stock = results(&inputs, |t| plain_sdpa(t, Some(&t[3]), true, 0.5, 1.)).unwrap();
    assert_same(&fast, &stock, "a trained mask");
    assert!(flat(&fast[4]).iter().any(|x| *x != 0.), "{}", fast[4]);
}

#[test]
fn unrequested_gradients_are_not_computed_and_the_others_are_right() {
    // A gradient of one operand of three.
    let t = [&[1, 2, 3, 4], &[1, 2, 3, 4], &[1, 2, 3, 2]].map(|shape| numbers(shape, DType::F64, 1));
    for number in 0..3 {
        let gradient = |fast: bool| {
            let mut t = t.to_vec();
            let var = Var::from_tensor(&t[number]).unwrap();
            t[number] = var.as_tensor().clone();
            let y = if fast {
                ops::sdpa(&t[0], &t[1], &t[2], None, false, 1., 1.).unwrap()
            } else {
                plain_sdpa(&t, None, false, 1., 1.).unwrap()
            };
            y.sqr().unwrap().sum_all().unwrap().backward().unwrap().get(&var).unwrap().clone()
        };
        assert_same(&[gradient(true)], &[gradient(false)], &format!("operand {number}"));
    }
}

#[test]
fn an_infinite_cap_is_none() {
    let inputs =
        [[2, 4, 3, 5], [2, 2, 3, 5], [2, 2, 3, 4]].map(|shape| (numbers(&shape, DType::F64, 1), Lies::Plain));
    let capped = |cap| results(&inputs, |t| ops::sdpa(&t[0], &t[1], &t[2], None, true, 0.5, cap)).unwrap();
    assert_same(&capped(f32::INFINITY), &capped(1.), "values and gradients");
}

#[test]
fn large_scores_are_no_overflow_and_hidden_ones_are_0() {
    for dtype in [DType::F32, DType::F64] {
        let x =
            Tensor::new(&[[1e4f64, 0., -1e4], [f64::NEG_INFINITY, -2e30, f64::NEG_INFINITY]], &Device::Cpu);
        let y = ops::softmax_last_dim(&x.unwrap().to_dtype(dtype).unwrap()).unwrap();
        assert_eq!(flat(&y), [1., 0., 0., 0., 1., 0.]);
        // If all logits are -inf, or one is NaN or inf, the result is NaN.
        for lost in [[f64::NEG_INFINITY; 2], [f64::NAN, 1.], [f64::INFINITY, 1.]] {
            let x = Tensor::new(&lost, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            assert!(flat(&ops::softmax_last_dim(&x).unwrap())[0].is_nan(), "{lost:?}");
        }
    }
}

#[test]
fn half_precision_can_be_trained() {
    let of = |shape: &[usize], seed| (numbers(shape, DType::F16, seed), Lies::Plain);
    let near = |inputs: &[(Tensor, Lies)], f: &dyn Fn(&[Tensor]) -> Result<Tensor>| {
        let wide: Vec<_> = inputs.iter().map(|(t, lies)| (t.to_dtype(DType::F32).unwrap(), *lies)).collect();
        let (half, exact) = (results(inputs, f).unwrap(), results(&wide, f).unwrap());
        for (half, exact) in half.iter().zip(&exact) {
            assert_eq!(half.dtype(), DType::F16);
            for (half, exact) in flat(half).into_iter().zip(flat(exact)) {
                assert!((half - exact).abs() < 0.05, "{half}, not {exact}");
            }
        }
    };
    near(&[of(&[3, 5], 1)], &|t| ops::softmax_last_dim(&t[0]));
    near(&[of(&[3, 5], 1), of(&[5], 2)], &|t| ops::rms_norm(&t[0], &t[1], 1e-3));
    near(&[of(&[3, 5], 1), of(&[5], 2), of(&[5], 3)], &|t| ops::layer_norm(&t[0], &t[1], &t[2], 1e-3));
    for name in ROPES {
        for table in [&[2, 2][..], &[2, 2, 2]] {
            near(&[of(&[2, 2, 2, 4], 1), of(table, 2), of(table, 3)], &|t| {
                fast_rope(name, &t[0], &t[1], &t[2])
            });
        }
    }
    let operands = [of(&[2, 4, 3, 4], 1), of(&[2, 2, 3, 4], 2), of(&[2, 2, 3, 4], 3)];
    near(&operands, &|t| ops::sdpa(&t[0], &t[1], &t[2], None, true, 0.5, 1.));
}

// INV-9
#[test]
fn zero_rows_are_accepted() {
    for dtype in [DType::F32, DType::F64] {
        let none = |shape: &[usize]| Var::zeros(shape, dtype, &Device::Cpu).unwrap();
        let ones = |shape: &[usize]| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        let gives = |y: Result<Tensor>, dims: &[usize], what: &str| {
            let y = y.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(y.dims(), dims, "{what}");
            y.sum_all().unwrap().backward().unwrap_or_else(|error| panic!("{what}: {error}"));
        };
        for shape in [[0, 3], [3, 0], [0, 0]] {
            gives(ops::softmax_last_dim(&none(&shape)), &shape, "softmax");
        }
        gives(ops::rms_norm(&none(&[0, 3]), &ones(&[3]), 1e-3), &[0, 3], "rms_norm");
        gives(ops::layer_norm(&none(&[2, 0, 3]), &ones(&[3]), &ones(&[3]), 1e-3), &[2, 0, 3], "layer_norm");
        for name in ROPES {
            let x = none(&[0, 2, 2, 4]);
            gives(fast_rope(name, &x, &ones(&[2, 2]), &ones(&[2, 2])), &[0, 2, 2, 4], name);
            let table = none(&[0, 2, 2]);
            gives(fast_rope(name, &x, &table, &table), &[0, 2, 2, 4], name);
        }
        let of = |batch, queries, keys| {
            ops::sdpa(
                &none(&[batch, 2, queries, 4]),
                &none(&[batch, 1, keys, 4]),
                &none(&[batch, 1, keys, 3]),
                None,
                false,
                1.,
                1.,
            )
        };
        gives(of(0, 2, 2), &[0, 2, 2, 3], "sdpa of no rows");
        gives(of(1, 0, 2), &[1, 2, 0, 3], "sdpa of no queries");
        gives(of(1, 2, 0), &[1, 2, 2, 3], "sdpa of no keys");
    }
}

#[test]
fn wrong_shapes_are_errors_that_name_them() {
    let of = |shape: &[usize]| numbers(shape, DType::F32, 1);
    let fails = |y: Result<Tensor>, says: &str| {
        let error = y.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    fails(ops::softmax_last_dim(&of(&[])), "a scalar has no last dimension");
    fails(ops::softmax(&of(&[2]), 1), "softmax");
    fails(
        ops::rms_norm(&of(&[2, 3]), &of(&[2]), 1e-3),
        "rms_norm: rows of [2, 3] need parameters of [3], not [2]",
    );
    fails(ops::rms_norm(&of(&[2, 3]), &of(&[1, 3]), 1e-3), "not [1, 3]");
    fails(ops::layer_norm(&of(&[2, 3]), &of(&[3]), &of(&[4]), 1e-3), "layer_norm: rows of [2, 3]");
    fails(ops::rms_norm(&of(&[]), &of(&[1]), 1e-3), "");
    let wide = |shape: &[usize]| numbers(shape, DType::F64, 1);
    let of_f64 =
        |name, input| format!("{name} is F64, but {input} is F32; convert one of them with to_dtype");
    let norm = ops::rms_norm(&of(&[2, 3]), &wide(&[3]), 1e-3);
    fails(norm, &format!("rms_norm: {}", of_f64("alpha", "xs")));
    let norm = ops::layer_norm(&of(&[2, 3]), &of(&[3]), &wide(&[3]), 1e-3);
    fails(norm, &format!("layer_norm: {}", of_f64("beta", "xs")));
    let layer = RmsNorm::new(wide(&[3]), 1e-3).forward(&of(&[2, 3]));
    fails(layer, &format!("rms_norm: {}", of_f64("the weight", "the input")));
    let layer = LayerNorm::new(of(&[3]), wide(&[3]), 1e-3).forward(&of(&[2, 3]));
    fails(layer, &format!("layer_norm: {}", of_f64("the bias", "the input")));
    for name in ROPES {
        let rope = |x: &[usize], cos: &[usize], sin: &[usize]| fast_rope(name, &of(x), &of(cos), &of(sin));
        fails(rope(&[3, 2, 4], &[2, 2], &[2, 2]), "four dimensions, not [3, 2, 4]");
        fails(rope(&[1, 3, 3, 4], &[2, 2], &[2, 2]), "of 3 positions needs cos and sin of [positions, 2]");
        fails(rope(&[1, 3, 3, 4], &[3, 4], &[3, 4]), "not [3, 4] and [3, 4]");
        fails(rope(&[1, 3, 3, 5], &[3, 2], &[3, 2]), name);
        fails(rope(&[2, 3, 3, 4], &[1, 3, 2], &[1, 3, 2]), "[2, positions, 2]");
        fails(rope(&[2, 3, 3, 4], &[2, 3, 2], &[3, 2]), "not [2, 3, 2] and [3, 2]");
        let (x, table) = (of(&[1, 3, 3, 4]), of(&[3, 2]));
        fails(fast_rope(name, &x, &wide(&[3, 2]), &table), &format!("{name}: {}", of_f64("cos", "xs")));
        fails(fast_rope(name, &x, &table, &wide(&[3, 2])), &format!("{name}: {}", of_f64("sin", "xs")));
    }
    let sdpa = |q: &[usize], k: &[usize], v: &[usize], mask: Option<&Tensor>, causal| {
        ops::sdpa(&of(q), &of(k), &of(v), mask, causal, 1., 1.)
    };
    let (q, k) = ([2, 4, 3, 5], [2, 2, 3, 5]);
    fails(sdpa(&[4, 3, 5], &k, &k, None, false), "sdpa: queries [4, 3, 5]");
    fails(sdpa(&q, &[2, 3, 3, 5], &[2, 3, 3, 5], None, false), "heads a multiple of kv_heads");
    fails(sdpa(&q, &[2, 0, 3, 5], &[2, 0, 3, 5], None, false), "heads a multiple of kv_heads");
    fails(sdpa(&q, &[2, 2, 3, 4], &k, None, false), "keys [2, 2, 3, 4]");
    fails(sdpa(&q, &k, &[2, 2, 4, 5], None, false), "values [2, 2, 4, 5]");
    fails(sdpa(&q, &[2, 2, 2, 5], &[2, 2, 2, 5], None, true), "do not set do_causal");
    fails(sdpa(&q, &k, &k, Some(&of(&[3, 2])), false), "a mask [3, 2] doesn't fit scores [2, 4, 3, 3]");
    fails(sdpa(&q, &k, &k, Some(&of(&[1, 1, 1, 3, 3])), false), "doesn't fit scores");
    fails(sdpa(&q, &k, &k, Some(&numbers(&[3, 3], DType::F64, 1)), false), "not F64");
    fails(ops::sdpa(&of(&q), &of(&k), &of(&k), None, false, 1., 0.), "softcapping has to be positive");
    let mixed = |k: &Tensor, v: &Tensor| ops::sdpa(&of(&q), k, v, None, false, 1., 1.);
    fails(mixed(&wide(&k), &of(&k)), &format!("sdpa: {}", of_f64("k", "q")));
    fails(mixed(&of(&k), &wide(&k)), &format!("sdpa: {}", of_f64("v", "q")));
    fails(ops::sdpa(&of(&q), &of(&k), &of(&k), None, false, 1., f32::NEG_INFINITY), "has to be positive");
    // All rows are views of one number, but their product would need more memory than there are addresses.
    let half = 1usize << (usize::BITS / 2);
    let long = of(&[1, 1, 1, 1]).broadcast_as((1, 1, half, 1)).unwrap();
    fails(ops::sdpa(&long, &long, &long, None, false, 1., 1.), "more elements than memory has addresses");
}

#[test]
fn signatures_are_candles() {
    type Two = fn(&Tensor, &Tensor, f32) -> Result<Tensor>;
    type Three = fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>;
    type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    type Sdpa = fn(&Tensor, &Tensor, &Tensor, Option<&Tensor>, bool, f32, f32) -> Result<Tensor>;
    let _: [fn(&Tensor) -> Result<Tensor>; 2] = [candle_nn::ops::softmax_last_dim, ops::softmax_last_dim];
    let _: [fn(&Tensor, D) -> Result<Tensor>; 2] = [candle_nn::ops::softmax, ops::softmax];
    let _: [Two; 2] = [candle_nn::ops::rms_norm, ops::rms_norm];
    let _: [Three; 2] = [candle_nn::ops::layer_norm, ops::layer_norm];
    let _: [Sdpa; 2] = [candle_nn::ops::sdpa, ops::sdpa];
    let _: [Rope; 2] = [candle_nn::rotary_emb::rope, rotary_emb::rope];
    let _: [Rope; 2] = [candle_nn::rotary_emb::rope_i, rotary_emb::rope_i];
    let _: [Rope; 2] = [candle_nn::rotary_emb::rope_thd, rotary_emb::rope_thd];
}

#[test]
fn every_function_has_a_gradient() {
    type Of = (&'static str, fn(&Tensor) -> Result<Tensor>);
    fn table() -> Tensor {
        Tensor::ones((2, 2), DType::F32, &Device::Cpu).unwrap()
    }
    let ours: [Of; 20] = [
        ("hard_sigmoid", ops::hard_sigmoid),
        ("layer_norm", |x| ops::layer_norm(x, &x.get(0)?.get(0)?.get(0)?, &x.get(0)?.get(0)?.get(0)?, 1e-3)),
        ("leaky_relu", |x| ops::leaky_relu(x, 0.1)),
        ("log_softmax", |x| ops::log_softmax(x, 1)),
        ("mish", ops::mish),
        ("pixel_shuffle", |x| ops::pixel_shuffle(x, 2)),
        ("pixel_unshuffle", |x| ops::pixel_unshuffle(x, 2)),
        ("replication_pad2d", |x| ops::replication_pad2d(x, 1)),
        ("rms_norm", |x| ops::rms_norm(x, &x.get(0)?.get(0)?.get(0)?, 1e-3)),
        ("sdpa", |x| ops::sdpa(x, x, x, None, true, 1., 1.)),
        ("selu", |x| ops::selu(x, 1.67, 1.05)),
        ("sigmoid", ops::sigmoid),
        ("silu", ops::silu),
        ("softmax", |x| ops::softmax(x, 1)),
        ("softmax_last_dim", ops::softmax_last_dim),
        ("swiglu", ops::swiglu),
        ("rope", |x| rotary_emb::rope(x, &table(), &table())),
        ("rope_i", |x| rotary_emb::rope_i(x, &table(), &table())),
        ("rope_thd", |x| rotary_emb::rope_thd(&x.transpose(1, 2)?, &table(), &table())),
        ("rms_norm_slow", |x| ops::rms_norm_slow(x, &x.get(0)?.get(0)?.get(0)?, 1e-3)),
    ];
    let gradient = |f: fn(&Tensor) -> Result<Tensor>| {
        let x = Var::from_tensor(&numbers(&[2, 4, 2, 4], DType::F32, 1)).unwrap();
        let y = f(&x).unwrap();
        let store = (&y * numbers(y.dims(), DType::F32, 2)).unwrap().sum_all().unwrap().backward().unwrap();
        store.get(&x).cloned()
    };
    for (name, f) in ours {
        let gradient = gradient(f).unwrap_or_else(|| panic!("{name} is cut off"));
        assert!(flat(&gradient).iter().any(|x| *x != 0.), "{name}");
    }
    // candle's functions that the guide and the warning of a first step name. If candle adds a gradient to one, change
    // both.
    let cut: [Of; 3] = [
        ("softmax_last_dim", candle_nn::ops::softmax_last_dim),
        ("rms_norm", |x| candle_nn::ops::rms_norm(x, &Tensor::ones(4, DType::F32, &Device::Cpu)?, 1e-3)),
        ("rope", |x| candle_nn::rotary_emb::rope(x, &table(), &table())),
    ];
    for (name, f) in cut {
        assert!(gradient(f).is_none(), "candle's {name} has a gradient now");
    }
}

// INV-9
#[test]
fn columns_of_zero_rows_are_accepted_at_any_offset() {
    use distribute::HostTensor;
    use distribute::nn::{Dropout, Linear, embedding, loss};
    use distribute::tensor::Leaf;
    for dtype in [DType::F32, DType::F64] {
        // The layout starts after the end of the memory, which is empty.
        let columns =
            |width| Tensor::zeros((0, 8), dtype, &Device::Cpu).unwrap().narrow(1, 3, width).unwrap();
        let ones = |shape: &[usize]| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        let x = columns(4);
        assert_eq!(ops::softmax_last_dim(&x).unwrap().dims(), [0, 4]);
        assert_eq!(ops::softmax(&x, 0).unwrap().dims(), [0, 4]);
        assert_eq!(Dropout::new(0.5, 1, "x").unwrap().forward(&x, true).unwrap().dims(), [0, 4]);
        assert_eq!(ops::rms_norm(&x, &ones(&[4]), 1e-3).unwrap().dims(), [0, 4]);
        assert_eq!(ops::layer_norm(&x, &ones(&[4]), &ones(&[4]), 1e-3).unwrap().dims(), [0, 4]);
        let linear = Linear::new(ones(&[3, 4]), Some(ones(&[3])));
        assert_eq!(linear.forward(&x).unwrap().dims(), [0, 3]);
        let labels = Tensor::zeros((0, 8), DType::U32, &Device::Cpu).unwrap().narrow(1, 3, 1).unwrap();
        let labels = labels.squeeze(1).unwrap();
        assert_eq!(loss::cross_entropy(&x, &labels).unwrap().dims(), [0usize; 0]);
        assert_eq!(loss::mse(&x, &x).unwrap().dims(), [0usize; 0]);
        let table = candle_nn::VarBuilder::zeros(dtype, &Device::Cpu);
        assert_eq!(embedding(5, 2, table).unwrap().forward(&labels).unwrap().dims(), [0, 2]);
        // The same in reductions, in gathers and in copies to the host.
        let leaf = || Leaf::Candle(x.clone());
        assert_eq!(HostTensor::from_candle(&x).unwrap().dims(), [0, 4]);
        assert_eq!(Leaf::concat(&[leaf(), leaf()], 0).unwrap().dims(), [0, 4]);
        assert_eq!(Leaf::reduce(distribute::ReduceOp::Sum, &[leaf(), leaf()]).unwrap().dims(), [0, 4]);
        assert_eq!(leaf().sum_axes(&[0]).unwrap().dims(), [4]);
    }
}

#[test]
fn softmax_accepts_an_empty_batch_and_integers_are_refused() {
    let empty = Tensor::zeros((0, 3, 4), DType::F32, &Device::Cpu).unwrap();
    for dim in 0..3 {
        assert_eq!(ops::softmax(&empty, dim).unwrap().dims(), [0, 3, 4]);
    }
    let integers = Tensor::new(&[[1u32, 2], [3, 4]], &Device::Cpu).unwrap();
    for dim in 0..2 {
        let error = ops::softmax(&integers, dim).unwrap_err().to_string();
        assert!(error.contains("U32 has no exponential"), "{error}");
    }
    let ones = Tensor::ones((1, 1, 2, 2), DType::U32, &Device::Cpu).unwrap();
    let (row, table) = (ones.flatten_all().unwrap().narrow(0, 0, 2).unwrap(), ones.narrow(3, 0, 1).unwrap());
    let table = table.reshape((2, 1)).unwrap();
    for result in [
        ops::rms_norm(&ones, &row, 1e-5),
        ops::layer_norm(&ones, &row, &row, 1e-5),
        rotary_emb::rope(&ones, &table, &table),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("U32") && error.contains("to_dtype"), "{error}");
    }
}
