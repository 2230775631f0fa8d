//! Checks that gradients by row train like dense ones.

use crate::gradients::{COUNTS, mirrored, numbers};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules::{
    Adafactor, Adagrad, Adam, Ftrl, Lamb, Momentum, RmsProp, RowAdagrad, Rule, Sgd,
};
use distribute::optimizer::{Gradient, Gradients, Transform};
use distribute::tensor::IndexedSlices;
use distribute::{HostTensor, Optimizer, ReduceOp};
use distribute_testing::watched;
use proptest::prelude::*;

/// The contribution of one replica to the gradient of a table: row indices with a value for each, nothing, or a dense
/// gradient.
#[derive(Clone, Debug)]
pub(crate) enum Brought {
    Nothing,
    Rows(Vec<usize>),
    Dense,
}

// Large enough for several owners, which have blocks of 2048 elements of a table or of its rows in a gradient.
pub(crate) const HEIGHT: usize = 701;
pub(crate) const WIDTH: usize = 8;

fn value(seed: usize) -> f32 {
    ((seed * 7919 + 13) % 1009) as f32 / 500. - 1.
}

impl Brought {
    /// Returns a value for each element of the given number of rows.
    pub(crate) fn values(rows: usize, seed: usize) -> Vec<f32> {
        (0..rows * WIDTH).map(|i| value(seed + i)).collect()
    }

    fn dense(&self, seed: usize) -> Option<Tensor> {
        let mut all = vec![0f32; HEIGHT * WIDTH];
        match self {
            Brought::Nothing => return None,
            Brought::Dense => all.iter_mut().enumerate().for_each(|(i, x)| *x = value(seed + i)),
            Brought::Rows(rows) => {
                for (i, row) in rows.iter().enumerate() {
                    for j in 0..WIDTH {
                        all[row * WIDTH + j] += value(seed + i * WIDTH + j);
                    }
                }
            }
        }
        Some(Tensor::from_vec(all, (HEIGHT, WIDTH), &Device::Cpu).unwrap())
    }

    fn gradient(&self, seed: usize) -> Option<Gradient> {
        let Brought::Rows(rows) = self else { return self.dense(seed).map(Gradient::from) };
        let values = Self::values(rows.len(), seed);
        let indices = HostTensor::vector(rows.iter().map(|row| *row as i32).collect());
        let slices = IndexedSlices::new(HostTensor::new(values, [rows.len(), WIDTH]).unwrap(), indices, None);
        Some(slices.unwrap().into())
    }
}

/// Trains a table and a vector with the contributions of the replicas for the table in each step.
pub(crate) fn train_table<R: Rule + Clone>(
    rule: &R,
    transforms: &[Transform],
    steps: &[Vec<Brought>],
    by_row: bool,
) -> (String, Vec<f64>) {
    let strategy = mirrored(steps[0].len());
    let build = |vb: VarBuilder| -> candle_core::Result<_> {
        let init = Init::Uniform { lo: -1., up: 1. };
        Ok((vb.get_with_hints((HEIGHT, WIDTH), "table", init)?, vb.get_with_hints(7, "bias", init)?))
    };
    let model = strategy.replicate_seeded(3, build).unwrap();
    let mut optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.1).unwrap();
    for transform in transforms {
        optimizer = optimizer.after_reduce(transform.clone()).unwrap();
    }
    for (step, brought) in steps.iter().enumerate() {
        let run = strategy.run((), |ctx, ()| {
            let replica = ctx.replica_id_in_sync_group();
            let (brought, seed) = (&brought[replica], step * 1000 + replica * 100);
            let mut gradients = Gradients::new(&optimizer);
            let table = if by_row { brought.gradient(seed) } else { brought.dense(seed).map(Gradient::from) };
            if let Some(table) = table {
                gradients.insert("table", table)?;
            }
            let bias: Vec<f32> = (0..7).map(|i| value(seed + i + 50)).collect();
            gradients.insert("bias", Tensor::from_vec(bias, 7, &Device::Cpu)?)?;
            optimizer.apply_gradients(ctx, gradients, 1 + replica)
        });
        run.unwrap();
    }
    let mut values = numbers(&model);
    for slot in optimizer.slot_names() {
        let slot = optimizer.slot("table", slot).unwrap().flatten_all().unwrap();
        values.extend(slot.to_vec1::<f32>().unwrap().into_iter().map(f64::from));
    }
    (model.variables.sha256().unwrap(), values)
}

/// Returns the contributions of each replica in each step, for any number of replicas.
fn steps() -> BoxedStrategy<Vec<Vec<Brought>>> {
    let one = prop_oneof![
        1 => Just(Brought::Nothing),
        1 => Just(Brought::Rows(Vec::new())),
        3 => prop::collection::vec(0..HEIGHT, 1..12).prop_map(Brought::Rows),
        3 => prop::collection::vec(0..HEIGHT, 300..900).prop_map(Brought::Rows),
    ];
    let steps = move |n| prop::collection::vec(prop::collection::vec(one.clone(), n..=n), 1..4);
    prop::sample::select(COUNTS.to_vec()).prop_flat_map(steps).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn by_row_is_as_dense_to_the_bit_where_a_gradient_of_zero_changes_nothing(steps in steps()) {
        watched(move || {
            assert_eq!(train_table(&Sgd, &[], &steps, true), train_table(&Sgd, &[], &steps, false));
            let rule = Adagrad::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
            let transforms = [Transform::clip_by_value(-0.5, 0.5), Transform::each(|_, gradient| Ok(gradient))];
            assert_eq!(train_table(&rule, &transforms, &steps, true), train_table(&rule, &transforms, &steps, false));
            let rule = RowAdagrad::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
            assert_eq!(train_table(&rule, &transforms, &steps, true), train_table(&rule, &transforms, &steps, false));
            // Both of these rules also move rows that have no gradient.
            let rule = Adam::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
            let rule = Adafactor::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
            let rule = Lamb::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
            assert_eq!(train_table(&rule, &transforms, &steps, true), train_table(&rule, &transforms, &steps, false));
        });
    }

    #[test]
    fn a_clip_of_rows_is_that_of_the_same_dense(steps in steps(), norm in 0.01f64..3.) {
        watched(move || {
            for clip in [Transform::clip_by_norm(norm), Transform::clip_by_global_norm(norm), Transform::clip_by_value(-norm, norm)] {
                let transforms = [clip, Transform::each(|_, gradient| Ok(gradient))];
                let (_, rows) = train_table(&Sgd, &transforms, &steps, true);
                let (_, dense) = train_table(&Sgd, &transforms, &steps, false);
                for (a, b) in rows.iter().zip(&dense) {
                    // Squares are added in another order.
                    assert!((a - b).abs() < 1e-5, "{transforms:?}: {a} {b}");
                }
            }
        });
    }

    #[test]
    fn rows_on_one_replica_and_dense_on_another_are_dense(
        mut steps in steps(),
        at in 0usize..8,
    ) {
        watched(move || {
            for step in &mut steps {
                let n = step.len();
                step[at % n] = Brought::Dense;
            }
            // Momentum moves every row of a dense gradient, also those of zero.
            let rule = Momentum::new(0.9);
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
        });
    }
}

/// Checks the rule of sparse gradients in the oracle: only rows that are present change, in the variable and in all
/// slots.
#[test]
fn only_rows_of_the_gradient_change_in_the_table_and_its_slots() {
    fn check<R: Rule + Clone>(rule: &R) {
        for n in COUNTS {
            let step = (0..n).map(|r| Brought::Rows(vec![2 * r, 2 * r, 3])).collect::<Vec<_>>();
            let (_, start) = train_table(rule, &[], &[vec![Brought::Nothing; n]], true);
            let (_, got) = train_table(rule, &[], &vec![step; 3], true);
            // The bias comes first, then the table and its slots, whose rows may have one number each.
            let by_row = |all: &[f64]| -> Vec<Vec<f64>> {
                let (table, slots) = all[7..].split_at(HEIGHT * WIDTH);
                let width = if slots.len() == HEIGHT { 1 } else { WIDTH };
                table.chunks(WIDTH).chain(slots.chunks(width)).map(<[f64]>::to_vec).collect()
            };
            for (i, (start, got)) in by_row(&start).iter().zip(&by_row(&got)).enumerate() {
                let row = i % HEIGHT;
                let present = row == 3 || (row.is_multiple_of(2) && row < 2 * n);
                assert_eq!(start != got, present, "{}: row {row} with {n} replicas", rule.name());
            }
        }
    }
    watched(|| {
        check(&Sgd);
        check(&Momentum::new(0.9));
        check(&Momentum::nesterov(0.9));
        check(&Adam::lazy());
        check(&Adagrad::default());
        check(&RowAdagrad::default());
        check(&RmsProp::default());
        check(&Ftrl::default());
    });
}

#[test]
fn empty_slices_are_a_gradient_of_zero_and_none_is_no_gradient() {
    watched(|| {
        for n in COUNTS {
            let first = vec![Brought::Rows(vec![1, 5]); n];
            let train =
                |then: Brought| train_table(&Adam::default(), &[], &[first.clone(), vec![then; n]], true).1;
            let (none, empty) = (train(Brought::Nothing), train(Brought::Rows(Vec::new())));
            let once = train_table(&Adam::default(), &[], std::slice::from_ref(&first), true).1;
            assert_eq!(none[7..], once[7..], "without gradients the table and its slots stay");
            assert_ne!(empty[7..], once[7..], "Adam goes on where the gradient is zero");
            // With a rule that does not move rows without a gradient, the step counts, but the table stays.
            let lazy = |steps: &[Vec<Brought>]| train_table(&Adam::lazy(), &[], steps, true).1;
            let empty = vec![Brought::Rows(Vec::new()); n];
            assert_eq!(lazy(&[first.clone(), empty])[7..], lazy(std::slice::from_ref(&first))[7..]);
        }
    });
}

#[test]
fn gradients_add_up_over_micro_batches_dense_and_by_row() {
    watched(|| {
        let strategy = mirrored(2);
        let (rows, more, dense) = (Brought::Rows(vec![3, 1, 3]), Brought::Rows(vec![0, 3]), Brought::Dense);
        for (a, b) in [
            (&rows, &more),
            (&rows, &dense),
            (&dense, &rows),
            (&rows, &Brought::Nothing),
            (&Brought::Nothing, &rows),
        ] {
            let build = |vb: VarBuilder| vb.get_with_hints((HEIGHT, WIDTH), "table", Init::Const(0.));
            let model = strategy.replicate(build).unwrap();
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let run = strategy.run((), |ctx, ()| {
                let mut sum = Gradients::new(&optimizer);
                for (brought, seed) in [(a, 7), (b, 77)] {
                    let mut gradients = Gradients::new(&optimizer);
                    if let Some(gradient) = brought.gradient(seed) {
                        gradients.insert("table", gradient)?;
                    }
                    assert_eq!(gradients.get("table").is_some(), gradients.iter().count() == 1);
                    sum.add(gradients)?;
                }
                optimizer.apply_gradients(ctx, sum, ReduceOp::Mean)
            });
            run.unwrap();
            let zero = || Tensor::zeros((HEIGHT, WIDTH), DType::F32, &Device::Cpu).unwrap();
            let want = (a.dense(7).unwrap_or_else(zero) + b.dense(77).unwrap_or_else(zero)).unwrap();
            let got = model.variables.get("table").unwrap();
            let off = (got + want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(off.to_scalar::<f32>().unwrap() < 1e-6);
        }
    });
}
