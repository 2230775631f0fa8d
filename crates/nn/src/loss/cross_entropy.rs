//! Softmax cross-entropy: the loss in one pass over the logits, the gradient in another.

use crate::exp::Exp;
use crate::lanes;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{known_on_host, with_elements};

/// Computes the loss of logits `[n, classes]` on the CPU, with its gradient.
pub(super) fn cross_entropy<T: Exp>(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let labels = read(labels, rows, classes)?;
    let logits = logits.contiguous()?;
    let operation = with_elements(&logits, |logits| CrossEntropy::<T>::new(logits, classes, labels))?;
    logits.apply_op1(operation)
}

/// Returns the class of each row; `None` for a row without label, whose number is the largest of its type, as
/// in candle.
pub(super) fn read(labels: &Tensor, rows: usize, classes: usize) -> Result<Vec<Option<usize>>> {
    if classes == 0 {
        bail!("cross-entropy: logits {:?} are of no class", [rows, classes]);
    }
    if labels.dims() != [rows] {
        bail!("cross-entropy: logits {:?} need labels [{rows}], not {:?}", [rows, classes], labels.dims());
    }
    let labels = known_on_host(labels)?;
    let labels: Vec<i64> = match labels.dtype() {
        DType::U8 => labels.to_vec1::<u8>()?.into_iter().map(|x| none_if(x == u8::MAX, x.into())).collect(),
        DType::U32 => {
            labels.to_vec1::<u32>()?.into_iter().map(|x| none_if(x == u32::MAX, x.into())).collect()
        }
        DType::I64 => labels.to_vec1()?,
        dtype => bail!("cross-entropy: labels must be of u8, u32 or i64, not of {dtype:?}"),
    };
    let class = |(row, label): (usize, &i64)| match usize::try_from(*label) {
        _ if *label == i64::MAX => Ok(None),
        Ok(class) if class < classes => Ok(Some(class)),
        _ => bail!("cross-entropy: row {row} has the label {label}, which is none of {classes} classes"),
    };
    labels.iter().enumerate().map(class).collect()
}

fn none_if(none: bool, label: i64) -> i64 {
    if none { i64::MAX } else { label }
}

/// The operation, with its result and the values that the gradient needs in addition to the logits.
struct CrossEntropy<T> {
    labels: Vec<Option<usize>>,
    /// The largest logit of each row, and the sum of the exponentials of the distances from it.
    softmax: Vec<(T, T)>,
    mean: f64,
}

/// The number of logits processed at a time (at least one row): they stay in the L1 cache, and narrow rows
/// share registers.
const BLOCK: usize = 2048;

impl<T: Exp> CrossEntropy<T> {
    fn new(logits: &[T], classes: usize, labels: Vec<Option<usize>>) -> Self {
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
                loss -= label.map_or(0., |label| distances[label].to_f64());
            }
            buffer.iter_mut().for_each(|x| *x = x.exp_of_negative());
            let sums = buffer.chunks_exact(classes).zip(&mut softmax[start..]).zip(labels);
            for ((row, (_, sum)), label) in sums {
                *sum = lanes::sum(row, row, |x, _| x);
                loss += label.map_or(0., |_| sum.to_f64().ln());
            }
        }
        Self { mean: loss / labels.len() as f64, labels, softmax }
    }

    /// Returns softmax, minus 1 for the label's class, times `upstream / n`.
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
                row[*label] -= T::of(share);
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
