//! Losses that are means over this replica's examples, and support 0 rows.
//!
//! candle_nn's losses divide by the number of rows, so an empty per-replica batch gives NaN or an error. These
//! losses return 0 for it, without a gradient; `minimize` weighs it with 0 examples.

mod composed;
mod cross_entropy;
mod logistic;
mod pairs;

use candle_core::{DType, Result, Tensor};
use distribute_base::internal::{is_native, to_device};
use pairs::{Kind, mean};

/// Computes the mean cross-entropy of logits `[n, classes]` and labels `[n]` (u8, u32 or i64).
///
/// The largest number of the labels' type means no label: such a row adds nothing to the sum, but counts in the mean.
///
/// # Errors
/// - A label is not one of the classes. The error names its row.
/// - A shape or a dtype does not fit.
#[doc(alias = "tf.nn.sparse_softmax_cross_entropy_with_logits")]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_or_zero(logits, labels, || match (logits.dtype(), is_native(logits) && logits.rank() == 2) {
        (DType::F32, true) => cross_entropy::cross_entropy::<f32>(logits, labels),
        (DType::F64, true) => cross_entropy::cross_entropy::<f64>(logits, labels),
        _ if is_native(logits) => candle_nn::loss::cross_entropy(logits, labels),
        _ => composed::cross_entropy(logits, labels),
    })
}

/// Computes the mean negative log-likelihood of log-probabilities `[n, classes]` and labels `[n]` (u8, u32 or i64).
///
/// # Errors
/// - A label is not one of the classes.
/// - A shape or a dtype does not fit.
pub fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_or_zero(log_probabilities, labels, || {
        if is_native(log_probabilities) {
            candle_nn::loss::nll(log_probabilities, labels)
        } else {
            composed::nll(log_probabilities, labels)
        }
    })
}

/// Computes the mean squared error over all elements of two tensors of equal shapes.
///
/// # Errors
/// Returns an error if a shape or a dtype does not fit.
#[doc(alias = "tf.keras.losses.MeanSquaredError")]
#[doc(alias = "MeanSquaredError")]
pub fn mse(predictions: &Tensor, targets: &Tensor) -> Result<Tensor> {
    mean_or_zero(predictions, targets, || match of_pairs(predictions, targets) {
        Some(DType::F32) => mean::<f32>(Kind::Squared, predictions, targets),
        Some(DType::F64) => mean::<f64>(Kind::Squared, predictions, targets),
        _ => candle_nn::loss::mse(predictions, targets),
    })
}

/// Computes the mean binary cross-entropy of logits and targets in [0, 1], of equal shapes.
///
/// The result is exact for any logit. candle_nn's loss takes the logarithm of a sigmoid, which is 0 or 1 for
/// large logits.
///
/// # Errors
/// Returns an error if a shape or a dtype does not fit.
#[doc(alias = "tf.nn.sigmoid_cross_entropy_with_logits")]
pub fn binary_cross_entropy_with_logit(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    mean_or_zero(logits, targets, || match of_pairs(logits, targets) {
        Some(DType::F32) => mean::<f32>(Kind::Logistic, logits, targets),
        Some(DType::F64) => mean::<f64>(Kind::Logistic, logits, targets),
        None if logits.dims() == targets.dims() && logits.dtype() == targets.dtype() => {
            logistic::composed(logits, targets)
        }
        _ => {
            let rest = (logits.abs()?.neg()?.exp()? + 1.)?.log()?;
            ((logits.relu()? - (logits * targets)?)? + rest)?.mean_all()
        }
    })
}

/// Returns the dtype of two tensors of equal shapes and dtypes, if this crate's loops support it.
fn of_pairs(x: &Tensor, z: &Tensor) -> Option<DType> {
    let same = x.dims() == z.dims() && x.dtype() == z.dtype();
    (same && is_native(x) && is_native(z)).then(|| x.dtype())
}

/// Counts the rows of logits `[n, classes]` whose label has the largest logit. Sum the counts over replicas.
///
/// # Errors
/// Returns an error if a shape or a dtype does not fit.
pub fn correct(logits: &Tensor, labels: &Tensor) -> Result<usize> {
    if logits.elem_count() == 0 {
        return Ok(0);
    }
    let labels = to_device(labels, logits.device())?.to_dtype(DType::U32)?;
    let equal = logits.argmax(candle_core::D::Minus1)?.eq(&labels)?;
    Ok(equal.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}

/// Returns 0 if both sides are empty; `mean` has to refuse one empty side.
fn mean_or_zero(inputs: &Tensor, targets: &Tensor, mean: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    match inputs.elem_count() + targets.elem_count() {
        0 => Tensor::zeros((), inputs.dtype(), inputs.device()),
        _ => mean(),
    }
}
