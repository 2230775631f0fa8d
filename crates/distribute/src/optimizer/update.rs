//! The update of one stretch of one variable.

use super::owners::Cut;
use super::slots::MOST_SLOTS;
use super::stretch::{BLOCK, Stretch, Summands, blocks};
use super::transform::Settled;
use crate::number::Number;
use distribute_optim::{Rule, RuleExt, Step, UpdateError};

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

/// Reduces and transforms the gradient and applies the rule: block by block, or row by row.
pub(super) fn update<F: Number>(
    piece: Piece<'_, F>,
    rule: &dyn Rule,
    step: Step,
    settled: &Settled,
) -> Result<(), UpdateError> {
    let Piece { values, mut slots, stretch } = piece;
    let of_replicas = match &stretch.summands {
        Summands::Dense(of_replicas) => of_replicas,
        Summands::Rows(range) => {
            let (rows, sums) = stretch.rows(range, settled, values);
            return rule.update_rows(step, values, range.row_len, &rows, &sums, &mut slots);
        }
    };
    let mut scratch = [F::of(0.); BLOCK];
    let kept = slots.len().min(MOST_SLOTS);
    for at in blocks(values.len()) {
        let gradient = stretch.block(of_replicas, settled, at.clone(), &values[at.clone()], &mut scratch);
        // `MOST_SLOTS` at most; an array spares an allocation for each block.
        let mut of_block: [&mut [F]; MOST_SLOTS] = Default::default();
        for (block, slot) in of_block.iter_mut().zip(&mut slots) {
            *block = &mut slot[at.clone()];
        }
        rule.update(step, &mut values[at], gradient, &mut of_block[..kept])?;
    }
    Ok(())
}
