//! The traits that `#[distribute::remote]` implements for a function.

use super::arguments::Params;
use super::batches::IntoBatches;
use super::registry::DATASET_OF;
use super::worker::WorkerContext;
use distribute_base::{Error, Result};
use distribute_coordinator::FunctionId;

/// A function that workers run for a coordinator, as a type. It is implemented by `#[distribute::remote]`.
pub trait RemoteFunction: Copy + Send + Sync + 'static {
    /// The path of the function in the program.
    const NAME: &'static str;

    /// A hash of the function's source.
    const SOURCE: u64;

    /// The parameters after the worker, in a tuple: [`Resource<T>`](super::Resource) for a `&T`,
    /// [`Value<T>`](super::Value) for a `T`.
    type Params: Params;

    /// The type that the function returns if it succeeds.
    type Output: 'static;

    /// Calls the function.
    ///
    /// # Errors
    /// Returns the function's own errors.
    fn call(worker: &WorkerContext, arguments: <Self::Params as Params>::Held) -> Result<Self::Output>;

    /// Returns the name and source hash by which tasks call the function.
    fn id() -> FunctionId {
        FunctionId { name: Self::NAME.into(), source: Self::SOURCE }
    }

    /// Returns the identifier of the variant that keeps the returned dataset as [`Batches`](super::Batches).
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
    /// The type of the value if there is no error.
    type Output: 'static;

    /// Converts the error to an [`Error`].
    ///
    /// # Errors
    /// Returns the function's own errors.
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
