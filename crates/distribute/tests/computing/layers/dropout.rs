//! Dropout by position in the global batch.

use super::{flat, mirrored, numbers, one_device};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Linear, Module, VarBuilder};
use distribute::data::Dataset;
use distribute::nn::{Dropout, loss};
use distribute::{PerReplica, Sgd, Strategy};
use distribute_testing::watched;

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap()
}

/// Returns the results of dropout on ones, for the complete global batch in each of two steps.
fn masks(strategy: &Strategy, dropout: &Dropout, shape: &[usize]) -> Vec<Vec<f64>> {
    let data = Dataset::from_slices(ones(shape)).unwrap().batch(shape[0]).repeat(2);
    let mut steps = Vec::new();
    for batch in &strategy.distribute_dataset(data).unwrap() {
        let pieces = strategy.run(batch.unwrap(), |_, x| Ok(dropout.forward(&x, true)?)).unwrap();
        steps.push(pieces.iter().flat_map(flat).collect());
    }
    steps
}

// INV-8
#[test]
fn replicas_drop_the_same_elements_as_one_device() {
    watched(|| {
        let dropout = Dropout::new(0.4, 7, "hidden").unwrap();
        for shape in [&[1, 5][..], &[3, 4, 7], &[8, 1], &[10]] {
            let expected = masks(&one_device(), &dropout, shape);
            assert_eq!(expected.len(), 2);
            for n in [1, 2, 3, 4] {
                assert_eq!(masks(&mirrored(n), &dropout, shape), expected, "{n} replicas, {shape:?}");
            }
        }
    });
}

#[test]
fn rows_times_words_are_positions_in_the_global_batch() {
    watched(|| {
        let dropout = Dropout::new(0.5, 7, "words").unwrap();
        let run = |strategy: Strategy| {
            let data = Dataset::from_slices(ones(&[5, 3, 4])).unwrap().batch(5);
            let batch = strategy.distribute_dataset(data).unwrap().iter().next().unwrap().unwrap();
            let pieces = strategy.run(batch, |_, x| Ok(dropout.forward(&x.flatten(0, 1)?, true)?)).unwrap();
            pieces.iter().flat_map(flat).collect::<Vec<_>>()
        };
        assert_eq!(run(mirrored(3)), run(one_device()));
    });
}

#[test]
fn seed_name_step_and_call_make_other_masks() {
    watched(|| {
        let strategy = mirrored(2);
        let of = |seed, name| masks(&mirrored(2), &Dropout::new(0.5, seed, name).unwrap(), &[4, 50]);
        let first = of(1, "a");
        assert_eq!(first, of(1, "a"), "the same program draws the same");
        assert_ne!(first[0], first[1], "steps");
        assert_ne!(first, of(2, "a"), "seeds");
        assert_ne!(first, of(1, "b"), "names");
        let dropout = Dropout::new(0.5, 1, "a").unwrap();
        strategy
            .run((), |_, ()| {
                let x = ones(&[4, 50]);
                assert_ne!(flat(&dropout.forward(&x, true)?), flat(&dropout.forward(&x, true)?));
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn calls_are_counted_in_cross_replica_context() {
    watched(|| {
        let dropout = Dropout::new(0.5, 1, "cross-replica").unwrap();
        let strategy = mirrored(2);
        let draw = || Ok(flat(&dropout.forward(&ones(&[2, 40]), true)?));
        let (first, second) = strategy.scope(|| Ok((draw()?, draw()?))).unwrap();
        let merged = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| draw())).unwrap().into_values();
        let drawn = [first, second, merged[0].clone(), draw().unwrap()];
        for (i, mask) in drawn.iter().enumerate() {
            assert!(!drawn[..i].contains(mask), "call {i} drew an earlier call's mask");
        }
    });
}

#[test]
fn replicas_without_a_batch_initialize_by_their_id() {
    watched(|| {
        let dropout = Dropout::new(0.5, 1, "a").unwrap();
        let run = || {
            let strategy = mirrored(2);
            let pieces = PerReplica::from_values(vec![ones(&[2, 40]), ones(&[2, 40])]);
            let out = strategy.run(pieces, |_, x| Ok(dropout.forward(&x, true)?)).unwrap();
            out.iter().map(flat).collect::<Vec<_>>()
        };
        let first = run();
        assert_ne!(first[0], first[1]);
        assert_eq!(first, run());
    });
}

#[test]
fn a_resumed_training_continues_its_random_numbers() {
    watched(|| {
        let dropout = Dropout::new(0.5, 1, "a").unwrap();
        let through = masks(&mirrored(2), &dropout, &[4, 50]);
        let resumed = mirrored(2);
        resumed.set_steps(1).unwrap();
        assert_eq!(masks(&resumed, &dropout, &[4, 50])[0], through[1]);
        assert_eq!(resumed.steps(), 3);
        let error = resumed.run((), |ctx, ()| ctx.strategy().set_steps(0)).unwrap_err();
        assert!(error.to_string().contains("set_steps requires cross-replica context"), "{error}");
    });
}

#[test]
fn the_rate_and_the_scale_are_right_and_evaluation_keeps_everything() {
    for (p, dtype) in [(0.1, DType::F32), (0.5, DType::F64), (0.9, DType::F32), (0.3, DType::BF16)] {
        let dropout = Dropout::new(p, 3, "share").unwrap();
        let x = ones(&[100, 101]).to_dtype(dtype).unwrap();
        let out = dropout.forward(&x, true).unwrap();
        assert_eq!(out.dtype(), dtype);
        let out = flat(&out);
        let dropped = out.iter().filter(|x| **x == 0.).count() as f64 / out.len() as f64;
        assert!((dropped - f64::from(p)).abs() < 0.02, "{p}: {dropped}");
        let scale = 1. / (1. - f64::from(p));
        assert!(out.iter().all(|x| *x == 0. || (x / scale - 1.).abs() < 1e-2), "{p}");
        assert_eq!(flat(&dropout.forward(&x, false).unwrap()), flat(&x));
    }
    let x = numbers(&[3, 3], DType::F32);
    assert_eq!(flat(&Dropout::new(0., 3, "none").unwrap().forward(&x, true).unwrap()), flat(&x));
}

#[test]
fn columns_rows_and_neighbours_are_independent() {
    let out = Dropout::new(0.5, 9, "table").unwrap().forward(&ones(&[400, 400]), true).unwrap();
    let out: Vec<Vec<f32>> = out.to_vec2().unwrap();
    let both = |pairs: &mut dyn Iterator<Item = (f32, f32)>| {
        let pairs: Vec<_> = pairs.collect();
        pairs.iter().filter(|(a, b)| (*a > 0.) == (*b > 0.)).count() as f64 / pairs.len() as f64
    };
    let right = both(&mut out.iter().flat_map(|row| row.windows(2).map(|w| (w[0], w[1]))));
    let below = both(
        &mut (1..400).flat_map(|r| (0..400).map(move |c| (r, c))).map(|(r, c)| (out[r - 1][c], out[r][c])),
    );
    assert!((right - 0.5).abs() < 0.01 && (below - 0.5).abs() < 0.01, "{right} {below}");
}

#[test]
fn the_gradient_passes_where_the_mask_does() {
    let x = Var::from_tensor(&numbers(&[4, 6], DType::F64)).unwrap();
    let dropout = Dropout::new(0.5, 1, "gradient").unwrap();
    // Not contiguous, on the way there and back.
    let y = dropout.forward(&x.t().unwrap(), true).unwrap();
    let grads = y.t().unwrap().sum_all().unwrap().backward().unwrap();
    let mask = (y.t().unwrap() / x.as_tensor()).unwrap();
    for (gradient, mask) in flat(grads.get(&x).unwrap()).iter().zip(flat(&mask)) {
        assert!((gradient - mask).abs() < 1e-12, "{gradient} {mask}");
    }
}

#[test]
fn a_model_with_dropout_trains_like_one_device_for_every_remainder() {
    watched(|| {
        let weights = |strategy: Strategy, rows: usize| {
            let model = strategy
                .replicate_seeded(2, |vb: VarBuilder| {
                    let vb = vb.to_dtype(DType::F64);
                    let layer: Linear = candle_nn::linear(4, 3, vb.pp("out"))?;
                    Ok::<_, candle_core::Error>((Dropout::new(0.3, 5, "in")?, layer))
                })
                .unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let labels =
                Tensor::from_vec((0..rows as u32).map(|i| i % 3).collect(), rows, &Device::Cpu).unwrap();
            let data = Dataset::from_slices((numbers(&[rows, 4], DType::F64), labels)).unwrap().batch(5);
            for batch in &strategy.distribute_dataset(data).unwrap() {
                strategy
                    .run((&model, batch.unwrap()), |ctx, ((dropout, layer), (x, y))| {
                        let logits = layer.forward(&dropout.forward(&x, true)?)?;
                        optimizer.minimize(ctx, loss::cross_entropy(&logits, &y)?, y.dim(0)?)
                    })
                    .unwrap();
            }
            flat(&model.variables.get("out.weight").unwrap())
        };
        for rows in 6..=10 {
            let one = weights(one_device(), rows);
            for n in [2, 3, 4] {
                let many = weights(mirrored(n), rows);
                assert!(
                    one.iter().zip(&many).all(|(a, b)| (a - b).abs() < 1e-13),
                    "{rows} rows, {n} replicas"
                );
            }
        }
    });
}

#[test]
fn an_invalid_drop_is_an_error() {
    for p in [1., -0.1, f32::NAN] {
        let error = Dropout::new(p, 0, "layer.3").unwrap_err().to_string();
        assert!(error.contains("layer.3") && error.contains("[0, 1)"), "{error}");
    }
    let integers = Tensor::zeros(3, DType::I64, &Device::Cpu).unwrap();
    let error = Dropout::new(0.5, 0, "a").unwrap().forward(&integers, true).unwrap_err().to_string();
    assert!(error.contains("a float dtype"), "{error}");
}
