//! Properties of every rule, for any numbers.

// clippy's allow-unwrap-in-tests doesn't see helpers outside of #[test] functions.

use distribute_optim::{
    Adafactor, Adagrad, Adam, AdamW, Averaged, Float, Ftrl, Lamb, Lion, Momentum, NAdam, RmsProp, RowAdagrad,
    Rule, RuleExt, Sgd, SlotSpec, Step, Unit, merge_rows,
};
use proptest::prelude::*;
use std::sync::Arc;

fn rules() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(Sgd),
        Box::new(Momentum::new(0.9)),
        Box::new(Momentum::nesterov(0.5)),
        Box::new(Adam::default()),
        Box::new(Adam::lazy()),
        Box::new(AdamW::default()),
        Box::new(AdamW { lazy: true, ..AdamW::default() }),
        Box::new(Adagrad::default()),
        Box::new(RmsProp { momentum: 0.5, ..RmsProp::default() }),
        Box::new(Ftrl { l1: 0.01, l2: 0.1, l2_shrinkage: 0.05, ..Ftrl::default() }),
        Box::new(Ftrl { lr_power: -0.7, beta: 0.5, ..Ftrl::default() }),
        Box::new(NAdam::default()),
        Box::new(NAdam { lazy: true, ..NAdam::default() }),
        Box::new(Averaged { rule: Arc::new(AdamW::default()), momentum: 0.9 }),
        Box::new(Averaged { rule: Arc::new(Momentum::new(0.9)), momentum: 0.5 }),
        Box::new(Lion::default()),
        Box::new(Lion { lazy: true, weight_decay: 0.1, ..Lion::default() }),
        Box::new(RowAdagrad::default()),
        Box::new(Averaged { rule: Arc::new(RowAdagrad::default()), momentum: 0.9 }),
    ]
}

/// Returns rules that need complete variables.
fn rules_of_variables() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(Lamb { weight_decay: 0.1, ..Lamb::default() }),
        Box::new(Averaged { rule: Arc::new(Lamb::default()), momentum: 0.9 }),
        Box::new(Adafactor::default()),
        Box::new(Adafactor { relative_step: false, clip_threshold: 0.5, ..Adafactor::default() }),
    ]
}

/// A variable of complete rows, and its slots.
#[derive(Clone, Debug, PartialEq)]
struct State<F> {
    row_len: usize,
    var: Vec<F>,
    slots: Vec<Vec<F>>,
}

impl<F: Float> State<F> {
    fn new(rule: &dyn Rule, var: &[f64], row_len: usize) -> Self {
        let dims = [var.len() / row_len, row_len];
        let slots = rule.slots();
        let slots = slots.iter().map(|slot| vec![F::from_f64(slot.initial); slot.shape.elements(&dims)]);
        State { row_len, var: cast(var), slots: slots.collect() }
    }

    /// Updates the elements of `range`, which are complete rows unless the rule updates elements.
    fn update(&mut self, rule: &dyn Rule, at: Step, range: std::ops::Range<usize>, grad: &[F]) {
        let row_len = self.row_len;
        let of = |slot: &SlotSpec, len: usize| match slot.shape.per_row(row_len) {
            Some(n) => range.start * n / row_len..range.end * n / row_len,
            None => 0..len,
        };
        let specs = rule.slots();
        let slots = self.slots.iter_mut().zip(&specs).map(|(slot, spec)| {
            let at = of(spec, slot.len());
            &mut slot[at]
        });
        let mut slots: Vec<&mut [F]> = slots.collect();
        let dims = [range.len() / row_len, row_len];
        let (var, grad) = (&mut self.var[range.clone()], &grad[range]);
        match rule.unit() {
            Unit::Element => rule.update(at, var, grad, &mut slots).unwrap(),
            _ => rule.update_shaped(at, &dims, var, grad, &mut slots).unwrap(),
        }
    }

    fn update_rows(&mut self, rule: &dyn Rule, at: Step, rows: &[usize], grads: &[F]) {
        let mut slots: Vec<&mut [F]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        rule.update_rows(at, &mut self.var, self.row_len, rows, grads, &mut slots).unwrap();
    }
}

fn cast<F: Float>(values: &[f64]) -> Vec<F> {
    values.iter().map(|&value| F::from_f64(value)).collect()
}

fn bits(state: &State<f32>) -> Vec<u32> {
    state.slots.iter().chain([&state.var]).flatten().map(|x| x.to_bits()).collect()
}

/// A variable and three gradients for it.
fn trajectory(len: usize) -> impl Strategy<Value = (Vec<f64>, Vec<Vec<f64>>)> {
    let values = || prop::collection::vec(-2.0..2.0, len);
    (values(), prop::collection::vec(values(), 3))
}

/// A table and gradients for it: the row length, the table, and for each step the indices, with duplicates,
/// and their values.
type Table = (usize, Vec<f64>, Vec<(Vec<i64>, Vec<f64>)>);

fn table() -> impl Strategy<Value = Table> {
    (1..6usize, 1..9usize).prop_flat_map(|(row_len, rows)| {
        let step = prop::collection::vec(0..rows as i64, 0..12).prop_flat_map(move |indices| {
            let len = indices.len() * row_len;
            (Just(indices), prop::collection::vec(-2.0..2.0, len))
        });
        (Just(row_len), prop::collection::vec(-2.0..2.0, row_len * rows), prop::collection::vec(step, 3))
    })
}

/// Returns a dense gradient of `len` elements: `grads` in the given rows, and zeros elsewhere.
fn scatter<F: Float>(len: usize, row_len: usize, rows: &[usize], grads: &[F]) -> Vec<F> {
    let mut dense = vec![F::ZERO; len];
    for (&row, grad) in rows.iter().zip(grads.chunks(row_len)) {
        dense[row * row_len..][..row_len].copy_from_slice(grad);
    }
    dense
}

proptest! {
    /// Any assignee of any range computes the same bits. Updates that are partitioned by ranges rely on this.
    // INV-11
    #[test]
    fn ranges_are_bit_identical_to_the_complete_tensor(
        (var, grads) in trajectory(68),
        mut cuts in prop::collection::vec(0..=68usize, 0..5),
    ) {
        cuts.extend([0, 68]);
        cuts.sort_unstable();
        for rule in rules() {
            let row_len = if rule.unit() == Unit::Element { 1 } else { 4 };
            let mut whole = State::<f32>::new(&*rule, &var, row_len);
            let mut pieces = whole.clone();
            for (finished, grad) in grads.iter().enumerate() {
                let (at, grad) = (Step::after(finished as u64, 0.05), cast(grad));
                whole.update(&*rule, at, 0..68, &grad);
                for cut in cuts.windows(2) {
                    let at_row = |cut: usize| cut / row_len * row_len;
                    pieces.update(&*rule, at, at_row(cut[0])..at_row(cut[1]), &grad);
                }
            }
            prop_assert_eq!(bits(&whole), bits(&pieces), "{:?}", rule);
        }
    }

    /// The update by row is the dense rule on the rows that are present. The other rows stay, or get a gradient of 0.
    #[test]
    fn rows_give_the_same_bits_as_the_dense_rule((row_len, table, steps) in table()) {
        for rule in rules() {
            let mut by_row = State::<f32>::new(&*rule, &table, row_len);
            let mut dense = by_row.clone();
            for (finished, (indices, values)) in steps.iter().enumerate() {
                let at = Step::after(finished as u64, 0.05);
                let (rows, grads) = merge_rows(indices, &cast::<f32>(values), row_len).unwrap();
                by_row.update_rows(&*rule, at, &rows, &grads);
                let grad = scatter(table.len(), row_len, &rows, &grads);
                if rule.moves_absent_rows() {
                    dense.update(&*rule, at, 0..table.len(), &grad);
                } else {
                    for row in rows {
                        dense.update(&*rule, at, row * row_len..(row + 1) * row_len, &grad);
                    }
                }
            }
            prop_assert_eq!(bits(&by_row), bits(&dense), "{:?}", rule);
        }
    }

    /// A shard that gets only its own rows, possibly none, is bit-identical to that part of the table.
    // INV-11
    #[test]
    fn shards_give_the_same_bits_as_the_table((row_len, table, steps) in table(), cut in 0..9usize) {
        let cut = cut.min(table.len() / row_len);
        for rule in rules() {
            let mut whole = State::<f32>::new(&*rule, &table, row_len);
            let (low, high) = table.split_at(cut * row_len);
            let (mut low, mut high) = (State::<f32>::new(&*rule, low, row_len), State::<f32>::new(&*rule, high, row_len));
            for (finished, (indices, values)) in steps.iter().enumerate() {
                let at = Step::after(finished as u64, 0.05);
                let (rows, grads) = merge_rows(indices, &cast::<f32>(values), row_len).unwrap();
                whole.update_rows(&*rule, at, &rows, &grads);
                let at_cut = rows.partition_point(|&row| row < cut);
                let local: Vec<usize> = rows[at_cut..].iter().map(|row| row - cut).collect();
                low.update_rows(&*rule, at, &rows[..at_cut], &grads[..at_cut * row_len]);
                high.update_rows(&*rule, at, &local, &grads[at_cut * row_len..]);
            }
            low.var.append(&mut high.var);
            for (low, high) in low.slots.iter_mut().zip(&mut high.slots) {
                low.append(high);
            }
            prop_assert_eq!(bits(&whole), bits(&low), "{:?}", rule);
        }
    }

    /// Checks that updates in f32 equal updates in f64, within the precision of f32.
    #[test]
    fn f32_follows_f64((var, grads) in trajectory(16)) {
        // Numbers that f32 holds exactly, and gradients away from 0, where Adam's ratio jumps.
        let round = |values: &[f64]| -> Vec<f64> {
            values.iter().map(|x| ((x + 0.125f64.copysign(*x)) * 64.0).round() / 64.0).collect()
        };
        let var = round(&var);
        // A step of Lion is the sign of a sum, which may be almost 0.
        let all = rules().into_iter().chain(rules_of_variables());
        for rule in all.filter(|rule| !rule.name().starts_with("lion")) {
            let (mut single, mut double) = (State::<f32>::new(&*rule, &var, 4), State::<f64>::new(&*rule, &var, 4));
            for (finished, grad) in grads.iter().map(|grad| round(grad)).enumerate() {
                let at = Step::after(finished as u64, 0.05);
                single.update(&*rule, at, 0..16, &cast(&grad));
                double.update(&*rule, at, 0..16, &grad);
            }
            for (single, double) in single.var.iter().zip(&double.var) {
                let off = (f64::from(*single) - double).abs();
                prop_assert!(off <= 1e-4 * (1.0 + double.abs()), "{:?}: {} {}", rule, single, double);
            }
        }
    }

    /// Checks that merging loses no value, and sorts the rows.
    #[test]
    fn merged_rows_are_the_scattered_sums((row_len, table, steps) in table()) {
        for (indices, values) in steps {
            let (rows, sums) = merge_rows(&indices, &values, row_len).unwrap();
            prop_assert!(rows.is_sorted_by(|a, b| a < b));
            let mut dense = vec![0.0; table.len()];
            for (&index, value) in indices.iter().zip(values.chunks(row_len)) {
                dense[index as usize * row_len..][..row_len].iter_mut().zip(value).for_each(|(d, v)| *d += v);
            }
            prop_assert_eq!(scatter(table.len(), row_len, &rows, &sums), dense);
        }
    }
}
