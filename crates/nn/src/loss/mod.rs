//! Losses: means over this replica's examples, which take 0 rows as well.
//!
//! candle_nn's losses divide by the number of rows, so an empty piece of a batch gives NaN or an error. These give 0
//! there, with no gradient; `minimize` weighs it with 0 examples.

mod composed;
mod cross_entropy;
mod logistic;
mod pairs;

use candle_core::{DType, Result, Tensor};
use distribute_base::internal::{is_native, to_device};
use pairs::{Kind, mean};

/// Mean cross-entropy of logits `[n, classes]` and labels `[n]` (u8, u32 or i64).
///
/// The largest number of the labels' type stands for no label: such a row adds nothing to the sum, and counts in the mean.
///
/// # Errors
/// For a label that is none of the classes, with its row; candle's, for other shapes or dtypes.
#[doc(alias = "tf.nn.sparse_softmax_cross_entropy_with_logits")]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_or_zero(logits, labels, || match (logits.dtype(), is_native(logits) && logits.rank() == 2) {
        (DType::F32, true) => cross_entropy::cross_entropy::<f32>(logits, labels),
        (DType::F64, true) => cross_entropy::cross_entropy::<f64>(logits, labels),
        _ if is_native(logits) => candle_nn::loss::cross_entropy(logits, labels),
        _ => composed::cross_entropy(logits, labels),
    })
}

/// Mean negative log-likelihood of log-probabilities `[n, classes]` and labels `[n]` (u8, u32 or i64).
///
/// # Errors
/// For a label that is none of the classes; candle's, for other shapes or dtypes.
pub fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_or_zero(log_probabilities, labels, || {
        if is_native(log_probabilities) {
            candle_nn::loss::nll(log_probabilities, labels)
        } else {
            composed::nll(log_probabilities, labels)
        }
    })
}

/// Mean squared error over all elements of two tensors of equal shapes.
///
/// # Errors
/// candle's, for other shapes or dtypes.
#[doc(alias = "tf.keras.losses.MeanSquaredError")]
#[doc(alias = "MeanSquaredError")]
pub fn mse(predictions: &Tensor, targets: &Tensor) -> Result<Tensor> {
    mean_or_zero(predictions, targets, || match of_pairs(predictions, targets) {
        Some(DType::F32) => mean::<f32>(Kind::Squared, predictions, targets),
        Some(DType::F64) => mean::<f64>(Kind::Squared, predictions, targets),
        _ => candle_nn::loss::mse(predictions, targets),
    })
}

/// Mean binary cross-entropy of logits and targets in [0, 1], of equal shapes.
///
/// Unlike candle_nn's, it is exact for any logit: that one takes the logarithm of a sigmoid, which is 0 or 1 for large ones.
///
/// # Errors
/// candle's, for other shapes or dtypes.
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

/// The dtype of two tensors whose elements are pairs, of those where this crate computes itself.
fn of_pairs(x: &Tensor, z: &Tensor) -> Option<DType> {
    let same = x.dims() == z.dims() && x.dtype() == z.dtype();
    (same && is_native(x) && is_native(z)).then(|| x.dtype())
}

/// How many rows of logits `[n, classes]` have their label as the largest: a count, to be summed over replicas.
///
/// # Errors
/// candle's, for other shapes or dtypes.
pub fn correct(logits: &Tensor, labels: &Tensor) -> Result<usize> {
    if logits.elem_count() == 0 {
        return Ok(0);
    }
    let labels = to_device(labels, logits.device())?.to_dtype(DType::U32)?;
    let equal = logits.argmax(candle_core::D::Minus1)?.eq(&labels)?;
    Ok(equal.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}

/// 0 where there is nothing on either side; what is on one side only is for `mean` to refuse.
fn mean_or_zero(inputs: &Tensor, targets: &Tensor, mean: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    match inputs.elem_count() + targets.elem_count() {
        0 => Tensor::zeros((), inputs.dtype(), inputs.device()),
        _ => mean(),
    }
}
