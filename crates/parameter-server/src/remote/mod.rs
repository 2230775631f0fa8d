//! Functions that workers of parameter servers run for a coordinator: `#[distribute::remote]`.
//!
//! All tasks of a job run the same program. A function with this attribute is registered before `main`, and
//! workers find it by its name. Its arguments and its result are sent as bytes, encoded by serde. Large values
//! and values that cannot be sent, such as a model or a dataset, are created once on each worker by another
//! such function. The worker keeps them, and a parameter `&T` refers to one of them.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::{Linear, Module, VarBuilder};
//! use distribute::nn::{linear, loss};
//! use distribute::remote::{Batches, WorkerContext};
//! use distribute::{Result, prelude::*};
//!
//! struct Model {
//!     net: Replicated<distribute::nn::Linear>,
//!     optimizer: Adam,
//! }
//!
//! /// Each worker makes a model, whose variables are those on the servers.
//! #[distribute::remote]
//! fn build(worker: &WorkerContext) -> Result<Model> {
//!     let net = worker.strategy().replicate(|vb| linear(2, 2, vb))?;
//!     let optimizer = Adam::new(&net.variables, 0.1)?;
//!     Ok(Model { net, optimizer })
//! }
//!
//! /// Each worker reads a part of the data of its own.
//! #[distribute::remote]
//! fn input(worker: &WorkerContext, batch: usize) -> Result<Dataset<(Tensor, Tensor)>> {
//!     let points = Tensor::arange(0f32, 200., &Device::Cpu)?.sin()?.reshape((100, 2))?;
//!     let data = Dataset::from_slices((points.clone(), points.argmax(1)?))?;
//!     let context = worker.input_context();
//!     Ok(data.shard(context.num_input_pipelines, context.input_pipeline_id).repeat(10).batch(batch))
//! }
//!
//! /// A step of one worker, on all its replicas.
//! #[distribute::remote]
//! fn train_step(worker: &WorkerContext, model: &Model, data: &Batches<(Tensor, Tensor)>) -> Result<f32> {
//!     let losses = worker.strategy().run((&model.net, data.next()?), |ctx, (net, (points, labels))| {
//!         let loss = loss::cross_entropy(&net.forward(&points)?, &labels)?;
//!         model.optimizer.minimize(ctx, loss, labels.dim(0)?)
//!     })?;
//!     Ok(losses.to_scalar()?)
//! }
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `function` | [`RemoteFunction`], which the attribute implements, and its return type |
//! | `arguments` | [`Params`] and [`Args`]: the match of arguments and parameters, and their bytes |
//! | `handles` | [`PerWorker`] and [`RemoteValue`], for the coordinator |
//! | `registry` | the functions of this program |
//! | `worker` | [`WorkerContext`], the first argument of each function |
//! | `batches` | [`Batches`]: a dataset of one worker, with its position |
//! | `program` | [`RemoteProgram`]: everything that a worker's process needs to run them |
//! | `executor` | the executor of one worker: its values, its calls |
//! | `failure` | the conversion of errors to failures, which can be sent |

mod arguments;
mod batches;
mod executor;
mod failure;
mod function;
mod handles;
mod kept;
mod program;
mod registry;
mod worker;

pub use arguments::{Arg, Args, Param, Params, Resource, Sender, Value};
#[doc(alias = "PerWorkerDistributedIterator")]
pub use batches::Batches;
pub use batches::IntoBatches;
pub use function::{Outcome, RemoteFunction};
#[doc(alias = "PerWorkerValues")]
pub use handles::PerWorker;
#[doc(alias = "tf.distribute.experimental.coordinator.RemoteValue")]
pub use handles::RemoteValue;
pub(crate) use handles::{ResourceHandle, ValueHandle};
pub use program::RemoteProgram;
pub use worker::WorkerContext;
#[doc(alias = "tf.distribute.coordinator.experimental_get_current_worker_index")]
#[doc(alias = "experimental_get_current_worker_index")]
pub use worker::current_worker_index;

#[doc(inline)]
pub use distribute_coordinator::FunctionId;

/// Returns the remote functions of this program, sorted by name. A function that returns a dataset is listed
/// twice: once as a function that returns a value, and once as one whose batches are kept.
///
/// # Errors
/// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): two functions have the same name.
pub fn functions() -> distribute_base::Result<Vec<FunctionId>> {
    Ok(registry::Registry::of_program()?.ids())
}

/// The items that the code of the attribute uses.
#[doc(hidden)]
pub mod expanded {
    pub use super::registry::{Entry, Kinds, OfAnyKind};
    pub use inventory;
}
