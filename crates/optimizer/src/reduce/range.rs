//! Ranges of a variable's gradient on all replicas, which can be split, reduced and transformed.

use crate::reduce::rows::RowRange;
use crate::reduce::split::Splittable;
use crate::transform::ResolvedTransforms;
use distribute_base::internal::Number;
use distribute_core::strategy::Wire;
use distribute_decisions::internal::BLOCK;
use distribute_tensor::kernel::fold_scaled;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A range of a variable, with the gradients and weights of the replicas that have a gradient.
pub(crate) struct GradientRange<'a, F> {
    /// The index of the variable in the optimizer.
    pub(crate) variable: usize,
    pub(crate) weights: Arc<[F]>,
    pub(crate) summands: Summands<'a, F>,
    /// The rounding of dense gradients.
    pub(crate) rounding: Rounding,
    /// The variable's values in this range; empty if no transform needs them.
    pub(crate) values: &'a [F],
}

/// The rounding of the dense gradients that are added up, and of their sum. It makes the sum independent of which
/// gradients other workers have sent. Rounding a number again does not change it.
// INV-7
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rounding {
    /// The type in which each gradient is sent, or would be sent to another worker.
    pub(crate) summands: Wire,
    /// The type in which the sum is sent, or would be sent to another worker.
    pub(crate) sum: Wire,
}

/// The gradients that are added up: one for each replica that has a gradient.
pub(crate) enum Summands<'a, F> {
    Dense(Vec<&'a [F]>),
    Rows(RowRange<'a, F>),
}

impl<F> GradientRange<'_, F> {
    /// Returns the number of elements in the range. [`Splittable::len`] may be smaller for gradients by row, because it
    /// estimates the work.
    pub(crate) fn elements(&self) -> usize {
        match &self.summands {
            Summands::Dense(replicas) => replicas.first().map_or(0, |gradient| gradient.len()),
            Summands::Rows(range) => range.elements(),
        }
    }

    /// Returns the number of elements of a row, for gradients by row.
    pub(crate) fn row_len(&self) -> Option<usize> {
        match &self.summands {
            Summands::Dense(_) => None,
            Summands::Rows(range) => Some(range.row_len),
        }
    }
}

impl<F> Splittable for GradientRange<'_, F> {
    fn len(&self) -> usize {
        match &self.summands {
            Summands::Dense(_) => self.elements(),
            Summands::Rows(range) => range.work(),
        }
    }
    fn split_front(&mut self, len: usize) -> Self {
        let summands = match &mut self.summands {
            Summands::Dense(replicas) => {
                let cut = replicas.iter_mut().map(|g| g.split_off(..len).unwrap_or_default());
                Summands::Dense(cut.collect())
            }
            Summands::Rows(range) => Summands::Rows(range.split_front(len)),
        };
        let mut cut = Self {
            variable: self.variable,
            weights: self.weights.clone(),
            summands,
            rounding: self.rounding,
            values: &[],
        };
        cut.values = self.values.split_off(..cut.elements()).unwrap_or_default();
        cut
    }
}

impl<F: Number> GradientRange<'_, F> {
    /// Returns the reduced and transformed gradient of a block of a dense range. `values` are the variable's values in
    /// that block. The result is stored in `scratch`, unless it is a gradient that needs no change.
    pub(crate) fn block<'s>(
        &'s self,
        replicas: &'s [&'s [F]],
        resolved: &ResolvedTransforms,
        at: Range<usize>,
        values: &[F],
        scratch: &'s mut [F; BLOCK],
    ) -> &'s [F] {
        match self.unchanged(replicas, resolved) {
            Some(only) => &only[at],
            None => {
                let block = &mut scratch[..at.len()];
                self.fold(replicas, at, block);
                if !resolved.is_identity(self.variable) {
                    resolved.apply(self.variable, block, values);
                }
                block
            }
        }
    }

    /// Returns the gradient of the only replica if it is neither weighted, rounded nor transformed.
    fn unchanged<'s>(&self, replicas: &[&'s [F]], resolved: &ResolvedTransforms) -> Option<&'s [F]> {
        match replicas {
            [only]
                if resolved.is_identity(self.variable)
                    && self.weights[0] == F::of(1.)
                    && self.rounding == Rounding::default() =>
            {
                Some(only)
            }
            _ => None,
        }
    }

    /// Returns the reduced and transformed gradient of the range. `values` are the variable's values in that range.
    /// Rows without a gradient are zeros. A dense gradient that needs no change is not copied.
    pub(crate) fn complete(&self, resolved: &ResolvedTransforms, values: &[F]) -> Cow<'_, [F]> {
        match &self.summands {
            Summands::Dense(replicas) => {
                if let Some(only) = self.unchanged(replicas, resolved) {
                    return Cow::Borrowed(only);
                }
                let (mut all, mut scratch) = (Vec::with_capacity(values.len()), [F::of(0.); BLOCK]);
                for at in blocks(values.len()) {
                    let of_block = &values[at.clone()];
                    all.extend_from_slice(self.block(replicas, resolved, at, of_block, &mut scratch));
                }
                all.into()
            }
            Summands::Rows(range) => {
                let (mut all, row_len) = (vec![F::of(0.); values.len()], range.row_len.max(1));
                let (rows, sums) = self.rows(range, resolved, values);
                for (row, sum) in rows.iter().zip(sums.chunks_exact(row_len)) {
                    all[row * row_len..][..row_len].copy_from_slice(sum);
                }
                all.into()
            }
        }
    }

    /// Writes the weighted sum over the replicas to `out`. The summands are added in the order of a balanced binary
    /// tree over the replicas; see [`fold_scaled`]. The summands and the sum are rounded as `rounding` says.
    fn fold(&self, replicas: &[&[F]], at: Range<usize>, out: &mut [F]) {
        if self.rounding != Rounding::default() {
            let mut rounded: Vec<F> = replicas.iter().flat_map(|g| &g[at.clone()]).copied().collect();
            F::round(self.rounding.summands, &mut rounded);
            let blocks: Vec<&[F]> = rounded.chunks_exact(at.len().max(1)).collect();
            fold_scaled(&blocks, &self.weights, out);
            return F::round(self.rounding.sum, out);
        }
        // A list on the stack would need a bound on the number of replicas, so frequent numbers have their own arms.
        match replicas {
            [a] => fold_scaled(&[&a[at]], &self.weights, out),
            [a, b] => fold_scaled(&[&a[at.clone()], &b[at]], &self.weights, out),
            many => {
                let blocks: Vec<&[F]> = many.iter().map(|g| &g[at.clone()]).collect();
                fold_scaled(&blocks, &self.weights, out);
            }
        }
    }

    /// Returns the reduced and transformed rows of a range, with their indices relative to the start of the range.
    /// `values` are the variable's values in that range.
    pub(crate) fn rows<'s>(
        &self,
        range: &'s RowRange<'_, F>,
        resolved: &ResolvedTransforms,
        values: &[F],
    ) -> (Vec<usize>, Cow<'s, [F]>) {
        let (rows, mut sums) = range.reduce(&self.weights);
        if !resolved.is_identity(self.variable) {
            let len = range.row_len;
            for (row, gradient) in rows.iter().zip(sums.to_mut().chunks_exact_mut(len.max(1))) {
                // Empty if nothing reads them.
                let values = values.get(row * len..(row + 1) * len).unwrap_or_default();
                resolved.apply(self.variable, gradient, values);
            }
        }
        (rows, sums)
    }

    /// Returns the reduced and transformed gradient as a vector. For rows, also returns their indices in the complete
    /// table.
    pub(crate) fn to_vec(&self, resolved: &ResolvedTransforms) -> (Option<Vec<usize>>, Vec<F>) {
        match &self.summands {
            Summands::Dense(replicas) => {
                let (mut scratch, mut all) = ([F::of(0.); BLOCK], Vec::with_capacity(self.elements()));
                for at in blocks(self.elements()) {
                    let values = self.values.get(at.clone()).unwrap_or_default();
                    all.extend_from_slice(self.block(replicas, resolved, at, values, &mut scratch));
                }
                (None, all)
            }
            Summands::Rows(range) => {
                let (rows, sums) = self.rows(range, resolved, self.values);
                (Some(rows.into_iter().map(|row| row + range.first()).collect()), sums.into_owned())
            }
        }
    }

    /// Returns the sum of squares of the reduced and transformed gradient for each block or row, with the index of the
    /// variable. These sums do not depend on the partition, so adding them up in order always gives the same result.
    pub(crate) fn squares(&self, resolved: &ResolvedTransforms) -> Vec<(usize, f64)> {
        let square = |part: &[F]| (self.variable, part.iter().map(|x| x.square()).sum());
        match &self.summands {
            Summands::Dense(replicas) => {
                let mut scratch = [F::of(0.); BLOCK];
                let blocks = blocks(self.elements());
                let of = |at: Range<usize>| {
                    let values = self.values.get(at.clone()).unwrap_or_default();
                    square(self.block(replicas, resolved, at, values, &mut scratch))
                };
                blocks.map(of).collect()
            }
            Summands::Rows(range) => {
                let (_, sums) = self.rows(range, resolved, self.values);
                sums.chunks_exact(range.row_len.max(1)).map(square).collect()
            }
        }
    }
}

/// Returns the ranges of the blocks into which `elements` elements are divided.
pub(crate) fn blocks(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements).step_by(BLOCK).map(move |start| start..elements.min(start + BLOCK))
}
