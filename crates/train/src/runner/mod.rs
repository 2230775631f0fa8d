//! Complete training runs in a single call.
//!
//! [`run`] loops over epochs, validates, and saves backups from which a restarted program resumes. It works with every
//! synchronous strategy and, without backups, with independent workers.
//!
//! | item | contents |
//! |---|---|
//! | [`Trainer`] | the length of training, batch sizes, early stopping, and the location of backups |
//! | [`Callback`], [`CsvLog`], [`ReduceOnPlateau`] | code that observes a training run |
//! | [`Datasets`] | the training and validation examples of each worker |
//! | [`run`] | a training run, which returns its [`History`] |
//! | [`evaluate`], [`predict`] | the loss of a model over a dataset, and its output for each example |
//! | [`Evaluator`] | a separate task that evaluates each checkpoint while training continues |
//! | [`parameter_server_strategy_from_env`] | parameter servers from the environment |
//!
//! | module | contents |
//! |---|---|
//! | `trainer`, `checks` | the settings, and checks for contradictions |
//! | `callbacks` | code that observes a training run, and the display of its progress |
//! | `datasets` | the functions that create each worker's examples |
//! | `run` | the loop over epochs and steps |
//! | `progress`, `backup`, `history` | the position, its checkpoints, and the results by epoch |
//! | `evaluate`, `evaluator` | the evaluation of a model over a dataset; of each checkpoint, by a separate task |
//! | `parameter_servers` | the strategy from the environment |

mod backup;
mod callbacks;
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
#[doc(alias = "tf.keras.callbacks.CSVLogger")]
#[doc(alias = "CSVLogger")]
pub use callbacks::CsvLog;
#[doc(alias = "tf.keras.callbacks.ReduceLROnPlateau")]
#[doc(alias = "ReduceLROnPlateau")]
pub use callbacks::ReduceOnPlateau;
pub use callbacks::{Callback, CallbackContext};
pub use datasets::Batching;
#[doc(alias = "tfgnn.runner.DatasetProvider")]
#[doc(alias = "DatasetProvider")]
pub use datasets::Datasets;
pub use distribute_log::stderr;
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
#[doc(alias = "tfgnn.runner.ParameterServerStrategy")]
#[doc(alias = "ParameterServerStrategy")]
pub use parameter_servers::parameter_server_strategy_from_env;
pub use run::Phase;
#[doc(alias = "tfgnn.runner.run")]
#[doc(alias = "tf.keras.Model.fit")]
#[doc(alias = "Model.fit")]
#[doc(alias = "fit")]
#[doc(alias = "tf.keras.Model.compile")]
#[doc(alias = "compile")]
pub use run::run;
pub use trainer::Step;
#[doc(alias = "tfgnn.runner.Trainer")]
#[doc(alias = "tfgnn.runner.KerasTrainer")]
#[doc(alias = "KerasTrainer")]
pub use trainer::Trainer;
