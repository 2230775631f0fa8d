//! The macros of `distribute`, which re-exports them: `#[derive(Nest)]`, `#[distribute::main]` and
//! `#[distribute::remote]`.
//!
//! | module | what it expands |
//! |---|---|
//! | `nest` | `#[derive(Nest)]`: a struct as a nested structure of tensors |
//! | `entry` | `#[distribute::main]`: setup before any thread starts |
//! | `remote` | `#[distribute::remote]`: a function that workers run for a coordinator |
//! | `source` | the hash of a function's source |
//!
//! Each module is a function from syntax to tokens or an error, and is tested as such. The macros only call
//! these functions.

#![forbid(unsafe_code)]

mod entry;
mod nest;
mod remote;
mod source;

use proc_macro::TokenStream;

/// Derives `Nest` for a struct: `run`, `reduce`, `gather` and datasets accept and return it like a tuple.
///
/// Named fields become a map by their names, the fields of a tuple struct a tuple. Each field has to be a
/// nest. An enum gives an error, because all replicas need one structure.
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
/// If the struct itself is an argument of `run` or `update`, all replicas get the same struct. Its fields are
/// not distributed one by one, so different values for each replica need a `PerReplica` of the struct.
///
/// Code that depends only on the tensor crate, and not on `distribute`, needs
/// `#[nest(crate = distribute_tensor)]`. Such a struct is an argument of `run` only in a `PerReplica`.
#[proc_macro_derive(Nest, attributes(nest))]
pub fn derive_nest(input: TokenStream) -> TokenStream {
    expand(syn::parse(input).and_then(nest::expand))
}

/// Marks the main function of a program that uses `distribute`. It calls `distribute::init()` before anything
/// else, while the process still has a single thread. Only then can candle's own threads be limited. With
/// candle's default settings two replicas run several times slower. A program that makes its strategy before
/// it starts a thread needs no attribute.
///
/// ```ignore
/// #[distribute::main]
/// fn main() -> distribute::Result<()> {
///     Ok(())
/// }
/// ```
///
/// `#[distribute::main(allocator = mimalloc::MiMalloc)]` also sets the program's `#[global_allocator]`, to
/// any unit struct that is a [`GlobalAlloc`](std::alloc::GlobalAlloc). candle allocates a tensor for each
/// operation, so small models are faster with a faster allocator. The program has to depend on the
/// allocator's crate (`cargo add mimalloc`), and can have only one allocator.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(syn::parse(item).and_then(|function| entry::expand(arguments.into(), function)))
}

/// Makes a function callable by a coordinator, on its workers. All tasks of a job run the same program, and
/// find the function by its name.
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
/// The first parameter is the worker that runs the function. Another parameter `&T` is a value that the
/// worker keeps, made there by another remote function. Any other parameter is sent to the worker, and needs
/// serde's `Serialize` and `Deserialize`. The function returns a `Result`; its error becomes a
/// `distribute::Error`.
///
/// `train_step` becomes a type and its only value. It can be called as before, is passed to a coordinator,
/// and implements `RemoteFunction`. A hash of the source is sent with the name, so a worker refuses calls of
/// another version. The functions that it calls are not part of the hash.
#[proc_macro_attribute]
pub fn remote(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(syn::parse(item).and_then(|function| remote::expand(arguments.into(), function)))
}

fn expand(result: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    result.unwrap_or_else(syn::Error::into_compile_error).into()
}
