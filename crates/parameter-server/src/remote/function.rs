//! What `#[distribute::remote]` makes of a function.

use super::arguments::Params;
use super::batches::IntoBatches;
use super::registry::DATASET_OF;
use super::worker::WorkerContext;
use distribute_base::{Error, Result};
use distribute_coordinator::FunctionId;

/// A function that workers run for a coordinator, as a type: `#[distribute::remote]` implements it.
pub trait RemoteFunction: Copy + Send + Sync + 'static {
    /// Its path in the program.
    const NAME: &'static str;

    /// A hash of its source.
    const SOURCE: u64;

    /// Its parameters behind the worker, in a tuple: [`Resource<T>`](super::Resource) for a `&T`, [`Value<T>`](super::Value) for a `T`.
    type Params: Params;

    /// What it returns, if it doesn't fail.
    type Output: 'static;

    /// Calls it.
    ///
    /// # Errors
    /// Its own.
    fn call(worker: &WorkerContext, arguments: <Self::Params as Params>::Held) -> Result<Self::Output>;

    /// By what tasks call it.
    fn id() -> FunctionId {
        FunctionId { name: Self::NAME.into(), source: Self::SOURCE }
    }

    /// By what tasks call it to keep the dataset that it returns as [`Batches`](super::Batches).
    fn dataset_id() -> FunctionId
    where
        Self::Output: IntoBatches,
    {
        FunctionId { name: format!("{DATASET_OF}{}", Self::NAME), source: Self::SOURCE }
    }
}

/// What a remote function may return: a `Result` whose error becomes an [`Error`].
#[diagnostic::on_unimplemented(
    message = "a remote function cannot return `{Self}`",
    label = "not a `Result` whose error becomes a `distribute::Error`",
    note = "return a `distribute::Result<T>`; other errors become one by `map_err(distribute::Error::other)`"
)]
pub trait Outcome {
    /// What it has where it is no error.
    type Output: 'static;

    /// With this crate's error.
    ///
    /// # Errors
    /// The function's own.
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
