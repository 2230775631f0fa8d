//! Softmax cross-entropy: the loss in one pass over the logits, and the gradient in another.

use crate::known::Known;
use crate::nn::exp::Exp;
use crate::nn::lanes;
use crate::number::with_elements;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

/// The loss of logits `[n, classes]` that lie on the CPU, with the gradient behind it.
pub(super) fn cross_entropy<T: Exp>(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let labels = read(labels, rows, classes)?;
    let logits = logits.contiguous()?;
    let operation = with_elements(&logits, |logits| CrossEntropy::<T>::new(logits, classes, labels))?;
    logits.apply_op1(operation)
}

/// The same by operations of candle's, on any device.
pub(super) fn composed(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    // Before anything is computed on a device.
    let labels = Chosen::new(&read(labels, rows, classes)?, logits)?;
    let log_probabilities = candle_nn::ops::log_softmax(&logits.detach(), 1)?;
    let result = labels.negative_mean(&log_probabilities)?;
    let backward = move |_: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
        // Of each row its probabilities, and one less of the class that its label chooses.
        let mut gradient = labels.less_one(&log_probabilities.exp()?)?;
        if let Some(has_label) = &labels.has_label {
            gradient = only(has_label, &gradient)?;
        }
        Ok([Some(gradient.broadcast_mul(&(upstream.detach() * (1. / rows as f64))?)?)])
    };
    logits.apply_op1(Known::new("cross-entropy", result, backward))
}

/// The mean over all rows of what their labels choose, times -1, by operations of candle's on any device. Labels are read here: one that is
/// no class would end all work on a GPU.
pub(super) fn negative_mean(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (rows, classes) = log_probabilities.dims2()?;
    Chosen::new(&read(labels, rows, classes)?, log_probabilities)?.negative_mean(log_probabilities)
}

/// The rows that have a label, and zeros in place of the others, whatever is in these.
fn only(has_label: &Tensor, rows: &Tensor) -> Result<Tensor> {
    has_label.broadcast_as(rows.shape())?.contiguous()?.where_cond(rows, &rows.zeros_like()?)
}

/// What labels choose of each row, in the memory of a device.
struct Chosen {
    /// The class of each row, of those without a label the first.
    classes: Tensor,
    /// 1 for each row, and 0 for those without a label, if there are such.
    has_label: Option<Tensor>,
}

impl Chosen {
    /// In the memory that `numbers` are in.
    fn new(labels: &[Option<usize>], numbers: &Tensor) -> Result<Self> {
        let (device, rows) = (numbers.device(), labels.len());
        let classes = labels.iter().map(|label| label.map_or(0, |label| label as u32)).collect();
        let classes = Tensor::from_vec(classes, (rows, 1), device)?;
        let has_label = || {
            let has_label = labels.iter().map(|label| u8::from(label.is_some())).collect();
            Tensor::from_vec(has_label, (rows, 1), device)
        };
        Ok(Self { classes, has_label: labels.contains(&None).then(has_label).transpose()? })
    }

    fn negative_mean(&self, log_probabilities: &Tensor) -> Result<Tensor> {
        let mut chosen = log_probabilities.contiguous()?.gather(&self.classes, 1)?;
        if let Some(has_label) = &self.has_label {
            chosen = only(has_label, &chosen)?;
        }
        chosen.sum_all()? * (-1. / log_probabilities.dim(0)? as f64)
    }

    fn less_one(&self, numbers: &Tensor) -> Result<Tensor> {
        let minus_one =
            Tensor::full(-1f32, self.classes.shape(), numbers.device())?.to_dtype(numbers.dtype())?;
        numbers.scatter_add(&self.classes, &minus_one, 1)
    }
}

/// The class of each row; of a row without label, which is the largest number of its type as everywhere in candle, None.
fn read(labels: &Tensor, rows: usize, classes: usize) -> Result<Vec<Option<usize>>> {
    if classes == 0 {
        bail!("cross-entropy: logits {:?} are of no class", [rows, classes]);
    }
    if labels.dims() != [rows] {
        bail!("cross-entropy: logits {:?} need labels [{rows}], not {:?}", [rows, classes], labels.dims());
    }
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

/// The operation: its result, and what the gradient needs beside the logits.
struct CrossEntropy<T> {
    labels: Vec<Option<usize>>,
    /// Of each row the largest logit, and the sum of the exponentials of the distances from it.
    softmax: Vec<(T, T)>,
    mean: f64,
}

/// So many logits, or one row, are taken at a time: they stay in the nearest cache, and narrow rows fill registers together.
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
            // The label's distance is read before it becomes an exponential.
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

    /// softmax - 1 for the label's class, each times `upstream / n`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    /// Loss and gradient of both ways.
    fn of_both(logits: &[[f64; 3]; 4], labels: &[u32; 4]) -> [(f64, Vec<Vec<f64>>); 2] {
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        [cross_entropy::<f64>, composed].map(|cross_entropy| {
            let logits = Var::new(logits, &Device::Cpu).unwrap();
            let loss = cross_entropy(&logits, &labels).unwrap();
            let gradients = loss.backward().unwrap();
            let of_logits = gradients.get(&logits).unwrap().to_vec2().unwrap();
            (loss.to_scalar().unwrap(), of_logits)
        })
    }

    #[test]
    fn rows_without_a_label_count_for_nothing_whatever_is_in_them() {
        let masked = [f64::NEG_INFINITY, 1., 2.];
        let logits = [[0.1, -2., 3.], masked, [1.5, 0.5, -0.5], [f64::NAN; 3]];
        let [(loss, gradient), (composed, of_composed)] = of_both(&logits, &[2, u32::MAX, 0, u32::MAX]);
        assert!((loss - composed).abs() < 1e-12 && loss.is_finite(), "{loss} {composed}");
        for (row, (a, b)) in gradient.iter().zip(&of_composed).enumerate() {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{row}: {a:?} {b:?}");
            assert!(row % 2 == 0 || b.iter().all(|x| *x == 0.), "{b:?}");
        }
    }
}
