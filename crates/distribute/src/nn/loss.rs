//! Losses: means over this replica's examples, which take 0 rows as well.
//!
//! candle_nn's losses divide by the number of rows, so an empty piece of a batch gives NaN or an error. These give 0
//! there, with no gradient; [`minimize`](crate::Optimizer::minimize) weighs it with 0 examples.

use candle_core::{Result, Tensor};

/// Mean cross-entropy of logits `[n, classes]` and labels `[n]` (u8, u32 or i64).
///
/// # Errors
/// candle's, for other shapes or dtypes.
#[doc(alias = "tf.nn.sparse_softmax_cross_entropy_with_logits")]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_or_zero(logits, || candle_nn::loss::cross_entropy(logits, labels))
}

/// Mean negative log-likelihood of log-probabilities `[n, classes]` and labels `[n]` (u8, u32 or i64).
///
/// # Errors
/// candle's, for other shapes or dtypes.
pub fn nll(log_probabilities: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_or_zero(log_probabilities, || candle_nn::loss::nll(log_probabilities, labels))
}

/// Mean squared error over all elements.
///
/// # Errors
/// candle's, for other shapes or dtypes.
#[doc(alias = "tf.keras.losses.MeanSquaredError")]
pub fn mse(predictions: &Tensor, targets: &Tensor) -> Result<Tensor> {
    mean_or_zero(predictions, || candle_nn::loss::mse(predictions, targets))
}

/// Mean binary cross-entropy of logits and targets in [0, 1], of equal shapes.
///
/// # Errors
/// candle's, for other shapes or dtypes.
#[doc(alias = "tf.nn.sigmoid_cross_entropy_with_logits")]
pub fn binary_cross_entropy_with_logit(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    mean_or_zero(logits, || candle_nn::loss::binary_cross_entropy_with_logit(logits, targets))
}

/// How many rows of logits `[n, classes]` have their label as the largest: a count, to be summed over replicas.
///
/// # Errors
/// candle's, for other shapes or dtypes.
pub fn correct(logits: &Tensor, labels: &Tensor) -> Result<usize> {
    if logits.elem_count() == 0 {
        return Ok(0);
    }
    let labels = labels.to_dtype(candle_core::DType::U32)?;
    let equal = logits.argmax(candle_core::D::Minus1)?.eq(&labels)?;
    Ok(equal.to_dtype(candle_core::DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}

fn mean_or_zero(inputs: &Tensor, mean: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    match inputs.elem_count() {
        0 => Tensor::zeros((), inputs.dtype(), inputs.device()),
        _ => mean(),
    }
}
