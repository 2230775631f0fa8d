//! Softmax cross-entropy with candle's operations, on any device.

use super::cross_entropy::read;
use candle_core::{Result, Tensor};
use distribute_base::internal::{PrecomputedOp, accumulation_dtype, from_vec};

/// Computes the mean cross-entropy of logits of shape `[n, classes]`, with its gradient. The probability `smoothing` is
/// taken from the label's class, and divided equally among all classes.
pub(super) fn cross_entropy(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    let dtype = accumulation_dtype(logits.dtype());
    if dtype != logits.dtype() {
        return cross_entropy(&logits.to_dtype(dtype)?, labels, smoothing)?.to_dtype(logits.dtype());
    }
    let (rows, classes) = logits.dims2()?;
    let labels = OneHotLabels::new(labels, rows, classes, logits)?;
    let log_probabilities = candle_nn::ops::log_softmax(&logits.detach(), 1)?;
    let mut result = labels.negative_mean(&log_probabilities)?;
    if smoothing > 0. {
        result =
            ((result * (1. - smoothing))? + (labels.negative_mean_of_all(&log_probabilities)? * smoothing)?)?;
    }
    let backward = move |_: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
        // The probabilities of each row, minus those that its label gives.
        let mut gradient = labels.subtract_one_hot(&log_probabilities.exp()?, 1. - smoothing)?;
        if smoothing > 0. {
            gradient = gradient.affine(1., -smoothing / classes as f64)?;
        }
        if let Some(has_label) = &labels.has_label {
            gradient = only(has_label, &gradient)?;
        }
        Ok([Some(gradient.broadcast_mul(&(upstream.detach() * (1. / rows as f64))?)?)])
    };
    logits.apply_op1(PrecomputedOp::new("cross-entropy", result, backward))
}

/// Returns the negative log-likelihood: the negative mean, over all rows, of the element that belongs to the label's
/// class.
pub(super) fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let dtype = accumulation_dtype(log_probabilities.dtype());
    if dtype != log_probabilities.dtype() {
        return nll(&log_probabilities.to_dtype(dtype)?, labels)?.to_dtype(log_probabilities.dtype());
    }
    let (rows, classes) = log_probabilities.dims2()?;
    OneHotLabels::new(labels, rows, classes, log_probabilities)?.negative_mean(log_probabilities)
}

/// Replaces the rows without a label by zeros, even if they contain NaN.
fn only(has_label: &Tensor, rows: &Tensor) -> Result<Tensor> {
    has_label.broadcast_as(rows.shape())?.contiguous()?.where_cond(rows, &rows.zeros_like()?)
}

/// The labels of all rows, in device memory.
struct OneHotLabels {
    /// The class of each row, of shape `[rows, 1]`. It is 0 for rows without a label.
    classes: Tensor,
    /// The number 1 for each row with a label and 0 for each row without; `None` if all rows have a label.
    has_label: Option<Tensor>,
}

impl OneHotLabels {
    /// Checks labels and copies them to the device of `numbers`.
    ///
    /// Labels are checked on the host, because an invalid class would make a GPU unusable.
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

    /// Returns the negative mean, over all rows, of the mean of each row's elements. A row without a label counts as 0.
    fn negative_mean_of_all(&self, log_probabilities: &Tensor) -> Result<Tensor> {
        let mut means = log_probabilities.mean_keepdim(1)?;
        if let Some(has_label) = &self.has_label {
            means = only(has_label, &means)?;
        }
        means.sum_all()? * (-1. / log_probabilities.dim(0)? as f64)
    }

    fn subtract_one_hot(&self, numbers: &Tensor, weight: f64) -> Result<Tensor> {
        let minus_one =
            Tensor::full(-1f32, self.classes.shape(), numbers.device())?.to_dtype(numbers.dtype())?;
        numbers.scatter_add(&self.classes, &(minus_one * weight)?, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cross_entropy::cross_entropy as fused;
    use super::*;
    use candle_core::{DType, Device, Var};

    /// Returns the loss and the gradient, computed by both implementations.
    fn of_both(logits: &[[f64; 3]; 4], labels: &[u32; 4], smoothing: f64) -> [(f64, Vec<Vec<f64>>); 2] {
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        [fused::<f64>, cross_entropy].map(|cross_entropy| {
            let logits = Var::new(logits, &Device::Cpu).unwrap();
            let loss = cross_entropy(&logits, &labels, smoothing).unwrap();
            let gradients = loss.backward().unwrap();
            let of_logits = gradients.get(&logits).unwrap().to_vec2().unwrap();
            (loss.to_scalar().unwrap(), of_logits)
        })
    }

    #[test]
    fn rows_without_a_label_count_for_nothing_whatever_is_in_them() {
        let masked = [f64::NEG_INFINITY, 1., 2.];
        let logits = [[0.1, -2., 3.], masked, [1.5, 0.5, -0.5], [f64::NAN; 3]];
        let [(loss, gradient), (composed, of_composed)] = of_both(&logits, &[2, u32::MAX, 0, u32::MAX], 0.);
        assert!((loss - composed).abs() < 1e-12 && loss.is_finite(), "{loss} {composed}");
        for (row, (a, b)) in gradient.iter().zip(&of_composed).enumerate() {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{row}: {a:?} {b:?}");
            assert!(row % 2 == 0 || b.iter().all(|x| *x == 0.), "{b:?}");
        }
    }

    // Losses and gradients of keras.losses.categorical_crossentropy of Keras 3.15, in f64.
    #[test]
    fn label_smoothing_is_that_of_keras() {
        let logits = [[1., 2., 3.], [0.5, -1., 2.5], [0., 0., 0.], [-1., 4., -2.5]];
        let (first, fourth) = (
            [-0.21082569004073823, 0.05284878443036607, 0.15797690561037214],
            [-0.006662615613508962, 0.014623161434455079, -0.007960545820946102],
        );
        for (smoothing, expected) in
            [(0., 0.9169009923934937), (0.1, 1.0335676670074463), (0.5, 1.5002343654632568)]
        {
            for (loss, gradient) in of_both(&logits, &[0, 2, 1, 1], smoothing) {
                // Keras has computed the loss in f32.
                assert!((loss - expected).abs() < 1e-6, "{smoothing}: {loss}");
                let close = |row: usize, expected: [f64; 3]| {
                    gradient[row].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-8)
                };
                assert!(smoothing != 0.1 || close(0, first) && close(3, fourth), "{gradient:?}");
            }
        }
        let [(loss, gradient), (composed, of_composed)] = of_both(&logits, &[0, u32::MAX, 1, u32::MAX], 0.25);
        assert!((loss - composed).abs() < 1e-12 && gradient[1] == [0.; 3] && of_composed[1] == [0.; 3]);
    }

    #[test]
    fn losses_of_many_rows_in_half_precision_are_numbers() {
        // The sum of these losses overflows f16.
        let (rows, classes) = (30_000, 20);
        let logits = Var::zeros((rows, classes), DType::F16, &Device::Cpu).unwrap();
        let labels = Tensor::zeros(rows, DType::U32, &Device::Cpu).unwrap();
        for loss in [
            cross_entropy(&logits, &labels, 0.).unwrap(),
            cross_entropy(&logits, &labels, 0.5).unwrap(),
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
