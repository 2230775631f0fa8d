//! Softmax cross-entropy by candle's operations, on any device.

use super::cross_entropy::read;
use candle_core::{Result, Tensor};
use distribute_base::internal::{Known, computed_in, from_vec};

/// Computes the mean cross-entropy of logits `[n, classes]`, with its gradient.
pub(super) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let dtype = computed_in(logits.dtype());
    if dtype != logits.dtype() {
        return cross_entropy(&logits.to_dtype(dtype)?, labels)?.to_dtype(logits.dtype());
    }
    let (rows, classes) = logits.dims2()?;
    let labels = Chosen::new(labels, rows, classes, logits)?;
    let log_probabilities = candle_nn::ops::log_softmax(&logits.detach(), 1)?;
    let result = labels.negative_mean(&log_probabilities)?;
    let backward = move |_: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
        // The probabilities of each row, minus one for the class of its label.
        let mut gradient = labels.less_one(&log_probabilities.exp()?)?;
        if let Some(has_label) = &labels.has_label {
            gradient = only(has_label, &gradient)?;
        }
        Ok([Some(gradient.broadcast_mul(&(upstream.detach() * (1. / rows as f64))?)?)])
    };
    logits.apply_op1(Known::new("cross-entropy", result, backward))
}

/// Returns the mean over all rows of the label's element, times -1.
pub(super) fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let dtype = computed_in(log_probabilities.dtype());
    if dtype != log_probabilities.dtype() {
        return nll(&log_probabilities.to_dtype(dtype)?, labels)?.to_dtype(log_probabilities.dtype());
    }
    let (rows, classes) = log_probabilities.dims2()?;
    Chosen::new(labels, rows, classes, log_probabilities)?.negative_mean(log_probabilities)
}

/// Returns the rows that have a label, with zeros in place of the others, even if these contain NaN.
fn only(has_label: &Tensor, rows: &Tensor) -> Result<Tensor> {
    has_label.broadcast_as(rows.shape())?.contiguous()?.where_cond(rows, &rows.zeros_like()?)
}

/// The labels of all rows, in device memory.
struct Chosen {
    /// The class of each row, `[rows, 1]`; the first class for rows without a label.
    classes: Tensor,
    /// A 1 for each row with a label and a 0 for the others; `None` if all rows have one.
    has_label: Option<Tensor>,
}

impl Chosen {
    /// Copies labels to the device of `numbers`.
    ///
    /// Labels are checked on the host first, because an invalid class would make a GPU unusable.
    fn new(labels: &Tensor, rows: usize, classes: usize, numbers: &Tensor) -> Result<Self> {
        let device = numbers.device();
        let checked = read(labels, rows, classes)?;
        let all_have_one = !checked.contains(&None);
        if all_have_one && labels.device().same_device(device) {
            return Ok(Self { classes: labels.unsqueeze(1)?.contiguous()?, has_label: None });
        }
        let classes = checked.iter().map(|label| label.map_or(0, |label| label as u32)).collect();
        let classes = from_vec(classes, (rows, 1), device)?;
        let has_label = || {
            let has_label = checked.iter().map(|label| u8::from(label.is_some())).collect();
            from_vec(has_label, (rows, 1), device)
        };
        Ok(Self { classes, has_label: (!all_have_one).then(has_label).transpose()? })
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

#[cfg(test)]
mod tests {
    use super::super::cross_entropy::cross_entropy as fused;
    use super::*;
    use candle_core::{DType, Device, Var};

    /// Returns loss and gradient of both implementations.
    fn of_both(logits: &[[f64; 3]; 4], labels: &[u32; 4]) -> [(f64, Vec<Vec<f64>>); 2] {
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        [fused::<f64>, cross_entropy].map(|cross_entropy| {
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

    #[test]
    fn losses_of_many_rows_in_half_precision_are_numbers() {
        // The sum of these losses overflows f16.
        let (rows, classes) = (30_000, 20);
        let logits = Var::zeros((rows, classes), DType::F16, &Device::Cpu).unwrap();
        let labels = Tensor::zeros(rows, DType::U32, &Device::Cpu).unwrap();
        for loss in [
            cross_entropy(&logits, &labels).unwrap(),
            nll(&(logits.as_tensor() - 3.).unwrap(), &labels).unwrap(),
        ] {
            assert_eq!(loss.dtype(), DType::F16);
            let value = loss.to_dtype(DType::F32).unwrap().to_scalar::<f32>().unwrap();
            assert!((value - 3.).abs() < 0.01, "{value}");
            let gradients = loss.backward().unwrap();
            assert_eq!(gradients.get(&logits).unwrap().dtype(), DType::F16);
        }
    }
}
