//! The macros of `distribute`, which re-exports them: `#[derive(Nest)]`, `#[distribute::main]` and
//! `#[distribute::remote]`.
//!
//! | module | expands |
//! |---|---|
//! | `nest` | `#[derive(Nest)]`: a struct as a nested structure of tensors |
//! | `entry` | `#[distribute::main]`: setup before any thread starts |
//! | `remote` | `#[distribute::remote]`: a function that workers run for a coordinator |
//! | `source` | the hash of a function's source |
//!
//! Each module is a function from syntax to tokens or an error, and is tested as a function. The macros only call these
//! functions.

#![forbid(unsafe_code)]

mod entry;
mod nest;
mod remote;
mod source;

use proc_macro::TokenStream;

/// Derives `Nest` for a struct, so that `run`, `reduce`, `gather` and datasets accept and return it like a tuple.
///
/// Named fields become a map keyed by field name, and the fields of a tuple struct become a tuple. Each field must be a
/// nest. An enum is a compile-time error, because all replicas need the same structure.
///
/// ```
/// # use distribute_tensor as distribute;
/// use distribute::{HostTensor, Nest};
/// # use distribute_macros::Nest;
///
/// #[derive(Nest, Clone, Debug, PartialEq)]
/// # #[nest(crate = distribute_tensor)]
/// struct Batch {
///     images: HostTensor,
///     labels: HostTensor,
/// }
///
/// let batch = Batch { images: HostTensor::vector(vec![0.5f32, 1.0]), labels: HostTensor::vector(vec![7u8, 9]) };
/// assert_eq!(distribute::nest::rows(batch.clone())?, 2);
/// assert_eq!(Batch::from_tree(batch.clone().into_tree())?, batch);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// If the struct itself is passed to `run` or `update`, all replicas get the same struct. Its fields are not
/// distributed separately, so use a `PerReplica` of the struct to pass different values to each replica.
///
/// Code that depends only on the tensor crate, and not on `distribute`, needs `#[nest(crate = distribute_tensor)]`.
/// Such a struct can be passed to `run` only in a `PerReplica`.
#[proc_macro_derive(Nest, attributes(nest))]
pub fn derive_nest(input: TokenStream) -> TokenStream {
    expand(syn::parse(input).and_then(nest::expand))
}

/// Marks the main function of a program that uses `distribute`. The function then calls `distribute::init()` before
/// anything else, while the process still has a single thread. Later, candle's own threads can no longer be limited.
/// With candle's default settings, two replicas run several times slower. A program that creates its strategy before it
/// starts a thread does not need the attribute.
///
/// If the function returns `Error::UnusedSpare`, as it is or as the source of another error, the process exits with 0.
///
/// ```ignore
/// #[distribute::main]
/// fn main() -> distribute::Result<()> {
///     Ok(())
/// }
/// ```
///
/// `#[distribute::main(allocator = mimalloc::MiMalloc)]` also sets the program's `#[global_allocator]`, to any unit
/// struct that implements [`GlobalAlloc`](std::alloc::GlobalAlloc). candle allocates a tensor for each operation, so
/// small models are faster with a faster allocator. The program must depend on the allocator's crate (`cargo add
/// mimalloc`), and can have only one allocator.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(syn::parse(item).and_then(|function| entry::expand(arguments.into(), function)))
}

/// Makes a function callable by a coordinator, which runs it on its workers. All tasks of a job run the same program,
/// and find the function by its name.
///
/// ```text
/// #[distribute::remote]
/// fn train_step(worker: &WorkerContext, model: &Model, data: &Batches<Batch>, scale: f32) -> Result<f32> {
///     …
/// }
///
/// coordinator.schedule(train_step, (&model, &data, 0.5))?;
/// ```
///
/// The first parameter is the worker that runs the function. A further parameter of type `&T` is a value that the
/// worker keeps, which another remote function has created there. A parameter of any other type is sent to the worker,
/// and must implement serde's `Serialize` and `Deserialize`. The function returns a `Result`, whose error is converted
/// to a `distribute::Error`.
///
/// `train_step` becomes a type with a single value of the same name. The value can be called like the function, is
/// passed to a coordinator, and implements `RemoteFunction`. A hash of the source code is sent with the name, so a
/// worker rejects calls from a different version of the program. The hash does not cover functions that the remote
/// function calls.
#[proc_macro_attribute]
pub fn remote(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(syn::parse(item).and_then(|function| remote::expand(arguments.into(), function)))
}

fn expand(result: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    result.unwrap_or_else(syn::Error::into_compile_error).into()
}
