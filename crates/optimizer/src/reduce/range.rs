//! A range of a variable's gradient on all replicas: what can be cut, reduced and transformed.

use crate::partition::BLOCK;
use crate::reduce::rows::RowRange;
use crate::reduce::split::Splittable;
use crate::transform::ResolvedTransforms;
use distribute_base::internal::Number;
use distribute_tensor::kernel::fold_scaled;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The gradients of a range of a variable on the replicas that have one, and their weights.
pub(crate) struct GradientRange<'a, F> {
    /// The number of the variable.
    pub(crate) variable: usize,
    pub(crate) weights: Arc<[F]>,
    pub(crate) summands: Summands<'a, F>,
    /// The variable's values, if they are read with the gradient; else empty.
    pub(crate) values: &'a [F],
}

/// The gradients that are added up, one for each replica that has one.
pub(crate) enum Summands<'a, F> {
    Dense(Vec<&'a [F]>),
    Rows(RowRange<'a, F>),
}

impl<F> GradientRange<'_, F> {
    /// Returns the number of elements that it covers. [`Splittable::len`] counts work, which is less for rows.
    pub(crate) fn elements(&self) -> usize {
        match &self.summands {
            Summands::Dense(of_replicas) => of_replicas.first().map_or(0, |gradient| gradient.len()),
            Summands::Rows(range) => range.elements(),
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
    fn cut(&mut self, len: usize) -> Self {
        let summands = match &mut self.summands {
            Summands::Dense(of_replicas) => {
                let cut = of_replicas.iter_mut().map(|g| g.split_off(..len).unwrap_or_default());
                Summands::Dense(cut.collect())
            }
            Summands::Rows(range) => Summands::Rows(range.cut(len)),
        };
        let mut cut = Self { variable: self.variable, weights: self.weights.clone(), summands, values: &[] };
        cut.values = self.values.split_off(..cut.elements()).unwrap_or_default();
        cut
    }
}

impl<F: Number> GradientRange<'_, F> {
    /// The reduced and transformed gradient of a block of a dense range. `values` are those of the block.
    pub(crate) fn block<'s>(
        &'s self,
        of_replicas: &'s [&'s [F]],
        resolved: &ResolvedTransforms,
        at: Range<usize>,
        values: &[F],
        scratch: &'s mut [F; BLOCK],
    ) -> &'s [F] {
        let stays = resolved.leaves(self.variable);
        match of_replicas {
            // Nothing to reduce.
            [only] if stays && self.weights[0] == F::of(1.) => &only[at],
            _ => {
                let block = &mut scratch[..at.len()];
                self.fold(of_replicas, at, block);
                if !stays {
                    resolved.apply(self.variable, block, values);
                }
                block
            }
        }
    }

    /// The weighted sum over replicas, in the order of replica ids.
    fn fold(&self, of_replicas: &[&[F]], at: Range<usize>, out: &mut [F]) {
        // A stack of slices would need a bound on the number of replicas.
        match of_replicas {
            [a] => fold_scaled(&[&a[at]], &self.weights, out),
            [a, b] => fold_scaled(&[&a[at.clone()], &b[at]], &self.weights, out),
            many => {
                let blocks: Vec<&[F]> = many.iter().map(|g| &g[at.clone()]).collect();
                fold_scaled(&blocks, &self.weights, out);
            }
        }
    }

    /// The reduced and transformed rows of a range of rows, counted from its first. `values` are those of the range.
    pub(crate) fn rows<'s>(
        &self,
        range: &'s RowRange<'_, F>,
        resolved: &ResolvedTransforms,
        values: &[F],
    ) -> (Vec<usize>, Cow<'s, [F]>) {
        let (rows, mut sums) = range.reduce(&self.weights);
        if !resolved.leaves(self.variable) {
            let len = range.row_len;
            for (row, gradient) in rows.iter().zip(sums.to_mut().chunks_exact_mut(len.max(1))) {
                // None where nothing reads them.
                let values = values.get(row * len..(row + 1) * len).unwrap_or_default();
                resolved.apply(self.variable, gradient, values);
            }
        }
        (rows, sums)
    }

    /// The reduced and transformed gradient as a vector: of rows with their numbers in the whole table.
    pub(crate) fn whole(&self, resolved: &ResolvedTransforms) -> (Option<Vec<usize>>, Vec<F>) {
        match &self.summands {
            Summands::Dense(of_replicas) => {
                let (mut scratch, mut all) = ([F::of(0.); BLOCK], Vec::with_capacity(self.elements()));
                for at in blocks(self.elements()) {
                    let values = self.values.get(at.clone()).unwrap_or_default();
                    all.extend_from_slice(self.block(of_replicas, resolved, at, values, &mut scratch));
                }
                (None, all)
            }
            Summands::Rows(range) => {
                let (rows, sums) = self.rows(range, resolved, self.values);
                (Some(rows.into_iter().map(|row| row + range.first()).collect()), sums.into_owned())
            }
        }
    }

    /// Returns the sum of squares of the reduced and transformed gradient for each block or row, so that further sums
    /// have the same order for any partition.
    pub(crate) fn squares(&self, resolved: &ResolvedTransforms) -> Vec<(usize, f64)> {
        let square = |part: &[F]| (self.variable, part.iter().map(|x| x.square()).sum());
        match &self.summands {
            Summands::Dense(of_replicas) => {
                let mut scratch = [F::of(0.); BLOCK];
                let blocks = blocks(self.elements());
                let of = |at: Range<usize>| {
                    let values = self.values.get(at.clone()).unwrap_or_default();
                    square(self.block(of_replicas, resolved, at, values, &mut scratch))
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

/// Returns the blocks of this number of elements.
pub(crate) fn blocks(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements).step_by(BLOCK).map(move |start| start..elements.min(start + BLOCK))
}
