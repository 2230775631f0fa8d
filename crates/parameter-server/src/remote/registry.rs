//! The functions of this program, which are registered before `main`.

use super::arguments::{Lookup, Params};
use super::batches::{IntoBatches, Positioned, Stand};
use super::failure;
use super::function::RemoteFunction;
use super::kept::Kept;
use super::worker::WorkerContext;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::{Argument, Failure, FailureKind, FunctionId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

/// The prefix of a function's name if its dataset is kept as batches, which calls take one after another.
pub(super) const DATASET_OF: &str = "dataset of ";

/// The input of a call.
#[doc(hidden)]
pub struct Given<'a> {
    pub(super) worker: &'a WorkerContext,
    pub(super) arguments: &'a [Argument],
    pub(super) kept: &'a dyn Lookup,
}

/// A function that runs a call and encodes the result, up to a maximum size in bytes.
type Send = fn(&Given<'_>, usize) -> Result<Bytes, Failure>;
/// A function that runs a call and keeps the result.
type Keep = fn(&Given<'_>) -> Result<Kept, Failure>;
/// A function that runs a call and keeps the resulting dataset as batches, from a position on.
type Deal = fn(&Given<'_>, Option<&Bytes>) -> Result<Kept, Failure>;

/// A registered function.
#[doc(hidden)]
pub struct Entry {
    name: &'static str,
    source: u64,
    /// The file and line of its definition.
    at: (&'static str, u32),
    send: Option<Send>,
    keep: Option<Keep>,
    deal: Option<Deal>,
}

inventory::collect!(Entry);

impl Entry {
    pub const fn new<F: RemoteFunction>(
        at: (&'static str, u32),
        (send, keep, deal): (Option<Send>, Option<Keep>, Option<Deal>),
    ) -> Self {
        Self { name: F::NAME, source: F::SOURCE, at, send, keep, deal }
    }
}

/// The operations on the result of a function, selected by the traits of its type. Each of these constants is
/// found here if the type has the trait, and at [`OfAnyKind`] otherwise.
#[doc(hidden)]
pub struct Kinds<F>(PhantomData<F>);

#[doc(hidden)]
pub trait OfAnyKind {
    const SENT: Option<Send> = None;
    const KEPT: Option<Keep> = None;
    const DEALT: Option<Deal> = None;
}

impl<F> OfAnyKind for Kinds<F> {}

impl<F: RemoteFunction> Kinds<F>
where
    F::Output: Serialize,
{
    pub const SENT: Option<Send> = Some(|given, limit| encode(&run::<F>(given)?, limit));
}

impl<F: RemoteFunction> Kinds<F>
where
    F::Output: std::marker::Send + Sync,
{
    pub const KEPT: Option<Keep> = Some(|given| Ok(Kept::new(Arc::new(run::<F>(given)?))));
}

impl<F: RemoteFunction> Kinds<F>
where
    F::Output: IntoBatches,
{
    pub const DEALT: Option<Deal> = Some(|given, position| {
        let made = run::<F>(given)?;
        let fail = |error: Error| failure::of(&error, given.worker);
        let batches = Arc::new(made.into_batches(given.worker.strategy()).map_err(fail)?);
        if let Some(position) = position {
            Stand::decode(position).and_then(|stand| batches.go_on(stand)).map_err(fail)?;
        }
        Ok(Kept::positioned(batches))
    });
}

/// Decodes the arguments and calls the function.
fn run<F: RemoteFunction>(given: &Given<'_>) -> Result<F::Output, Failure> {
    let held = F::Params::decode(given.arguments, given.kept)?;
    F::call(given.worker, held).map_err(|error| failure::of(&error, given.worker))
}

/// Encodes a result of at most `limit` bytes.
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
                "its result has more than the {limit} bytes that can be sent; return less, or write it to a file that all can read"
            );
            Err(Failure::new(FailureKind::TooLarge, text))
        }
        Err(error) => Err(Failure::new(FailureKind::Function, format!("its result cannot be sent: {error}"))),
    }
}

/// The way to create a value that is kept.
pub(super) enum Make {
    Value(Keep),
    Batches(Deal),
}

impl Make {
    /// Creates the value; a dataset begins at `position`.
    pub(super) fn make(&self, given: &Given<'_>, position: Option<&Bytes>) -> Result<Kept, Failure> {
        match self {
            Make::Value(keep) => keep(given),
            Make::Batches(deal) => deal(given, position),
        }
    }
}

/// The functions of a program, by name.
pub(super) struct Registry(BTreeMap<&'static str, &'static Entry>);

impl Registry {
    /// Returns the functions of this program.
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
                    "two functions are called {}, at {first_file}:{first_line} and {file}:{line}, within functions of one module; \
                     give one another name, since workers find them by it",
                    entry.name
                );
                return Err(Error::invalid("#[distribute::remote]", reason));
            }
        }
        Ok(Self(all))
    }

    /// Returns the identifiers of all functions, sorted.
    pub(super) fn ids(&self) -> Vec<FunctionId> {
        let mut ids = Vec::new();
        for Entry { name, source, deal, .. } in self.0.values() {
            ids.push(FunctionId { name: (*name).into(), source: *source });
            if deal.is_some() {
                ids.push(FunctionId { name: format!("{DATASET_OF}{name}"), source: *source });
            }
        }
        ids.sort_unstable();
        ids
    }

    /// Returns the operation that runs a function and sends its result.
    pub(super) fn sends(&self, id: &FunctionId) -> Result<Send, Failure> {
        let send = self.find(id, &id.name)?.send;
        send.ok_or_else(|| unfit(id, "its result has no serde::Serialize, so it can be kept and not sent"))
    }

    /// Returns the operation that runs a function and keeps its result.
    pub(super) fn makes(&self, id: &FunctionId) -> Result<Make, Failure> {
        match id.name.strip_prefix(DATASET_OF) {
            Some(name) => {
                let deal = self.find(id, name)?.deal.map(Make::Batches);
                deal.ok_or_else(|| unfit(id, "it returns no dataset"))
            }
            None => {
                let keep = self.find(id, &id.name)?.keep.map(Make::Value);
                keep.ok_or_else(|| unfit(id, "what it returns is not Send and Sync, so it cannot be kept"))
            }
        }
    }

    fn find(&self, id: &FunctionId, name: &str) -> Result<&'static Entry, Failure> {
        let fail = |text: String| Err(Failure::new(FailureKind::UnknownFunction, text));
        match self.0.get(name) {
            Some(entry) if entry.source == id.source => Ok(entry),
            Some(Entry { at: (file, line), .. }) => fail(format!(
                "the worker's program has another {name} than the coordinator's, at {file}:{line}: start all tasks from one build"
            )),
            None => fail(format!(
                "the worker's program has no remote function {name}, and has {}: start all tasks from one build",
                self.0.len()
            )),
        }
    }
}

fn unfit(id: &FunctionId, text: &str) -> Failure {
    Failure::new(FailureKind::UnknownFunction, format!("{id}: {text}"))
}
