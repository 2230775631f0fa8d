//! Metrics over all replicas. They are updated in [`run`](distribute_core::Strategy::run) without communication, and
//! read outside it.
//!
//! A metric is an ON_READ variable with aggregation SUM: each replica adds to its own copy, and
//! [`result`](Mean::result) sums the copies. Updating a metric therefore costs only local arithmetic, and a replica may
//! update it any number of times in a step. N replicas produce the same result as one, except for rounding in sums of
//! fractions. Counts are of dtype f64, which is exact up to 2^53.
//!
//! Call `update` in `run`, and call `result` and `reset` outside it, on all workers. An `update` with an empty
//! per-replica batch changes nothing.
//!
//! ```
//! # use distribute::prelude::*;
//! use candle_core::{Device, Tensor};
//! use distribute::{data::Dataset, metrics::{Accuracy, Mean}};
//!
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let (accuracy, mean) = (Accuracy::new(&strategy, "accuracy")?, Mean::new(&strategy, "logit")?);
//! let logits = Tensor::new(&[[1f32, 0.], [0., 1.], [3., 1.]], &Device::Cpu)?;
//! let labels = Tensor::new(&[0u32, 1, 1], &Device::Cpu)?;
//! for batch in &strategy.distribute_dataset(Dataset::from_slices((logits, labels))?.batch(3))? {
//!     strategy.run(batch?, |_, (logits, labels)| {
//!         mean.update(&logits)?;
//!         accuracy.update(&logits, &labels)
//!     })?;
//! }
//! assert_eq!((accuracy.result()?, mean.result()?), (2. / 3., 1.));
//! # Ok::<(), distribute::Error>(())
//! ```

mod accuracy;
mod auc;
mod confusion_matrix;
mod counts;
mod mean;
mod precision;
mod recall;
mod top_k_accuracy;

#[doc(alias = "tf.keras.metrics.SparseCategoricalAccuracy")]
#[doc(alias = "SparseCategoricalAccuracy")]
pub use accuracy::Accuracy;
#[doc(alias = "tf.keras.metrics.AUC")]
pub use auc::Auc;
#[doc(alias = "tf.math.confusion_matrix")]
pub use confusion_matrix::ConfusionMatrix;
#[doc(alias = "tf.keras.metrics.Mean")]
pub use mean::Mean;
#[doc(alias = "tf.keras.metrics.Precision")]
pub use precision::Precision;
#[doc(alias = "tf.keras.metrics.Recall")]
pub use recall::Recall;
#[doc(alias = "tf.keras.metrics.SparseTopKCategoricalAccuracy")]
#[doc(alias = "SparseTopKCategoricalAccuracy")]
#[doc(alias = "tf.math.in_top_k")]
pub use top_k_accuracy::TopKAccuracy;
