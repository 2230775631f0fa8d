//! The traits that `#[distribute::remote]` implements for a function.

use super::arguments::Params;
use super::batches::IntoBatches;
use super::registry::DATASET_OF;
use super::worker::WorkerContext;
use distribute_base::{Error, Result};
use distribute_coordinator::FunctionId;

/// A function that workers run for a coordinator, represented as a type. `#[distribute::remote]` implements this trait.
pub trait RemoteFunction: Copy + Send + Sync + 'static {
    /// The path of the function in the program, which workers use to find it.
    const NAME: &'static str;

    /// A hash of the function's source code, which detects programs of different versions.
    const SOURCE: u64;

    /// The parameters after the worker, as a tuple: [`Resource<T>`](super::Resource) for a parameter `&T`,
    /// and [`Value<T>`](super::Value) for a parameter `T`.
    type Params: Params;

    /// The type of the value that the function returns on success.
    type Output: 'static;

    /// Calls the function on this worker.
    ///
    /// # Errors
    /// Returns the error that the function returns.
    fn call(worker: &WorkerContext, arguments: <Self::Params as Params>::Decoded) -> Result<Self::Output>;

    /// Returns the name and the source hash of the function, which identify it on other tasks.
    fn id() -> FunctionId {
        FunctionId { name: Self::NAME.into(), source: Self::SOURCE }
    }

    /// Returns the identifier of the variant of this function that keeps the returned dataset on the worker, as
    /// [`Batches`](super::Batches).
    fn dataset_id() -> FunctionId
    where
        Self::Output: IntoBatches,
    {
        FunctionId { name: format!("{DATASET_OF}{}", Self::NAME), source: Self::SOURCE }
    }
}

/// The return type of a remote function: a `Result` whose error converts into an [`Error`].
#[diagnostic::on_unimplemented(
    message = "a remote function cannot return `{Self}`",
    label = "not a `Result` whose error becomes a `distribute::Error`",
    note = "return a `distribute::Result<T>`; other errors become one by `map_err(distribute::Error::other)`"
)]
pub trait Outcome {
    /// The type of the value on success.
    type Output: 'static;

    /// Returns the result with its error converted to an [`Error`].
    ///
    /// # Errors
    /// Returns the error that the function returned.
    fn into_result(self) -> Result<Self::Output>;
}

impl<T: 'static, E> Outcome for Result<T, E>
where
    Error: From<E>,
{
    type Output = T;

    fn into_result(self) -> Result<T> {
        Ok(self?)
    }
}
