//! Softmax cross-entropy. The loss and the gradient are computed by one fused operation each.

use crate::exp::Exp;
use crate::lanes;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{host_value, with_elements};

/// Computes the mean cross-entropy of logits of shape `[n, classes]` on the CPU, with its gradient. The label's class
/// has the probability 1 − `smoothing`. In addition, `smoothing` is divided equally among all classes.
pub(super) fn cross_entropy<T: Exp>(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let labels = read(labels, rows, classes)?;
    let logits = logits.contiguous()?;
    let operation =
        with_elements(&logits, |logits| CrossEntropy::<T>::new(logits, classes, labels, smoothing))?;
    logits.apply_op1(operation)
}

/// Returns the class of each row, or `None` for a row without a label. As in candle, the largest number of the labels'
/// dtype marks a row without a label. Returns an error if `labels` is not an integer vector with `rows` elements, or if
/// a label is not a class.
pub(super) fn read(labels: &Tensor, rows: usize, classes: usize) -> Result<Vec<Option<usize>>> {
    if classes == 0 {
        bail!("cross-entropy: logits {:?} have no class", [rows, classes]);
    }
    if labels.dims() != [rows] {
        bail!("cross-entropy: logits {:?} need labels [{rows}], not {:?}", [rows, classes], labels.dims());
    }
    let labels = host_value(labels)?;
    let labels: Vec<i64> = match labels.dtype() {
        DType::U8 => labels.to_vec1::<u8>()?.into_iter().map(|x| none_if(x == u8::MAX, x.into())).collect(),
        DType::U32 => {
            labels.to_vec1::<u32>()?.into_iter().map(|x| none_if(x == u32::MAX, x.into())).collect()
        }
        DType::I64 => labels.to_vec1()?,
        dtype => bail!("cross-entropy: labels must be u8, u32 or i64, not {dtype:?}"),
    };
    let class = |(row, label): (usize, &i64)| match usize::try_from(*label) {
        _ if *label == i64::MAX => Ok(None),
        Ok(class) if class < classes => Ok(Some(class)),
        _ => bail!("cross-entropy: row {row} has the label {label}, which is not one of {classes} classes"),
    };
    labels.iter().enumerate().map(class).collect()
}

fn none_if(none: bool, label: i64) -> i64 {
    if none { i64::MAX } else { label }
}

/// The operation, with its result and the values that the gradient needs in addition to the logits.
struct CrossEntropy<T> {
    labels: Vec<Option<usize>>,
    /// The largest logit m of each row, and the sum of exp(x − m) over all logits x in the row.
    softmax: Vec<(T, T)>,
    mean: f64,
    smoothing: f64,
}

/// The number of logits that are processed at once, in complete rows and at least one. This many logits stay in the L1
/// cache, and several narrow rows share a register.
const BLOCK: usize = 2048;

impl<T: Exp> CrossEntropy<T> {
    fn new(logits: &[T], classes: usize, labels: Vec<Option<usize>>, smoothing: f64) -> Self {
        let mut softmax = Vec::with_capacity(labels.len());
        let mut loss = 0.;
        let rows = (BLOCK / classes).max(1);
        let mut buffer = Vec::with_capacity(rows.min(labels.len()) * classes);
        for (block, labels) in logits.chunks(rows * classes).zip(labels.chunks(rows)) {
            let start = softmax.len();
            buffer.clear();
            for row in block.chunks_exact(classes) {
                let max = lanes::max(row);
                buffer.extend(row.iter().map(|x| *x - max));
                softmax.push((max, T::of(0.)));
            }
            // Read the label's distance before it is replaced by its exponential.
            for (distances, label) in buffer.chunks_exact(classes).zip(labels) {
                let Some(label) = *label else { continue };
                let distance = distances[label].to_f64();
                loss -= if smoothing == 0. {
                    distance
                } else {
                    let mean = lanes::sum(distances, distances, |x, _| x).to_f64() / classes as f64;
                    (1. - smoothing) * distance + smoothing * mean
                };
            }
            buffer.iter_mut().for_each(|x| *x = x.exp_of_negative());
            let sums = buffer.chunks_exact(classes).zip(&mut softmax[start..]).zip(labels);
            for ((row, (_, sum)), label) in sums {
                *sum = lanes::sum(row, row, |x, _| x);
                loss += label.map_or(0., |_| sum.to_f64().ln());
            }
        }
        Self { mean: loss / labels.len() as f64, labels, softmax, smoothing }
    }

    /// Returns the gradient: the difference between the softmax and the smoothed label's probabilities, multiplied by
    /// `upstream` and divided by the number of rows. It is 0 for rows without a label.
    fn gradient(&self, logits: &[T], upstream: f64) -> Vec<T> {
        let share = upstream / self.labels.len() as f64;
        let classes = logits.len() / self.labels.len();
        let rows = (BLOCK / classes).max(1);
        let mut gradient = Vec::with_capacity(logits.len());
        let each = self.labels.chunks(rows).zip(self.softmax.chunks(rows));
        for (block, (labels, softmax)) in logits.chunks(rows * classes).zip(each) {
            let start = gradient.len();
            for (row, (max, _)) in block.chunks_exact(classes).zip(softmax) {
                gradient.extend(row.iter().map(|x| *x - *max));
            }
            gradient[start..].iter_mut().for_each(|x| *x = x.exp_of_negative());
            for ((row, label), (_, sum)) in
                gradient[start..].chunks_exact_mut(classes).zip(labels).zip(softmax)
            {
                let Some(label) = label else {
                    row.fill(T::of(0.));
                    continue;
                };
                let scale = T::of(share / sum.to_f64());
                row.iter_mut().for_each(|x| *x *= scale);
                row[*label] -= T::of(share * (1. - self.smoothing));
                if self.smoothing > 0. {
                    let each = T::of(share * self.smoothing / classes as f64);
                    row.iter_mut().for_each(|x| *x -= each);
                }
            }
        }
        gradient
    }
}

impl<T: Exp> CustomOp1 for CrossEntropy<T> {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((T::to_cpu_storage_owned(vec![T::of(self.mean)]), Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let upstream = upstream.to_scalar::<T>()?.to_f64();
        let gradient = with_elements(logits, |logits| self.gradient(logits, upstream))?;
        Tensor::from_vec(gradient, logits.shape(), logits.device()).map(Some)
    }
}
