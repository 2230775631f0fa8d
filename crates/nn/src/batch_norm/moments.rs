//! The moments of each channel, and their merging over several per-replica batches.

use candle_core::{DType, Result, Storage, Tensor, WithDType, bail};
use distribute_base::internal::operand;

/// The elements of a tensor of shape `[rows, channels, ...]`. A plane contains the elements of one row and one channel.
#[derive(Clone, Copy)]
pub(super) struct Planes<'a, T> {
    pub(super) elements: &'a [T],
    pub(super) channels: usize,
    plane: usize,
}

impl<'a, T: WithDType> Planes<'a, T> {
    /// Creates the planes of a tensor with the given elements and at least two `dims`.
    pub(super) fn new(elements: &'a [T], dims: &[usize]) -> Self {
        Self { elements, channels: dims[1], plane: dims[2..].iter().product() }
    }

    /// Returns the planes in order, each with the index of its channel.
    pub(super) fn iter(self) -> impl Iterator<Item = (usize, &'a [T])> {
        let channels = (0..self.channels).cycle();
        channels.zip(self.elements.chunks(self.plane.max(1)))
    }

    /// Returns the number of elements in each channel.
    fn count(self) -> usize {
        self.elements.len() / self.channels.max(1)
    }
}

/// The number of elements per channel, and each channel's mean and sum of squared deviations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: Vec<f64>,
    /// The sum of squared deviations from the mean, for each channel.
    pub(super) deviation: Vec<f64>,
}

impl Moments {
    /// Computes the moments in two passes, so that no precision is lost if the mean is far from 0. Without elements,
    /// the moments are zeros.
    pub(super) fn of<T: WithDType>(planes: Planes<'_, T>) -> Self {
        let count = planes.count() as f64;
        let mut mean = vec![0.; planes.channels];
        for (channel, plane) in planes.iter() {
            mean[channel] += sum(plane, |x| x);
        }
        mean.iter_mut().for_each(|mean| *mean /= count.max(1.));
        let mut deviation = vec![0.; planes.channels];
        for (channel, plane) in planes.iter() {
            let mean = mean[channel];
            deviation[channel] += sum(plane, |x| (x - mean) * (x - mean));
        }
        Self { count, mean, deviation }
    }

    /// Computes the moments of a tensor, which must be empty, or else a contiguous CPU tensor of f32 or f64.
    pub(super) fn of_tensor(x: &Tensor) -> Result<Self> {
        let nothing = || vec![0.; x.dims()[1]];
        match x.dtype() {
            _ if x.elem_count() == 0 => Ok(Self { count: 0., mean: nothing(), deviation: nothing() }),
            DType::F32 => with_planes::<f32, _>(x, Self::of),
            _ => with_planes::<f64, _>(x, Self::of),
        }
    }

    pub(super) fn into_row(self) -> Vec<f64> {
        [vec![self.count], self.mean, self.deviation].concat()
    }

    fn from_row(row: &[f64]) -> Self {
        let (mean, deviation) = row[1..].split_at(row.len() / 2);
        Self { count: row[0], mean: mean.to_vec(), deviation: deviation.to_vec() }
    }

    /// Merges the moments of all replicas in the order of a balanced binary tree. Each row contains the moments of one
    /// replica. Returns `None` if there are no rows.
    pub(super) fn merge_rows(rows: &[Vec<f64>]) -> Option<Self> {
        match rows {
            [] => None,
            [row] => Some(Self::from_row(row)),
            rows => {
                let (left, right) = rows.split_at(rows.len().next_power_of_two() / 2);
                Some(Self::merge_rows(left)?.merge(&Self::merge_rows(right)?))
            }
        }
    }

    /// Merges the moments of two batches with the formula of Chan, Golub and LeVeque, which does not subtract sums of
    /// squares.
    fn merge(mut self, other: &Self) -> Self {
        let count = self.count + other.count;
        if count == 0. {
            return self;
        }
        let share = other.count / count;
        for (i, (mean, deviation)) in self.mean.iter_mut().zip(&mut self.deviation).enumerate() {
            let between = other.mean[i] - *mean;
            *mean += between * share;
            *deviation += other.deviation[i] + between * between * self.count * share;
        }
        Self { count, ..self }
    }

    /// Returns the values towards which the running statistics move: the mean, if the mean is removed, and the unbiased
    /// variance.
    ///
    /// A value is `None` if there are too few elements to compute it.
    pub(super) fn running(&self, remove_mean: bool) -> [Option<Vec<f64>>; 2] {
        let mean = (remove_mean && self.count > 0.).then(|| self.mean.clone());
        let unbiased = self.count / (self.count - 1.);
        let variance =
            || self.variance(remove_mean).into_iter().map(|variance| variance * unbiased).collect();
        [mean, (self.count > 1.).then(variance)]
    }

    /// Returns the mean squared deviation of each channel from the mean, or from 0 if the mean is not removed.
    pub(super) fn variance(&self, remove_mean: bool) -> Vec<f64> {
        let moments = self.mean.iter().zip(&self.deviation);
        let variance = moments.map(|(mean, deviation)| {
            let around = if remove_mean { 0. } else { mean * mean };
            deviation / self.count.max(1.) + around
        });
        variance.collect()
    }
}

/// Sums `term` over all elements, in four partial sums that the processor computes in parallel.
pub(super) fn sum<T: WithDType>(elements: &[T], term: impl Fn(f64) -> f64) -> f64 {
    let mut parts = [0.; 4];
    let mut chunks = elements.chunks_exact(4);
    for chunk in chunks.by_ref() {
        for (part, x) in parts.iter_mut().zip(chunk) {
            *part += term(x.to_f64());
        }
    }
    let rest: f64 = chunks.remainder().iter().map(|x| term(x.to_f64())).sum();
    (parts[0] + parts[1]) + (parts[2] + parts[3]) + rest
}

/// Calls `look` with the planes of a contiguous CPU tensor. Returns the result of `look`.
pub(super) fn with_planes<T: WithDType, R>(
    tensor: &Tensor,
    look: impl FnOnce(Planes<'_, T>) -> R,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(look(Planes::new(operand(storage, layout)?, layout.dims()))),
        _ => bail!("batch-norm over replicas is for CPU tensors in training"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Moments {
        Moments::of(Planes::new(values, &[values.len(), 1]))
    }

    // INV-9
    #[test]
    fn pieces_merge_to_the_whole_and_empty_ones_change_nothing() {
        let values: Vec<f64> = (0..23).map(|i| 1e6 + f64::from(i * i % 7)).collect();
        let whole = of(&values);
        for cuts in [vec![0, 23], vec![0, 5, 5, 9, 23], vec![0, 0, 1, 2, 3, 23]] {
            let rows: Vec<_> = cuts.windows(2).map(|c| of(&values[c[0]..c[1]]).into_row()).collect();
            let merged = Moments::merge_rows(&rows).unwrap();
            assert_eq!(merged.count, 23.);
            assert!((merged.mean[0] - whole.mean[0]).abs() < 1e-9);
            assert!((merged.deviation[0] / whole.deviation[0] - 1.).abs() < 1e-9, "{merged:?} {whole:?}");
        }
        assert_eq!(Moments::merge_rows(&[of(&[]).into_row(), of(&[]).into_row()]).unwrap().count, 0.);
    }

    #[test]
    fn planes_go_to_their_channels() {
        // Two rows of two channels of three elements.
        let elements = [1., 2., 3., 10., 20., 30., 4., 5., 6., 40., 50., 60.];
        let moments = Moments::of(Planes::new(&elements, &[2, 2, 3]));
        assert_eq!((moments.count, moments.mean.as_slice()), (6., &[3.5, 35.][..]));
        assert_eq!(moments.deviation, [17.5, 1750.]);
        assert_eq!(moments.variance(false), [91. / 6., 9100. / 6.]);
    }
}
