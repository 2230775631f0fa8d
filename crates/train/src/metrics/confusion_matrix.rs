//! [`ConfusionMatrix`]: counts of examples by label and predicted class.

use super::counts::{Counts, pairs};
use candle_core::{Device, Tensor};
use distribute_base::{Error, Result};
use distribute_core::{Strategy, Variable};

/// The number of examples of each class (row) that were predicted as each class (column).
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use distribute::metrics::ConfusionMatrix;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let matrix = ConfusionMatrix::new(&strategy, "confusion", 2)?;
/// strategy.run((), |_, ()| {
///     let logits = Tensor::new(&[[0f32, 1.], [1., 0.]], &Device::Cpu)?;
///     matrix.update(&logits.argmax(1)?, &Tensor::new(&[1u32, 1], &Device::Cpu)?)
/// })?;
/// assert_eq!(matrix.result()?.to_vec2::<i64>()?, [[0, 0], [2, 2]]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.math.confusion_matrix")]
#[derive(Clone, Debug)]
pub struct ConfusionMatrix {
    classes: usize,
    counts: Counts,
}

impl ConfusionMatrix {
    /// Creates an empty matrix for the given number of classes, whose variable is named `name`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `classes` is 0.
    /// - The errors of [`Mean::new`](super::Mean::new).
    pub fn new(strategy: &Strategy, name: &str, classes: usize) -> Result<Self> {
        if classes == 0 {
            return Err(Error::invalid("ConfusionMatrix::new", "there are no classes; pass their number"));
        }
        Ok(Self { classes, counts: Counts::new(strategy, name, &[classes, classes])? })
    }

    /// Adds examples. `predictions` are the predicted classes; `labels` have the same shape.
    ///
    /// # Errors
    /// Nothing is counted after an error.
    /// - [`Error::InvalidArgument`]: the shapes differ.
    /// - [`Error::InvalidArgument`]: a prediction or label is not one of the classes. The error names the first.
    /// - [`Error::WrongContext`]: called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update(&self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        const OPERATION: &str = "ConfusionMatrix::update";
        let mut counts = vec![0.; self.classes * self.classes];
        let pairs = pairs(OPERATION, ["predictions", "labels"], predictions, labels)?;
        for (place, (prediction, label)) in pairs.enumerate() {
            let class = |what: &str, class: f64| match class {
                _ if class >= 0. && class < self.classes as f64 && class.fract() == 0. => Ok(class as usize),
                _ => {
                    let reason = format!(
                        "{what} {place} is {class}, which is not one of the classes 0 to {}",
                        self.classes - 1
                    );
                    Err(Error::invalid(OPERATION, reason))
                }
            };
            counts[class("label", label)? * self.classes + class("prediction", prediction)?] += 1.;
        }
        self.counts.add(counts)
    }

    /// Returns the matrix over the examples of all replicas, i64 `[classes, classes]`. There is a row for each label
    /// and a column for each prediction.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    /// - The errors of [`Variable::read`]. With several workers, all must make this call.
    pub fn result(&self) -> Result<Tensor> {
        let counts = self.counts.total("ConfusionMatrix::result")?.into_iter().map(|count| count as i64);
        Ok(Tensor::from_vec(counts.collect(), (self.classes, self.classes), &Device::Cpu)?)
    }

    /// Resets the counts of this worker's replicas. With several workers, all must make this call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.reset("ConfusionMatrix::reset")
    }

    /// Returns the variable with the counts, f64 `[classes, classes]`.
    pub fn variable(&self) -> &Variable {
        self.counts.variable()
    }
}
