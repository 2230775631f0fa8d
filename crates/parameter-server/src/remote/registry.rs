//! The registry of this program's remote functions. Functions are registered before `main` runs.

use super::arguments::{Lookup, Params};
use super::batches::{DatasetPosition, IntoBatches, Resumable};
use super::failure;
use super::function::RemoteFunction;
use super::kept_value::KeptValue;
use super::worker::WorkerContext;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::{Argument, Failure, FailureKind, FunctionId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

/// The prefix that is added to a function's name for the variant that keeps its dataset on the worker, as batches.
pub(super) const DATASET_OF: &str = "dataset of ";

/// The inputs of a remote function's call on a worker.
#[doc(hidden)]
pub struct CallArgs<'a> {
    pub(super) worker: &'a WorkerContext,
    pub(super) arguments: &'a [Argument],
    pub(super) resources: &'a dyn Lookup,
}

/// A function that runs a call and encodes the result. Its second argument is the maximum size of the result in bytes.
type EncodeResult = fn(&CallArgs<'_>, usize) -> Result<Bytes, Failure>;
/// A function that runs a call and keeps the result.
type MakeResource = fn(&CallArgs<'_>) -> Result<KeptValue, Failure>;
/// A function that runs a call and keeps the resulting dataset as batches, which begin at the given position.
type MakeDataset = fn(&CallArgs<'_>, Option<&Bytes>) -> Result<KeptValue, Failure>;

/// A registered remote function.
#[doc(hidden)]
pub struct Entry {
    name: &'static str,
    source: u64,
    /// The file and line of the function's definition.
    at: (&'static str, u32),
    encode_result: Option<EncodeResult>,
    make_resource: Option<MakeResource>,
    make_dataset: Option<MakeDataset>,
}

inventory::collect!(Entry);

impl Entry {
    pub const fn new<F: RemoteFunction>(
        at: (&'static str, u32),
        (encode_result, make_resource, make_dataset): (
            Option<EncodeResult>,
            Option<MakeResource>,
            Option<MakeDataset>,
        ),
    ) -> Self {
        Self { name: F::NAME, source: F::SOURCE, at, encode_result, make_resource, make_dataset }
    }
}

/// The operations that a function's result supports, according to the traits of its type. Each constant is defined here
/// if the type implements the required traits; otherwise [`NoCapability`] provides it.
#[doc(hidden)]
pub struct Capabilities<F>(PhantomData<F>);

#[doc(hidden)]
pub trait NoCapability {
    const ENCODE_RESULT: Option<EncodeResult> = None;
    const MAKE_RESOURCE: Option<MakeResource> = None;
    const MAKE_DATASET: Option<MakeDataset> = None;
}

impl<F> NoCapability for Capabilities<F> {}

impl<F: RemoteFunction> Capabilities<F>
where
    F::Output: Serialize,
{
    pub const ENCODE_RESULT: Option<EncodeResult> = Some(|args, limit| encode(&run::<F>(args)?, limit));
}

impl<F: RemoteFunction> Capabilities<F>
where
    F::Output: Send + Sync,
{
    pub const MAKE_RESOURCE: Option<MakeResource> =
        Some(|args| Ok(KeptValue::new(Arc::new(run::<F>(args)?))));
}

impl<F: RemoteFunction> Capabilities<F>
where
    F::Output: IntoBatches,
{
    pub const MAKE_DATASET: Option<MakeDataset> = Some(|args, position| {
        let made = run::<F>(args)?;
        let fail = |error: Error| failure::from_error(&error, args.worker);
        let batches = Arc::new(made.into_batches(args.worker.strategy()).map_err(fail)?);
        if let Some(position) = position {
            DatasetPosition::decode(position).and_then(|at| batches.resume_at(at)).map_err(fail)?;
        }
        Ok(KeptValue::dataset(batches))
    });
}

/// Decodes the arguments and calls the function. Returns its result.
fn run<F: RemoteFunction>(args: &CallArgs<'_>) -> Result<F::Output, Failure> {
    let held = F::Params::decode(args.arguments, args.resources)?;
    F::call(args.worker, held).map_err(|error| failure::from_error(&error, args.worker))
}

/// Encodes a result. Returns a failure if it is larger than `limit` bytes.
fn encode(value: &impl Serialize, limit: usize) -> Result<Bytes, Failure> {
    struct Limited {
        bytes: Vec<u8>,
        limit: usize,
        is_full: bool,
    }

    impl io::Write for Limited {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > self.limit - self.bytes.len() {
                self.is_full = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut limited = Limited { bytes: Vec::new(), limit, is_full: false };
    let result = postcard::to_io(value, &mut limited).map(drop);
    match result {
        Ok(()) => Ok(Bytes::from(limited.bytes)),
        Err(_) if limited.is_full => {
            let text = format!(
                "its result exceeds the limit of {limit} bytes; return less, or write it to a file that all tasks can read"
            );
            Err(Failure::new(FailureKind::TooLarge, text))
        }
        Err(error) => Err(Failure::new(FailureKind::Function, format!("its result cannot be sent: {error}"))),
    }
}

/// A function that creates a value to be kept.
pub(super) enum Maker {
    Value(MakeResource),
    Batches(MakeDataset),
}

impl Maker {
    /// Creates the value. A dataset begins at `position`.
    pub(super) fn make(&self, args: &CallArgs<'_>, position: Option<&Bytes>) -> Result<KeptValue, Failure> {
        match self {
            Maker::Value(make_resource) => make_resource(args),
            Maker::Batches(make_dataset) => make_dataset(args, position),
        }
    }
}

/// The remote functions of a program, by name.
pub(super) struct Registry(BTreeMap<&'static str, &'static Entry>);

impl Registry {
    /// Returns the registry of this program's functions.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: two functions have the same name.
    pub(super) fn of_program() -> Result<Self> {
        Self::of(inventory::iter::<Entry>())
    }

    fn of(entries: impl IntoIterator<Item = &'static Entry>) -> Result<Self> {
        let mut all = BTreeMap::new();
        for entry in entries {
            if let Some(other) = all.insert(entry.name, entry) {
                let ((file, line), (first_file, first_line)) = (entry.at, other.at);
                let reason = format!(
                    "two functions have the name {}, at {first_file}:{first_line} and {file}:{line}, inside functions \
                     of one module; rename one, because workers find functions by name",
                    entry.name
                );
                return Err(Error::invalid("#[distribute::remote]", reason));
            }
        }
        Ok(Self(all))
    }

    /// Returns the identifiers of all functions, in sorted order.
    pub(super) fn ids(&self) -> Vec<FunctionId> {
        let mut ids = Vec::new();
        for Entry { name, source, make_dataset, .. } in self.0.values() {
            ids.push(FunctionId { name: (*name).into(), source: *source });
            if make_dataset.is_some() {
                ids.push(FunctionId { name: format!("{DATASET_OF}{name}"), source: *source });
            }
        }
        ids.sort_unstable();
        ids
    }

    /// Returns the function that makes a call and encodes its result.
    pub(super) fn encoder(&self, id: &FunctionId) -> Result<EncodeResult, Failure> {
        let encode_result = self.find(id, &id.name)?.encode_result;
        encode_result.ok_or_else(|| {
            unsuitable(id, "its result does not implement serde::Serialize, so it can be kept but not sent")
        })
    }

    /// Returns the function that makes a call and keeps its result on the worker.
    pub(super) fn maker(&self, id: &FunctionId) -> Result<Maker, Failure> {
        match id.name.strip_prefix(DATASET_OF) {
            Some(name) => {
                let make_dataset = self.find(id, name)?.make_dataset.map(Maker::Batches);
                make_dataset.ok_or_else(|| unsuitable(id, "it does not return a dataset"))
            }
            None => {
                let make_resource = self.find(id, &id.name)?.make_resource.map(Maker::Value);
                make_resource
                    .ok_or_else(|| unsuitable(id, "its result is not Send and Sync, so it cannot be kept"))
            }
        }
    }

    fn find(&self, id: &FunctionId, name: &str) -> Result<&'static Entry, Failure> {
        let fail = |text: String| Err(Failure::new(FailureKind::UnknownFunction, text));
        match self.0.get(name) {
            Some(entry) if entry.source == id.source => Ok(entry),
            Some(Entry { at: (file, line), .. }) => fail(format!(
                "the worker's program has a different {name} than the coordinator's, at {file}:{line}: start all \
                 tasks from one build"
            )),
            None => fail(format!(
                "the worker's program has no remote function {name}; it has {}: start all tasks from one build",
                self.0.len()
            )),
        }
    }
}

fn unsuitable(id: &FunctionId, text: &str) -> Failure {
    Failure::new(FailureKind::UnknownFunction, format!("{id}: {text}"))
}
