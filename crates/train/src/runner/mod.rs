//! Complete trainings in one call.
//!
//! [`run`] iterates over epochs, validates, and saves backups from which a restart resumes, under every
//! synchronous strategy.
//!
//! | item | contents |
//! |---|---|
//! | [`Trainer`] | the length of the training, batch sizes, early stopping, and the location of backups |
//! | [`Datasets`] | the training and validation examples of each worker |
//! | [`run`] | the training; it returns the [`History`] |
//! | [`evaluate`], [`predict`] | the loss of a model over a dataset, and its output for each example |
//! | [`Evaluator`] | a separate task that evaluates each checkpoint in parallel to the training |
//! | [`ParameterServerStrategy`] | parameter servers from `TF_CONFIG` |

mod backup;
mod checks;
mod datasets;
mod evaluate;
mod evaluator;
mod history;
mod parameter_servers;
mod progress;
mod run;
mod trainer;

pub use backup::{LAST, STEP};
pub use datasets::Batching;
#[doc(alias = "tfgnn.runner.DatasetProvider")]
#[doc(alias = "DatasetProvider")]
pub use datasets::Datasets;
#[doc(alias = "tf.keras.Model.evaluate")]
pub use evaluate::evaluate;
#[doc(alias = "tf.keras.Model.predict")]
pub use evaluate::predict;
pub use evaluator::Evaluated;
#[doc(alias = "tf.keras.utils.SidecarEvaluator")]
#[doc(alias = "SidecarEvaluator")]
pub use evaluator::Evaluator;
#[doc(alias = "tf.keras.callbacks.History")]
pub use history::History;
pub use history::{End, Epoch};
pub use parameter_servers::ParameterServerStrategy;
pub use run::Phase;
#[doc(alias = "tfgnn.runner.run")]
#[doc(alias = "tf.keras.Model.fit")]
#[doc(alias = "fit")]
#[doc(alias = "tf.keras.Model.compile")]
#[doc(alias = "compile")]
pub use run::run;
pub use trainer::Step;
#[doc(alias = "tfgnn.runner.Trainer")]
#[doc(alias = "tfgnn.runner.KerasTrainer")]
#[doc(alias = "KerasTrainer")]
pub use trainer::Trainer;
