//! The update of one stretch of one variable.

use super::groups::Rules;
use super::owners::Cut;
use super::row_range::RowRange;
use super::slots::MOST_SLOTS;
use super::stretch::{BLOCK, Stretch, Summands, blocks};
use super::transform::Settled;
use crate::number::Number;
use distribute_optim::{Rule, RuleExt, Step, UpdateError};
use distribute_tensor::kernel::fold_scaled;
use std::ops::Range;

/// A stretch of a variable, what is kept beside it, and its gradients.
pub(super) struct Piece<'a, F> {
    values: &'a mut [F],
    slots: Vec<&'a mut [F]>,
    stretch: Stretch<'a, F>,
}

impl<'a, F> Piece<'a, F> {
    /// A whole variable.
    pub(super) fn new(values: &'a mut [F], slots: &'a mut [Vec<F>], stretch: Stretch<'a, F>) -> Self {
        Self { values, slots: slots.iter_mut().map(Vec::as_mut_slice).collect(), stretch }
    }
}

impl<F> Cut for Piece<'_, F> {
    fn len(&self) -> usize {
        self.stretch.len()
    }
    fn cut(&mut self, len: usize) -> Self {
        let stretch = self.stretch.cut(len);
        let len = stretch.elements();
        Self {
            values: self.values.split_off_mut(..len).unwrap_or_default(),
            slots: self.slots.iter_mut().map(|slot| slot.split_off_mut(..len).unwrap_or_default()).collect(),
            stretch,
        }
    }
}

/// Reduces and transforms the gradient and applies the rule, block by block.
pub(super) fn update<F: Number>(
    piece: Piece<'_, F>,
    rules: &Rules<'_>,
    settled: &Settled,
) -> Result<(), UpdateError> {
    let Piece { values, mut slots, stretch } = piece;
    let (rule, step) = rules.of(stretch.variable);
    let of_replicas = match &stretch.summands {
        Summands::Dense(of_replicas) => of_replicas,
        Summands::Rows(range) => {
            return update_rows(range, &stretch, values, &mut slots, rule, step, settled);
        }
    };
    let mut scratch = [F::of(0.); BLOCK];
    let kept = slots.len().min(MOST_SLOTS);
    for at in blocks(values.len()) {
        let gradient = stretch.block(of_replicas, settled, at.clone(), &values[at.clone()], &mut scratch);
        let mut of_block = cut_all(&mut slots, &at);
        rule.update(step, &mut values[at], gradient, &mut of_block[..kept])?;
    }
    Ok(())
}

/// The same of rows: so many at a time that their sums stay in the cache until the rule has used them.
fn update_rows<F: Number>(
    range: &RowRange<'_, F>,
    stretch: &Stretch<'_, F>,
    values: &mut [F],
    slots: &mut [&mut [F]],
    rule: &dyn Rule,
    step: Step,
    settled: &Settled,
) -> Result<(), UpdateError> {
    let (row_len, stays) = (range.row_len, settled.leaves(stretch.variable));
    if let (true, Some((rows, sums))) = (stays, range.only(&stretch.weights)) {
        return rule.update_rows(step, values, row_len, &rows, sums, slots);
    }
    let (kept, most) = (slots.len().min(MOST_SLOTS), (BLOCK / row_len.max(1)).max(1));
    let (mut rows, mut sums) = (Vec::with_capacity(most), vec![F::of(0.); most * row_len]);
    // A block also has the rows without a gradient, up to the next one's first: some rules move them, too.
    let mut start = 0;
    let mut apply = |values: &mut [F], start: usize, end: usize, rows: &[usize], sums: &[F]| {
        let at = start * row_len..end * row_len;
        let mut of_block = cut_all(slots, &at);
        rule.update_rows(step, &mut values[at], row_len, rows, sums, &mut of_block[..kept])
    };
    range.each(|row, inputs| {
        if rows.len() == most {
            apply(values, start, row, &rows, &sums)?;
            start = row;
            rows.clear();
        }
        let sum = &mut sums[rows.len() * row_len..][..row_len];
        fold_scaled(inputs, &stretch.weights, sum);
        if !stays {
            settled.apply(stretch.variable, sum, &values[row * row_len..][..row_len]);
        }
        rows.push(row - start);
        Ok::<_, UpdateError>(())
    })?;
    apply(values, start, range.height(), &rows, &sums[..rows.len() * row_len])
}

/// The same range of each. `MOST_SLOTS` at most; an array spares an allocation for each block.
fn cut_all<'s, F>(slots: &'s mut [&mut [F]], at: &Range<usize>) -> [&'s mut [F]; MOST_SLOTS] {
    let mut of_block: [&mut [F]; MOST_SLOTS] = Default::default();
    for (block, slot) in of_block.iter_mut().zip(slots) {
        *block = &mut slot[at.clone()];
    }
    of_block
}
