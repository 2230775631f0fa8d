//! Losses that are means over this replica's examples and support empty batches.
//!
//! candle_nn's losses divide by the number of rows, so the result for an empty per-replica batch is NaN or an error.
//! The losses in this module return 0 in this case, without a gradient. Pass 0 examples to `minimize` then.
//!
//! With [mixed precision](crate::MixedPrecision), losses of tensors in half precision are computed and returned in f32.

mod composed;
mod cross_entropy;
mod logistic;
mod pairs;

use crate::autocast;
use candle_core::{DType, Result, Tensor, bail};
use distribute_base::internal::{is_native, to_device};
use pairs::{PairLoss, mean};

/// Computes the mean cross-entropy of logits of shape `[n, classes]` and integer labels of shape `[n]` (u8, u32 or
/// i64).
///
/// The largest number of the labels' dtype means that a row has no label. Such a row adds nothing to the sum, but is
/// counted in the mean.
///
/// # Errors
/// Returns an error in these cases:
/// - A label is not one of the classes. The error contains the index of the row.
/// - The shapes or dtypes do not match.
#[doc(alias = "tf.nn.sparse_softmax_cross_entropy_with_logits")]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    cross_entropy_with_smoothing(logits, labels, 0.)
}

/// Computes the mean cross-entropy like [`cross_entropy`], with smoothed labels.
///
/// The label's class has the probability 1 − `smoothing` + `smoothing` / classes, and each other class `smoothing` /
/// classes. `smoothing` must be in [0, 1]; 0.1 is common.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use distribute::nn::loss;
/// let logits = Tensor::new(&[[0f32, 0.], [0., 0.]], &Device::Cpu)?;
/// let labels = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let mean = loss::cross_entropy_with_smoothing(&logits, &labels, 0.1)?;
/// assert!((mean.to_scalar::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// Returns the errors of [`cross_entropy`], and an error if `smoothing` is not in [0, 1].
#[doc(alias = "label_smoothing")]
#[doc(alias = "tf.keras.losses.CategoricalCrossentropy")]
pub fn cross_entropy_with_smoothing(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    if !(0. ..=1.).contains(&smoothing) {
        bail!("cross-entropy: a label smoothing of {smoothing} is not in [0, 1]");
    }
    if let Some((logits, labels)) = autocast::loss_operands(logits, labels)? {
        return cross_entropy_with_smoothing(&logits, &labels, smoothing);
    }
    mean_or_zero(logits, labels, || match (logits.dtype(), is_native(logits) && logits.rank() == 2) {
        (DType::F32, true) => cross_entropy::cross_entropy::<f32>(logits, labels, smoothing),
        (DType::F64, true) => cross_entropy::cross_entropy::<f64>(logits, labels, smoothing),
        _ => composed::cross_entropy(logits, labels, smoothing),
    })
}

/// Computes the mean negative log-likelihood of log-probabilities of shape `[n, classes]` and integer labels of shape
/// `[n]` (u8, u32 or i64).
///
/// # Errors
/// Returns an error in these cases:
/// - A label is not one of the classes.
/// - The shapes or dtypes do not match.
pub fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    if let Some((log_probabilities, labels)) = autocast::loss_operands(log_probabilities, labels)? {
        return nll(&log_probabilities, &labels);
    }
    mean_or_zero(log_probabilities, labels, || {
        if is_native(log_probabilities) {
            candle_nn::loss::nll(log_probabilities, labels)
        } else {
            composed::nll(log_probabilities, labels)
        }
    })
}

/// Computes the mean squared error over all elements of two tensors with the same shape.
///
/// # Errors
/// Returns an error if the shapes or dtypes do not match.
#[doc(alias = "tf.keras.losses.MeanSquaredError")]
#[doc(alias = "MeanSquaredError")]
pub fn mse(predictions: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if let Some((predictions, targets)) = autocast::loss_operands(predictions, targets)? {
        return mse(&predictions, &targets);
    }
    mean_or_zero(predictions, targets, || match pair_loss(predictions, targets) {
        Some(DType::F32) => mean::<f32>(PairLoss::Squared, predictions, targets),
        Some(DType::F64) => mean::<f64>(PairLoss::Squared, predictions, targets),
        _ => candle_nn::loss::mse(predictions, targets),
    })
}

/// Computes the mean Huber loss over all elements of two tensors with the same shape: ½ d² if the difference d is at
/// most `delta` in absolute value, otherwise `delta` (|d| − ½ `delta`). Outliers have less influence than with [`mse`].
///
/// # Errors
/// Returns an error in these cases:
/// - `delta` is not positive and finite.
/// - The shapes or dtypes do not match.
#[doc(alias = "tf.keras.losses.Huber")]
pub fn huber(predictions: &Tensor, targets: &Tensor, delta: f64) -> Result<Tensor> {
    if !(delta > 0. && delta.is_finite()) {
        bail!("huber: a delta of {delta} is not positive and finite");
    }
    if let Some((predictions, targets)) = autocast::loss_operands(predictions, targets)? {
        return huber(&predictions, &targets, delta);
    }
    let kind = PairLoss::Huber(delta);
    mean_or_zero(predictions, targets, || match pair_loss(predictions, targets) {
        Some(DType::F32) => mean::<f32>(kind, predictions, targets),
        Some(DType::F64) => mean::<f64>(kind, predictions, targets),
        _ => candle_nn::loss::huber(predictions, targets, delta),
    })
}

/// Computes the mean binary cross-entropy of logits and targets with the same shape. Targets must be in [0, 1], which
/// is not checked.
///
/// The result is exact even for large logits. candle_nn's loss is not, because it takes the logarithm of a sigmoid,
/// which is rounded to 0 or 1.
///
/// # Errors
/// Returns an error if the shapes or dtypes do not match.
#[doc(alias = "tf.nn.sigmoid_cross_entropy_with_logits")]
pub fn binary_cross_entropy_with_logit(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if let Some((logits, targets)) = autocast::loss_operands(logits, targets)? {
        return binary_cross_entropy_with_logit(&logits, &targets);
    }
    mean_or_zero(logits, targets, || match pair_loss(logits, targets) {
        Some(DType::F32) => mean::<f32>(PairLoss::Logistic, logits, targets),
        Some(DType::F64) => mean::<f64>(PairLoss::Logistic, logits, targets),
        None if logits.dims() == targets.dims() && logits.dtype() == targets.dtype() => {
            logistic::composed(logits, targets)
        }
        _ => {
            let rest = (logits.abs()?.neg()?.exp()? + 1.)?.log()?;
            ((logits.relu()? - (logits * targets)?)? + rest)?.mean_all()
        }
    })
}

/// Returns the dtype of two tensors if they have the same shape and dtype, and this crate's loops support them.
fn pair_loss(x: &Tensor, z: &Tensor) -> Option<DType> {
    let same = x.dims() == z.dims() && x.dtype() == z.dtype();
    (same && is_native(x) && is_native(z)).then(|| x.dtype())
}

/// Returns the number of rows in which the label's logit is the largest. `logits` have shape `[n, classes]`, `labels`
/// `[n]`. This counts only this replica's rows, so sum the results over the replicas.
///
/// # Errors
/// Returns an error if the shapes do not match.
pub fn correct(logits: &Tensor, labels: &Tensor) -> Result<usize> {
    if logits.elem_count() == 0 {
        return Ok(0);
    }
    // In i64: a label that exceeds u32 is no class.
    let labels = to_device(labels, logits.device())?.to_dtype(DType::I64)?;
    let equal = logits.argmax(candle_core::D::Minus1)?.to_dtype(DType::I64)?.eq(&labels)?;
    Ok(equal.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}

/// Returns 0 if both tensors are empty, otherwise the result of `mean`. If only one tensor is empty, `mean` must return
/// an error.
fn mean_or_zero(inputs: &Tensor, targets: &Tensor, mean: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    match inputs.elem_count() + targets.elem_count() {
        0 => Tensor::zeros((), inputs.dtype(), inputs.device()),
        _ => mean(),
    }
}
