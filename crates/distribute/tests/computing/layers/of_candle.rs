//! Gradients of candle's operations, by candle's backward and by this crate's, compared with finite differences and
//! with the table of docs/reference/gradients.md.

use super::{by_differences, flat, numbers, var};
use candle_core::{DType, Device, IndexOp, Result, Tensor, Var};
use candle_nn::{Module, ops, rotary_emb};
use distribute::nn;
use distribute::optimizer::backward;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The gradients that are expected.
enum Right {
    /// The gradients of finite differences.
    Differences,
    /// The given numbers, if the function has no derivative.
    Values(&'static [f64]),
    /// Zeros, if the derivative is 0 almost everywhere.
    Zeros,
}
use Right::{Differences, Values, Zeros};

/// A function of some variables, whose gradients are checked.
type Function = Box<dyn Fn(&[Var]) -> Result<Tensor>>;

/// A row of the table, with a function and its variables.
struct Case {
    row: &'static str,
    of: Vec<Var>,
    function: Function,
    right: Right,
}

fn positive(shape: &[usize]) -> Var {
    Var::from_tensor(&(numbers(shape, DType::F64) - 3.).unwrap()).unwrap()
}

fn values(values: &[f64]) -> Var {
    Var::new(values, &Device::Cpu).unwrap()
}

fn ids<const N: usize>(ids: [u32; N]) -> Result<Tensor> {
    Tensor::new(&ids, &Device::Cpu)
}

/// Returns ids of shape `[2, 3, 4]`, below `below`.
fn ids_in_3d(below: u32) -> Result<Tensor> {
    let all: Vec<u32> = (0..24).map(|i| (i * i * 5 + 3) % below).collect();
    Tensor::from_vec(all, (2, 3, 4), &Device::Cpu)
}

/// Returns a loss that depends on `x` and on `y`, which was computed from `x`. candle's backward pass reaches `x`
/// first.
fn also(x: &Tensor, y: Tensor) -> Result<Tensor> {
    y.sqr()?.sum_all()? + x.sqr()?.sum_all()?
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    macro_rules! case {
        ($row:literal, [$($of:expr),+], $right:expr, |$x:ident| $function:expr) => {
            all.push(Case { row: $row, of: vec![$($of),+], right: $right, function: Box::new(|$x| $function) })
        };
    }
    // Of elements.
    case!("`add`, `sub`, `mul`, `div`, and with scalars", [var(&[2, 3]), positive(&[2, 3])], Differences,
        |x| ((x[0].as_tensor() + x[1].as_tensor())? * (x[0].as_tensor() - x[1].as_tensor())?)? / (x[1].as_tensor() * 2.)?);
    case!("`broadcast_add` and others that broadcast", [var(&[2, 3]), var(&[3])], Differences,
        |x| x[0].broadcast_mul(&x[1])?.broadcast_add(&x[1])?.broadcast_div(&x[1].exp()?)?.broadcast_sub(&x[1]));
    case!("`maximum`, `minimum`, `clamp`", [var(&[2, 3]), values(&[0.5, -0.25, 0.1])], Differences,
        |x| x[0].broadcast_maximum(&x[1])?.minimum(0.9)?.clamp(-0.8, 0.8));
    case!("`maximum` of equal elements", [values(&[1.]), values(&[1.])], Values(&[0.5, 0.5]), |x| x[0].maximum(x[1].as_tensor()));
    case!("`affine`, `neg`, `recip`, `sqr`, `sqrt`, `exp`, `log`, `sin`, `cos`, `tanh`, `erf`", [positive(&[2, 3])], Differences,
        |x| {
            let x = &x[0];
            let up = ((x.exp()? + x.log()?)? + (x.sqrt()? * x.sin()?)?)?;
            let down = ((x.recip()? + x.sqr()?.neg()?)? + (x.cos()? * (x.tanh()? + x.erf()?)?)?)?;
            (up + down)?.affine(3., 1.)
        });
    case!("`abs`", [positive(&[2, 3])], Differences, |x| (x[0].as_tensor() - 2.1)?.abs());
    case!("`abs` at 0", [values(&[0.])], Values(&[0.]), |x| x[0].abs());
    case!("`relu`", [positive(&[2, 3])], Differences, |x| (x[0].as_tensor() - 2.1)?.relu());
    case!("`relu` at 0", [values(&[0.])], Values(&[0.]), |x| x[0].relu());
    case!("`gelu`, `gelu_erf`, `silu`, `elu`", [var(&[2, 3])], Differences,
        |x| (x[0].gelu()? + x[0].gelu_erf()?)? + (x[0].silu()? * x[0].elu(0.7)?)?);
    case!("`powf`, `pow`", [positive(&[2, 3])], Differences, |x| x[0].powf(2.5)? * x[0].pow(&Tensor::full(1.5, (2, 3), &Device::Cpu)?)?);
    case!("`powf(0.)` at 0", [values(&[0.])], Values(&[0.]), |x| x[0].powf(0.));
    case!("`floor`, `ceil`, `round`, `sign`, comparisons, `argmax`, `argmin`, to integers", [var(&[2, 3])], Zeros,
        |x| {
            let steps = ((x[0].floor()? + x[0].ceil()?)? + (x[0].round()? + x[0].sign()?)?)?;
            let numbers = (x[0].ge(0.)?.to_dtype(DType::F64)? + x[0].to_dtype(DType::U32)?.to_dtype(DType::F64)?)?;
            let places = (x[0].argmax_keepdim(1)? + x[0].argmin_keepdim(1)?)?.to_dtype(DType::F64)?;
            (steps + numbers)?.broadcast_add(&places)
        });
    case!("`where_cond`", [var(&[2, 3]), var(&[2, 3])], Differences, |x| x[0].gt(0.2)?.where_cond(&(x[1].as_tensor() * 3.)?, &x[0].sqr()?));
    // Reductions.
    case!("`sum`, `mean`, `var`, `log_sum_exp`, `cumsum`", [var(&[2, 3, 4])], Differences,
        |x| ((x[0].sum((0, 2))? + x[0].mean(2)?.sum(0)?)? + (x[0].var(2)?.sum(0)? + x[0].log_sum_exp(2)?.sum(0)?)?)? + x[0].cumsum(1)?.sum((0, 2))?);
    case!("`max`, `min`", [var(&[2, 3, 4])], Differences, |x| x[0].max(1)? + x[0].min_keepdim(1)?.squeeze(1)?);
    case!("`max`, `min` of several equal elements", [values(&[1., 3., 3., 3.])], Values(&[0., 1. / 3., 1. / 3., 1. / 3.]), |x| x[0].max(0));
    // Products, shapes.
    case!("`matmul`, `broadcast_matmul`", [var(&[2, 3, 4]), var(&[4, 2])], Differences, |x| x[0].broadcast_matmul(&x[1]));
    case!("`reshape`, `transpose`, `permute`, `narrow`, `i`, `cat`, `stack`, `broadcast_as`, `copy`, `contiguous`, `to_dtype`, `to_device`, `flip`, `roll`, `pad_with_zeros`, `pad_with_same`", [var(&[2, 3, 4])], Differences,
        |x| {
            let turned = x[0].permute((2, 0, 1))?.transpose(1, 2)?.contiguous()?.reshape((6, 4))?;
            let cut = turned.narrow(0, 1, 3)?.i((.., 1..3))?.contiguous()?.flip(&[0])?.roll(1, 1)?;
            let joined = Tensor::cat(&[&cut, &cut.sqr()?], 1)?.copy()?.to_device(&Device::Cpu)?;
            let padded = Tensor::stack(&[&joined, &joined.exp()?], 0)?.pad_with_zeros(1, 1, 2)?.pad_with_same(2, 1, 0)?;
            padded.unsqueeze(0)?.broadcast_as((2, 2, 6, 5))?.to_dtype(DType::F64)
        });
    // By index.
    case!("`index_select`, `embedding`, `gather`, `index_add`, `slice_scatter`, `sort_last_dim`", [var(&[4, 3]), var(&[2, 3])], Differences,
        |x| {
            let rows = x[0].index_select(&ids([3, 1, 3])?, 0)?;
            let gathered = x[0].gather(&Tensor::new(&[[0u32, 2, 1], [3, 0, 2], [1, 1, 1]], &Device::Cpu)?, 0)?;
            let added = x[0].index_add(&ids([2, 2])?, &x[1], 0)?.slice_scatter(&x[1].sqr()?, 0, 1)?;
            let sorted = x[0].sort_last_dim(true)?.0;
            ((rows * gathered)? * (added + sorted)?.narrow(0, 0, 3)?)? + x[0].embedding(&ids([1, 0, 1])?)
        });
    case!("`gather` by fewer indexes along other axes", [var(&[3, 4, 2])], Differences, |x| {
        let rows = x[0].gather(&ids_in_3d(3)?.reshape((4, 3, 2))?, 0)?;
        let elements = x[0].gather(&ids_in_3d(2)?.reshape((2, 4, 3))?, 2)?;
        Tensor::cat(&[rows.flatten_all()?, elements.flatten_all()?], 0)
    });
    case!("`unfold`", [var(&[4, 5])], Differences, |x| {
        let windows = [x[0].unfold(1, 3, 2)?, x[0].sqr()?.unfold(0, 2, 1)?, x[0].t()?.unfold(0, 2, 3)?];
        Tensor::cat(&windows.map(|windows| windows.flatten_all().unwrap()), 0)
    });
    case!("`unfold`, of windows beside each other", [var(&[4, 3])], Differences, |x| x[0].unfold(0, 2, 2)?.sqr());
    case!("`scatter`", [var(&[2, 5, 4]), var(&[2, 3, 4])], Differences, |x| x[0].scatter(&ids_in_3d(5)?, &x[1], 1));
    case!("`scatter`, of equal shapes", [var(&[2, 3, 4]), var(&[2, 3, 4])], Differences, |x| x[0].scatter(&ids_in_3d(3)?, &x[1], 1));
    case!("`scatter_add`", [var(&[2, 5, 4]), var(&[2, 3, 4])], Differences, |x| x[0].scatter_add(&ids_in_3d(5)?, &x[1], 1));
    case!("`scatter_add`, of equal shapes", [var(&[2, 3, 4]), var(&[2, 3, 4])], Differences, |x| x[0].scatter_add(&ids_in_3d(3)?, &x[1], 1));
    // Convolutions.
    case!("`conv1d`", [var(&[3, 2, 7]), var(&[4, 2, 3])], Differences, |x| x[0].conv1d(&x[1], 1, 1, 1, 1));
    case!("`conv1d` without padding", [var(&[3, 2, 7]), var(&[4, 2, 3])], Differences, |x| x[0].conv1d(&x[1], 0, 2, 1, 1));
    case!("`conv1d`, of the input alone, without padding", [var(&[3, 2, 7])], Differences, |x| x[0].conv1d(&numbers(&[4, 2, 3], DType::F64), 0, 1, 1, 1));
    case!("`conv1d` with groups", [var(&[2, 4, 7]), var(&[6, 2, 3])], Differences, |x| x[0].conv1d(&x[1], 1, 2, 1, 2));
    case!("`conv2d` of squares", [var(&[2, 4, 6, 6]), var(&[4, 2, 3, 3])], Differences, |x| x[0].conv2d(&x[1], 1, 2, 1, 2));
    case!("`conv2d` with a stride, of images whose height and width leave different rests", [var(&[2, 2, 6, 7]), var(&[3, 2, 3, 3])], Differences, |x| x[0].conv2d(&x[1], 0, 2, 1, 1));
    case!("`conv2d` with a dilation", [var(&[2, 2, 7, 7]), var(&[3, 2, 3, 3])], Differences, |x| x[0].conv2d(&x[1], 1, 1, 2, 1));
    case!("`conv_transpose1d`", [var(&[2, 3, 4]), var(&[3, 2, 3])], Differences, |x| x[0].conv_transpose1d(&x[1], 1, 1, 2, 1, 1));
    case!("`conv_transpose2d`", [var(&[2, 3, 4, 3]), var(&[3, 2, 3, 3])], Differences, |x| x[0].conv_transpose2d(&x[1], 1, 0, 2, 1));
    case!("`conv_transpose2d` with an output padding", [var(&[2, 3, 4, 3]), var(&[3, 2, 3, 3])], Differences, |x| x[0].conv_transpose2d(&x[1], 1, 1, 2, 2));
    // Pooling.
    case!("`max_pool2d`", [var(&[2, 2, 4, 6])], Differences, |x| x[0].max_pool2d(2));
    case!("`max_pool2d`, of a size that is no multiple", [var(&[2, 2, 5, 7])], Differences, |x| x[0].max_pool2d((2, 3)));
    case!("`max_pool2d_with_stride`, of another stride", [var(&[2, 2, 5, 7])], Differences, |x| x[0].max_pool2d_with_stride((3, 2), (2, 1)));
    case!("`avg_pool2d`", [var(&[2, 2, 4, 6])], Differences, |x| x[0].avg_pool2d(2));
    case!("`avg_pool2d`, of a size that is no multiple", [var(&[2, 2, 5, 7])], Differences, |x| x[0].avg_pool2d((2, 3)));
    case!("`avg_pool2d_with_stride`, of another stride", [var(&[2, 2, 5, 7])], Differences, |x| x[0].avg_pool2d_with_stride((3, 2), (2, 1)));
    // Upsampling.
    case!("`upsample_nearest1d`, `interpolate1d`", [var(&[2, 2, 3])], Differences, |x| x[0].upsample_nearest1d(6));
    case!("`upsample_nearest1d`, where its input is used elsewhere, too", [var(&[2, 2, 3])], Differences, |x| { let y = x[0].affine(2., 1.)?; also(&y, y.upsample_nearest1d(6)?) });
    case!("`upsample_nearest1d`, of a size that is no multiple", [var(&[2, 2, 3])], Differences, |x| x[0].upsample_nearest1d(7));
    case!("`upsample_nearest2d`, `interpolate2d`", [var(&[2, 2, 3, 2])], Differences, |x| x[0].upsample_nearest2d(6, 4));
    case!("`upsample_nearest2d`, where its input is used elsewhere, too", [var(&[2, 2, 3, 2])], Differences, |x| { let y = x[0].affine(2., 1.)?; also(&y, y.upsample_nearest2d(6, 4)?) });
    case!("`upsample_nearest2d`, of a size that is no multiple", [var(&[2, 2, 3, 2])], Differences, |x| x[0].upsample_nearest2d(7, 5));
    case!("`upsample_bilinear2d`", [var(&[2, 2, 3, 4])], Differences, |x| x[0].upsample_bilinear2d(5, 7, false)? + x[0].upsample_bilinear2d(5, 7, true)?);
    case!("`upsample_bilinear2d_with_scale`, of whole numbers", [var(&[2, 2, 3, 4])], Differences, |x| x[0].upsample_bilinear2d_with_scale(2., 3., false));
    // candle_nn's functions.
    case!("`ops::sigmoid`, `softmax`, `log_softmax`, `leaky_relu`, `hard_sigmoid`, `mish`, `swiglu`", [var(&[2, 4])], Differences,
        |x| {
            let x = x[0].as_tensor();
            let soft = (ops::softmax(x, 1)? * ops::log_softmax(x, 1)?)?;
            let gates = ((ops::sigmoid(x)? + ops::leaky_relu(x, 0.1)?)? + (ops::hard_sigmoid(x)? * ops::mish(x)?)?)?;
            (soft * gates)?.narrow(1, 0, 2)? + ops::swiglu(x)
        });
    case!("`ops::softmax_last_dim`, `rms_norm`, `layer_norm`, `rotary_emb::rope`, `rope_i`, `rope_thd`", [var(&[2, 4])], Differences,
        |x| {
            // candle's norms take no f64.
            let (x, ones) = (x[0].to_dtype(DType::F32)?, Tensor::ones(4, DType::F32, &Device::Cpu)?);
            let norms = (ops::rms_norm(&x, &ones, 1e-5)? + ops::layer_norm(&x, &ones, &ones, 1e-5)?)?;
            let (heads, turn) = (x.reshape((1, 1, 2, 4))?, numbers(&[2, 2], DType::F32));
            let turned = (rotary_emb::rope(&heads, &turn, &turn)? + rotary_emb::rope_i(&heads, &turn, &turn)?)?;
            let thd = rotary_emb::rope_thd(&x.reshape((1, 2, 1, 4))?, &turn, &turn)?.reshape((2, 4))?;
            let y = ((ops::softmax_last_dim(&x)? + norms)? + (turned.reshape((2, 4))? + thd)?)?;
            y.to_dtype(DType::F64)
        });
    case!("`ops::pixel_shuffle`, `pixel_unshuffle`, `replication_pad2d`", [var(&[1, 4, 2, 2])], Differences,
        |x| ops::replication_pad2d(&ops::pixel_unshuffle(&ops::pixel_shuffle(&x[0], 2)?, 2)?.sqr()?, 1));
    case!("`Linear`, `GroupNorm`, `ops::layer_norm_slow`, `rms_norm_slow`, `rotary_emb::rope_slow`, `rope_i_slow`", [var(&[2, 4]), var(&[4, 4]), positive(&[4]), var(&[4])], Differences,
        |x| {
            let [weight, scale, bias] = [1, 2, 3].map(|number: usize| x[number].as_tensor().clone());
            let y = candle_nn::Linear::new(weight, Some(bias.clone())).forward(&x[0])?;
            let groups = candle_nn::GroupNorm::new(scale.clone(), bias.clone(), 4, 2, 1e-5)?.forward(&y.unsqueeze(2)?.broadcast_as((2, 4, 3))?.broadcast_mul(&numbers(&[3], DType::F64).log()?)?)?;
            let rows = (ops::layer_norm_slow(&y, &scale, &bias, 1e-5)? * ops::rms_norm_slow(&x[0], &scale, 1e-5)?)?;
            let (heads, turn) = (rows.reshape((1, 1, 2, 4))?, numbers(&[2, 2], DType::F64));
            let turned = (rotary_emb::rope_slow(&heads, &turn, &turn)? * rotary_emb::rope_i_slow(&heads, &turn, &turn)?)?;
            turned.reshape((2, 4))? + groups.sum(2)?
        });
    all
}

/// Returns a scalar that depends on every element of the result with a different weight.
fn loss(case: &Case) -> Result<Tensor> {
    let y = (case.function)(&case.of)?;
    let weights =
        if y.elem_count() == 1 { Tensor::ones_like(&y)? } else { (numbers(y.dims(), DType::F64) - 4.5)? };
    (y * weights)?.sum_all()
}

/// Compares the gradients of all variables with the expected ones, within `limit`. Returns the entry for the table; a
/// missing gradient has a separate one.
fn verdict(
    case: &Case,
    store: std::thread::Result<Option<candle_core::backprop::GradStore>>,
    limit: f64,
) -> &'static str {
    let Ok(Some(store)) = store else { return "error" };
    let expected: Vec<f64> = match case.right {
        Differences => case.of.iter().flat_map(|of| by_differences(of, &|| loss(case))).collect(),
        Values(values) => values.to_vec(),
        Zeros => vec![0.; case.of.iter().map(|of| of.elem_count()).sum()],
    };
    if case.of.iter().all(|of| store.get(of).is_none()) {
        return "none";
    }
    let found: Option<Vec<f64>> =
        case.of.iter().map(|of| store.get(of).map(flat)).collect::<Option<Vec<_>>>().map(|all| all.concat());
    let close = |(found, expected): (&f64, &f64)| (found - expected).abs() <= limit * expected.abs().max(1.);
    match found {
        Some(found) if found.len() == expected.len() && found.iter().zip(&expected).all(close) => "right",
        _ => "wrong",
    }
}

/// Returns the rows of the table in the guide: the operation, and the results of candle's backward pass and this
/// crate's.
fn table() -> Vec<[String; 3]> {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/gradients.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let rows = guide.lines().skip_while(|line| !line.starts_with("| operation of candle |")).skip(2);
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>()
    };
    let rows = rows.take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|cells| [cells[0].clone(), cells[1].clone(), cells[2].clone()]).collect()
}

// INV-74
#[test]
fn the_guide_lists_for_each_operation_whether_its_gradient_is_right() {
    let mut found = Vec::new();
    for case in cases() {
        let loss = loss(&case).unwrap_or_else(|error| panic!("{}: {error}", case.row));
        let candle = catch_unwind(AssertUnwindSafe(|| loss.backward().ok()));
        let ours = catch_unwind(AssertUnwindSafe(|| Some(backward(&loss).unwrap())));
        let (candle, ours) = (verdict(&case, candle, 1e-5), verdict(&case, ours, 1e-6));
        found.push([case.row.to_string(), candle.into(), ours.into()]);
    }
    let lines =
        |rows: &[[String; 3]]| rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect::<Vec<_>>();
    let (found, written) = (lines(&found), lines(&table()));
    assert!(
        found == written,
        "the table has to be:\n{}\n\nand is:\n{}",
        found.join("\n"),
        written.join("\n")
    );
    assert!(!found.iter().any(|row| row.ends_with("wrong |") || row.ends_with("error |")));
}

#[test]
fn values_that_candle_has_wrong_are_right_by_the_layers_of_this_crate() {
    let numbers = |shape: &[usize]| numbers(shape, DType::F32);
    let close = |left: &Tensor, right: &Tensor| {
        flat(left)
            .iter()
            .zip(flat(right))
            .all(|(left, right)| (left - right).abs() < 1e-4 * right.abs().max(1.))
    };
    let check = |row: &str, of_candle: Tensor, of_nn: Tensor, right: Tensor| {
        assert!(close(&of_nn, &right), "{row}: nn has {of_nn}, not {right}");
        assert!(
            !close(&of_candle, &right),
            "{row}: right in candle now: docs/reference/gradients.md says that it is not"
        );
    };
    // Rows that are not contiguous, of several examples.
    let (x, weight) = (numbers(&[2, 3, 4]).transpose(1, 2).unwrap(), numbers(&[5, 3]));
    let right = candle_nn::Linear::new(weight.clone(), None).forward(&x.contiguous().unwrap()).unwrap();
    let of_candle = candle_nn::Linear::new(weight.clone(), None).forward(&x).unwrap();
    check("Linear", of_candle, nn::Linear::new(weight, None).forward(&x).unwrap(), right);
    // Several examples, without padding.
    let (x, weight) = (numbers(&[2, 3, 4]), numbers(&[3, 2, 3]));
    let one = |i: usize| x.narrow(0, i, 1).unwrap().conv_transpose1d(&weight, 0, 0, 1, 1, 1).unwrap();
    let right = Tensor::cat(&[one(0), one(1)], 0).unwrap();
    let layer = nn::ConvTranspose1d::new(weight.clone(), None, Default::default());
    let of_candle = x.conv_transpose1d(&weight, 0, 0, 1, 1, 1).unwrap();
    check("conv_transpose1d", of_candle, layer.forward(&x).unwrap(), right);
    // A weight that is not contiguous.
    let (x, weight) = (numbers(&[2, 3, 6]), numbers(&[3, 3, 4]).transpose(0, 2).unwrap());
    let right = x.conv1d(&weight.contiguous().unwrap(), 0, 1, 1, 1).unwrap();
    let layer = nn::Conv1d::new(weight.clone(), None, Default::default());
    check("conv1d", x.conv1d(&weight, 0, 1, 1, 1).unwrap(), layer.forward(&x).unwrap(), right);
}
