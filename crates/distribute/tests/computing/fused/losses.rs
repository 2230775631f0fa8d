//! Fused losses, compared with candle_nn's.

use crate::fused::{Lies, assert_same, flat, numbers, results};
use candle_core::{DType, Device, Result, Tensor, Var};
use distribute::nn::loss;
use proptest::prelude::*;

type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn labels(rows: usize, classes: usize, dtype: DType) -> Tensor {
    let labels: Vec<i64> = (0..rows).map(|row| (row * 7 % classes) as i64).collect();
    Tensor::from_vec(labels, rows, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn layouts() -> impl Strategy<Value = Lies> {
    prop::sample::select(vec![Lies::Plain, Lies::Transposed, Lies::Inside])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn cross_entropy_is_candles(
        (rows, classes) in prop_oneof![(1usize..70, 1usize..70), Just((3, 2049)), Just((2, 5000))],
        (f64, lies, scale) in (any::<bool>(), layouts(), prop::sample::select(vec![1., 30.])),
        of_labels in prop::sample::select(vec![DType::U8, DType::U32, DType::I64]),
    ) {
        let dtype = if f64 { DType::F64 } else { DType::F32 };
        let y = labels(rows, classes.min(250), of_labels);
        let inputs = [((numbers(&[rows, classes], dtype, 1) * scale).unwrap(), lies)];
        let fast = results(&inputs, |t| loss::cross_entropy(&t[0], &y)).unwrap();
        let stock = results(&inputs, |t| candle_nn::loss::cross_entropy(&t[0], &y)).unwrap();
        assert_same(&fast, &stock, &format!("{rows} {classes}"));
    }

    #[test]
    fn losses_of_pairs_are_candles(
        shape in prop::collection::vec(1usize..12, 1..4),
        wide in any::<bool>(),
        (f64, lies) in (any::<bool>(), prop::array::uniform2(layouts())),
    ) {
        let dtype = if f64 { DType::F64 } else { DType::F32 };
        let shape = if wide { vec![5, 131] } else { shape };
        let z = ((numbers(&shape, dtype, 2) + 1.).unwrap() / 2.).unwrap();
        let inputs = [((numbers(&shape, dtype, 1) * 3.).unwrap(), lies[0]), (z, lies[1])];
        let both: [(Loss, Loss); 4] = [
            (loss::mse, candle_nn::loss::mse),
            (|x, z| loss::huber(x, z, 1.), |x, z| candle_nn::loss::huber(x, z, 1.)),
            (|x, z| loss::huber(x, z, 0.3), |x, z| candle_nn::loss::huber(x, z, 0.3)),
            (loss::binary_cross_entropy_with_logit, candle_nn::loss::binary_cross_entropy_with_logit),
        ];
        for (ours, candles) in both {
            let fast = results(&inputs, |t| ours(&t[0], &t[1])).unwrap();
            let stock = results(&inputs, |t| candles(&t[0], &t[1])).unwrap();
            assert_same(&fast, &stock, &format!("{shape:?}"));
        }
    }
}

#[test]
fn huber_is_that_of_keras() {
    // keras.losses.Huber of Keras 3.15, in f64.
    let x = Var::new(&[0., 1., -2.5, 0.3], &Device::Cpu).unwrap();
    let z = Tensor::new(&[0.4, -1., 0., 0.3], &Device::Cpu).unwrap();
    for (delta, expected, gradient) in [
        (1., 0.895, [-0.1, 0.25, -0.25, 0.]),
        (0.5, 0.52, [-0.1, 0.125, -0.125, 0.]),
        (3., 1.30125, [-0.1, 0.5, -0.625, 0.]),
    ] {
        let loss = loss::huber(&x, &z, delta).unwrap();
        assert!((loss.to_scalar::<f64>().unwrap() - expected).abs() < 1e-9);
        let of_x = flat(loss.backward().unwrap().get(&x).unwrap());
        assert!(of_x.iter().zip(gradient).all(|(a, b)| (a - b).abs() < 1e-9), "{of_x:?}");
    }
    for delta in [0., -1., f64::NAN, f64::INFINITY] {
        assert!(loss::huber(&x, &z, delta).is_err());
    }
    let nan = Tensor::new(&[f64::NAN, 0., 0., 0.], &Device::Cpu).unwrap();
    assert!(loss::huber(&x, &nan, 1.).unwrap().to_scalar::<f64>().unwrap().is_nan());
}

#[test]
fn smoothed_labels_are_refused_outside_of_their_range() {
    let (logits, labels) = (numbers(&[3, 4], DType::F32, 1), labels(3, 4, DType::U32));
    for smoothing in [-0.1, 1.1, f64::NAN] {
        let text = loss::cross_entropy_with_smoothing(&logits, &labels, smoothing).unwrap_err().to_string();
        assert!(text.contains("is not in [0, 1]"), "{text}");
    }
}

#[test]
fn labels_out_of_range_are_named() {
    let logits = numbers(&[3, 4], DType::F32, 1);
    let of = |labels: Vec<i64>| loss::cross_entropy(&logits, &Tensor::new(labels, &Device::Cpu).unwrap());
    for bad in [4, -1, i64::MIN] {
        let text = of(vec![0, 3, bad]).unwrap_err().to_string();
        assert!(
            text.contains(&format!("row 2 has the label {bad}, which is not one of 4 classes")),
            "{text}"
        );
    }
    let text = of(vec![0, 1]).unwrap_err().to_string();
    assert!(text.contains("logits [3, 4] need labels [3], not [2]"), "{text}");
    let floats = loss::cross_entropy(&logits, &numbers(&[3], DType::F32, 1)).unwrap_err().to_string();
    assert!(floats.contains("u8, u32 or i64, not F32"), "{floats}");
    assert!(loss::cross_entropy(&numbers(&[4], DType::F32, 1), &labels(4, 2, DType::U32)).is_err());
}

#[test]
fn a_row_without_label_adds_nothing_as_in_candle() {
    let logits = [(numbers(&[3, 4], DType::F64, 1), Lies::Plain)];
    let all = [
        Tensor::new(&[1u8, u8::MAX, 3], &Device::Cpu),
        Tensor::new(&[1u32, u32::MAX, 3], &Device::Cpu),
        Tensor::new(&[1i64, i64::MAX, 3], &Device::Cpu),
    ];
    for labels in all {
        let labels = labels.unwrap();
        let fast = results(&logits, |t| loss::cross_entropy(&t[0], &labels)).unwrap();
        let stock = results(&logits, |t| candle_nn::loss::cross_entropy(&t[0], &labels)).unwrap();
        assert_same(&fast, &stock, &format!("{labels}"));
        assert_eq!(flat(&fast[1])[4..8], [0.; 4]);
    }
}

#[test]
fn classes_that_are_masked_out_and_numbers_that_are_none() {
    let y = Tensor::new(&[0u32, 1], &Device::Cpu).unwrap();
    let of = |rows: [[f32; 3]; 2]| {
        let x = Var::from_tensor(&Tensor::new(&rows, &Device::Cpu).unwrap()).unwrap();
        let loss = loss::cross_entropy(&x, &y).unwrap();
        let gradient = loss.backward().unwrap().remove(&x).unwrap();
        (loss.to_scalar::<f32>().unwrap(), flat(&gradient))
    };
    let (loss, gradient) = of([[1., f32::NEG_INFINITY, 1.], [f32::NEG_INFINITY, 2., 2.]]);
    assert!((loss - 2f32.ln()).abs() < 1e-6, "{loss}");
    assert_eq!(gradient, [-0.25, 0., 0.25, 0., -0.25, 0.25]);
    assert!(of([[1., f32::NAN, 1.], [0.; 3]]).0.is_nan());
    assert!(of([[1., f32::INFINITY, 1.], [0.; 3]]).0.is_nan());
    // The logits are far beyond the range of an exponential.
    let (loss, gradient) = of([[1e30, 0., 0.], [0., -1e30, 0.]]);
    assert_eq!((loss, gradient[0], gradient[4]), (0.5e30, 0., -0.5));
}

// candle_nn's gives infinity or NaN here.
#[test]
fn binary_cross_entropy_is_exact_for_logits_of_any_size() {
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let new = |x: &[f64]| Tensor::new(x, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let x = Var::from_tensor(&new(&[200., -200., 200., -200., 0.])).unwrap();
        let loss = loss::binary_cross_entropy_with_logit(&x, &new(&[1., 0., 0., 1., 0.5])).unwrap();
        let gradient = loss.backward().unwrap().remove(&x).unwrap();
        let wanted = (400. + 2f64.ln()) / 5.;
        let near = if dtype == DType::F16 { 0.1 } else { 1e-5 };
        assert!((flat(&loss)[0] - wanted).abs() < near, "{loss}");
        for (got, wanted) in flat(&gradient).into_iter().zip([0., 0., 0.2, -0.2, 0.]) {
            assert!((got - wanted).abs() < 1e-3, "{gradient}");
        }
    }
    let small = loss::binary_cross_entropy_with_logit(
        &Tensor::new(&[-20f32], &Device::Cpu).unwrap(),
        &Tensor::new(&[0f32], &Device::Cpu).unwrap(),
    );
    let small = small.unwrap().to_scalar::<f32>().unwrap();
    assert!((small / (-20f32).exp() - 1.).abs() < 1e-5, "{small}");
}

// INV-9
#[test]
fn zero_rows_give_0_and_other_shapes_an_error() {
    let none = Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap();
    let zero = |loss: Result<Tensor>| assert_eq!(loss.unwrap().to_scalar::<f32>().unwrap(), 0.);
    // Rows on one side only are an error: otherwise they would count as examples.
    assert!(loss::cross_entropy(&none, &labels(3, 4, DType::U32)).is_err());
    assert!(loss::nll(&none, &labels(3, 4, DType::U32)).is_err());
    assert!(loss::mse(&none, &numbers(&[3, 4], DType::F32, 1)).is_err());
    let no_class = Tensor::zeros((3, 0), DType::F32, &Device::Cpu).unwrap();
    assert!(loss::cross_entropy(&no_class, &labels(3, 4, DType::U32)).is_err());
    let unlabelled = Tensor::full(u32::MAX, 3, &Device::Cpu).unwrap();
    assert!(loss::cross_entropy(&no_class, &unlabelled).is_err());
    zero(loss::cross_entropy(&none, &labels(0, 4, DType::U32)));
    zero(loss::mse(&none, &none));
    zero(loss::huber(&none, &none, 1.));
    zero(loss::cross_entropy_with_smoothing(&none, &labels(0, 4, DType::U32), 0.1));
    zero(loss::binary_cross_entropy_with_logit(&none, &none));
    let (x, y) = (numbers(&[2, 3], DType::F32, 1), numbers(&[3, 2], DType::F32, 1));
    assert!(loss::mse(&x, &y).is_err());
    assert!(loss::binary_cross_entropy_with_logit(&x, &y).is_err());
}
