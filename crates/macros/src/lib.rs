//! The macros of `distribute`, which re-exports them: `#[derive(Nest)]`, `#[distribute::main]` and
//! `#[distribute::remote]`.
//!
//! | module | what it expands |
//! |---|---|
//! | `nest` | `#[derive(Nest)]`: a struct as a nested structure of tensors |
//! | `entry` | `#[distribute::main]`: what has to happen before any thread starts |
//! | `remote` | `#[distribute::remote]`: a function that workers run for a coordinator |
//! | `source` | the hash of a function's source |
//!
//! Each is a function from syntax to tokens or an error, tested as such; the macros themselves only call
//! them.

#![forbid(unsafe_code)]

mod entry;
mod nest;
mod remote;
mod source;

use proc_macro::TokenStream;

/// Makes a struct a nest: `run`, `reduce`, `gather` and datasets take and give it as they do tuples.
///
/// Named fields become a map by their names, the fields of a tuple struct a tuple; each has to be a nest
/// itself. An enum is refused: all replicas need one structure.
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
/// Given to `run` or `update` by itself, all replicas get the same struct; its fields are not told apart, so
/// what differs between replicas is a `PerReplica` of the struct.
///
/// Code that does not depend on `distribute` but on its tensor crate alone says so with
/// `#[nest(crate = distribute_tensor)]`. Such a struct is an argument of `run` as a `PerReplica` only.
#[proc_macro_derive(Nest, attributes(nest))]
pub fn derive_nest(input: TokenStream) -> TokenStream {
    expand(syn::parse(input).and_then(nest::expand))
}

/// Marks the main function of a program that uses `distribute`: calls `distribute::init()` before anything
/// else, while the process still has a single thread. That is when candle's own threads can be tamed; with
/// its default settings two replicas run several times slower. A program that makes its strategy before it
/// starts a thread needs no attribute.
///
/// ```ignore
/// #[distribute::main]
/// fn main() -> distribute::Result<()> {
///     Ok(())
/// }
/// ```
///
/// `#[distribute::main(allocator = mimalloc::MiMalloc)]` makes it the program's `#[global_allocator]` as
/// well: any unit struct that is a [`GlobalAlloc`](std::alloc::GlobalAlloc). candle allocates a tensor for
/// each operation, so small models are faster with a faster allocator. The program depends on the allocator's
/// crate itself (`cargo add mimalloc`), and a program has one allocator.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(syn::parse(item).and_then(|function| entry::expand(arguments.into(), function)))
}

/// Makes a function one that workers run for a coordinator. All tasks of a job run the same program, and find
/// the function by its name.
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
/// Its first parameter is the worker that runs it. Of the others, a `&T` is what the worker keeps, which
/// another remote function has made there; anything else is a value that travels, and has serde's `Serialize`
/// and `Deserialize`. It returns a `Result`, whose error becomes a `distribute::Error`.
///
/// `train_step` is then a type and its only value: it can be called as before, given to a coordinator, and
/// implements `RemoteFunction`. A hash of its source goes with its name, so that a worker refuses the calls
/// of another version. What it calls is not in the hash.
#[proc_macro_attribute]
pub fn remote(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(syn::parse(item).and_then(|function| remote::expand(arguments.into(), function)))
}

fn expand(result: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    result.unwrap_or_else(syn::Error::into_compile_error).into()
}
