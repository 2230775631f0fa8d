//! Whole trainings in one call: [`run`] goes through epochs, validates and keeps what a restart goes on from, under
//! every strategy that trains in step.
//!
//! | item | what it is |
//! |---|---|
//! | [`Trainer`] | how long to train, in which batches, when to end early, and where backups go |
//! | [`Datasets`] | what examples are for training and for validation, for each worker |
//! | [`run`] | the training; it gives the [`History`] |
//! | [`evaluate`], [`predict`] | the loss of a model over a dataset, and what it makes of each example |
//! | [`Evaluator`] | a task of its own, which evaluates each checkpoint beside the training |
//! | [`ParameterServerStrategy`] | parameter servers as `TF_CONFIG` has them |

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
