//! Which classes are predicted for which.

use super::counts::{Counts, pairs};
use candle_core::{Device, Tensor};
use distribute_base::{Error, Result};
use distribute_core::{Strategy, Variable};

/// How many examples of each class (row) were predicted to be of each class (column).
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
    /// An empty matrix for this many classes, whose variable has this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no classes; and those of [`Mean::new`](super::Mean::new).
    pub fn new(strategy: &Strategy, name: &str, classes: usize) -> Result<Self> {
        if classes == 0 {
            return Err(Error::invalid("ConfusionMatrix::new", "no classes; give their number"));
        }
        Ok(Self { classes, counts: Counts::new(strategy, name, &[classes, classes])? })
    }

    /// Adds examples: predicted classes, and labels of the same shape.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for shapes that differ, and for what is not one of the classes: it names the first.
    /// Nothing is counted then. Those of writing a variable.
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
                        "{what} {place} is {class}, which is none of the classes 0 to {}",
                        self.classes - 1
                    );
                    Err(Error::invalid(OPERATION, reason))
                }
            };
            counts[class("label", label)? * self.classes + class("prediction", prediction)?] += 1.;
        }
        self.counts.add(counts)
    }

    /// The matrix over the examples of all replicas: i64 `[classes, classes]`, labels by predictions.
    ///
    /// # Errors
    /// [`Error::WrongContext`](distribute_base::Error::WrongContext) inside of `run`.
    pub fn result(&self) -> Result<Tensor> {
        let counts = self.counts.total("ConfusionMatrix::result")?.into_iter().map(|count| count as i64);
        Ok(Tensor::from_vec(counts.collect(), (self.classes, self.classes), &Device::Cpu)?)
    }

    /// Resets the counts, on all replicas.
    ///
    /// # Errors
    /// [`Error::WrongContext`](distribute_base::Error::WrongContext) inside of `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.reset("ConfusionMatrix::reset")
    }

    /// The counts, f64 `[classes, classes]`.
    pub fn variable(&self) -> &Variable {
        self.counts.variable()
    }
}
