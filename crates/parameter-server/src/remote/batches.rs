//! A dataset of one worker, of which its calls take one batch after another.

use crate::strategy::ParameterServerStrategy;
use bytes::Bytes;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_core::{DistributedDataset, DistributedIterator, PerReplica};
use distribute_data::Dataset;
use distribute_data::Position;
use distribute_tensor::Nest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Mutex;

/// The batches of a dataset that a worker has made for itself, by a function given to `create_per_worker_dataset`: a parameter
/// `&Batches<T>` of other remote functions.
///
/// Each call takes the batches that follow those of the calls before it on this worker; other workers have batches of their own. Where
/// a worker is lost, the one that takes its place goes on behind the last batch whose call has ended.
///
/// ```
/// # use distribute::prelude::*;
/// # use distribute::remote::{Batches, WorkerContext};
/// #[distribute::remote]
/// fn sum(worker: &WorkerContext, data: &Batches<HostTensor>) -> distribute::Result<i64> {
///     let batch = data.next()?; // a piece for each replica of this worker
///     let sums = worker.strategy().run(batch, |_ctx, piece| Ok(piece.to_vec::<i64>()?.iter().sum::<i64>()))?;
///     Ok(sums.values().iter().sum())
/// }
/// ```
#[doc(alias = "PerWorkerDistributedIterator")]
pub struct Batches<T> {
    data: DistributedDataset<T>,
    pass: Mutex<Pass<T>>,
}

enum Pass<T> {
    /// To be begun, at the position of the dataset.
    Next,
    Running(Box<DistributedIterator<T>>),
    Ended,
}

/// Where batches are to be taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Stand {
    position: Position,
    /// Whether the pass is at its end; the position is then the beginning of the next one.
    has_ended: bool,
}

/// Batches of any type, as a worker sees them that is asked where they are.
pub(super) trait Positioned: Send + Sync {
    fn stand(&self) -> Stand;

    /// Goes on where it stood.
    fn go_on(&self, at: Stand) -> Result<()>;
}

impl<T: Nest> Batches<T> {
    /// Those of a dataset of the worker's strategy.
    pub(super) fn new(data: DistributedDataset<T>) -> Self {
        Self { data, pass: Mutex::new(Pass::Next) }
    }

    /// The next batch, as a piece for each replica of this worker.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] at the end of the pass, and again in each call until [`begin`](Self::begin); [`Error::WrongContext`]
    /// inside of `run`; those of the dataset: the next call goes on behind the last batch that was taken.
    #[doc(alias = "get_next")]
    #[track_caller]
    pub fn next(&self) -> Result<PerReplica<T>> {
        self.take()?.ok_or(Error::OutOfRange { operation: "Batches::next" })
    }

    /// The next batch; `None` at the end of the pass.
    ///
    /// # Errors
    /// Those of [`next`](Self::next) but for the end.
    #[doc(alias = "get_next_as_optional")]
    #[track_caller]
    pub fn next_or_end(&self) -> Result<Option<PerReplica<T>>> {
        self.take()
    }

    #[track_caller]
    fn take(&self) -> Result<Option<PerReplica<T>>> {
        let mut pass = lock(&self.pass);
        let mut iterator = match std::mem::replace(&mut *pass, Pass::Next) {
            Pass::Next => Box::new(self.data.iter()),
            Pass::Running(iterator) => iterator,
            Pass::Ended => {
                *pass = Pass::Ended;
                return Ok(None);
            }
        };
        let taken = iterator.get_next_as_optional();
        match &taken {
            Ok(Some(_)) => *pass = Pass::Running(iterator),
            Ok(None) => *pass = Pass::Ended,
            // A pass is over after an error: another one goes on there.
            Err(_) => self.data.resume(DistributedIterator::position(&iterator))?,
        }
        taken
    }

    /// Begins the next pass, that of the next epoch: at the end of one, or in the middle of one that is left. Of a pass of which nothing
    /// has been taken it is the beginning.
    pub fn begin(&self) {
        let mut pass = lock(&self.pass);
        match &*pass {
            // The dataset stands at the next one already.
            Pass::Ended => *pass = Pass::Next,
            _ if self.data.position().steps == 0 => (),
            left => {
                if matches!(left, Pass::Next) {
                    drop(self.data.iter());
                }
                *pass = Pass::Running(Box::new(self.data.iter()));
            }
        }
    }

    /// The position of the pass, behind the last batch that was taken; at its end that at which the next one begins.
    pub fn position(&self) -> Position {
        self.data.position()
    }

    /// Which batches there are and who gets which piece of one.
    pub fn explain(&self) -> String {
        self.data.explain()
    }
}

impl<T: Nest> Positioned for Batches<T> {
    fn stand(&self) -> Stand {
        let pass = lock(&self.pass);
        let mut position = self.data.position();
        // A position is sent with every call: of the files it tells whether they are others, and not which.
        position.files = position.files.map(|files| files.brief());
        Stand { position, has_ended: matches!(*pass, Pass::Ended) }
    }

    fn go_on(&self, at: Stand) -> Result<()> {
        let mut pass = lock(&self.pass);
        self.data.resume(at.position)?;
        *pass = if at.has_ended { Pass::Ended } else { Pass::Next };
        Ok(())
    }
}

impl Stand {
    /// As it has come.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for bytes that are none.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong =
            |error| Error::invalid("Batches", format!("the position of a dataset cannot be read: {error}"));
        postcard::from_bytes(bytes).map_err(wrong)
    }

    /// As it travels.
    pub(super) fn encode(&self) -> Result<Bytes> {
        let bytes = postcard::to_stdvec(self);
        bytes.map(Bytes::from).map_err(|error| Error::invalid("Batches", error.to_string()))
    }
}

impl<T: Nest> fmt::Debug for Batches<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batches({}) of {:?}", self.position(), self.data)
    }
}

/// What a function given to `create_per_worker_dataset` returns: a [`Dataset`] of batches, of which each replica of the worker gets a
/// piece, or a [`DistributedDataset`] of the worker's strategy.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no dataset",
    note = "a function for create_per_worker_dataset returns a `Dataset` or a `DistributedDataset` of the worker's strategy"
)]
pub trait IntoBatches: 'static {
    /// What an element has.
    type Element: Nest;

    #[doc(hidden)]
    fn into_batches(self, strategy: &ParameterServerStrategy) -> Result<Batches<Self::Element>>;
}

impl<T: Nest + 'static> IntoBatches for Dataset<T> {
    type Element = T;

    fn into_batches(self, strategy: &ParameterServerStrategy) -> Result<Batches<T>> {
        strategy.distribute_dataset(self)?.into_batches(strategy)
    }
}

impl<T: Nest + 'static> IntoBatches for DistributedDataset<T> {
    type Element = T;

    fn into_batches(self, strategy: &ParameterServerStrategy) -> Result<Batches<T>> {
        if !self.is_of(strategy) {
            let reason =
                "the dataset belongs to another strategy than the worker's; make it with worker.strategy()";
            return Err(Error::invalid("create_per_worker_dataset", reason));
        }
        Ok(Batches::new(self))
    }
}
