//! [`Batches`]: the dataset of one worker, from which calls take one batch after another.

use crate::strategy::ParameterServerStrategy;
use bytes::Bytes;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_core::{DistributedDataset, DistributedIterator};
use distribute_data::Dataset;
use distribute_data::Position;
use distribute_tensor::Nest;
use distribute_values::PerReplica;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Mutex;

/// The batches of a dataset that `create_per_worker_dataset` has created on a worker. Remote functions take them as a
/// parameter `&Batches<T>`.
///
/// Each call gets the batches after those of earlier calls on the same worker. Every worker has its own batches. After
/// a worker has disconnected and reconnected, it resumes after the last batch whose call has finished.
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
    /// The pass has not begun. It will begin at the dataset's position.
    Next,
    Running(Box<DistributedIterator<T>>),
    Ended,
}

/// A position in the batches of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DatasetPosition {
    position: Position,
    /// Whether the pass has ended. If so, `position` is the beginning of the next pass.
    has_ended: bool,
}

/// Batches of any element type, whose position can be reported and restored.
pub(super) trait Resumable: Send + Sync {
    fn dataset_position(&self) -> DatasetPosition;

    /// Resumes at the position `at`. Abandons the current pass.
    fn resume_at(&self, at: DatasetPosition) -> Result<()>;
}

impl<T: Nest> Batches<T> {
    /// Creates the batches from a dataset that belongs to the worker's strategy.
    pub(super) fn new(data: DistributedDataset<T>) -> Self {
        Self { data, pass: Mutex::new(Pass::Next) }
    }

    /// Returns the next batch, as one per-replica batch for each replica of this worker.
    ///
    /// After an error of the dataset, the next call resumes after the last batch that was returned.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`]: the pass has ended. Every call returns this error until
    ///   [`begin`](Self::begin) is called.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - The errors of the dataset.
    #[doc(alias = "get_next")]
    #[track_caller]
    pub fn next(&self) -> Result<PerReplica<T>> {
        self.take()?.ok_or(Error::OutOfRange { operation: "Batches::next" })
    }

    /// Returns the next batch, or `None` at the end of the pass.
    ///
    /// # Errors
    /// Returns the errors of [`next`](Self::next), except for the end of the pass.
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
        let taken = iterator.next().transpose();
        match &taken {
            Ok(Some(_)) => *pass = Pass::Running(iterator),
            Ok(None) => *pass = Pass::Ended,
            // A pass is over after an error: another one resumes there.
            Err(_) => self.data.resume(DistributedIterator::position(&iterator))?,
        }
        taken
    }

    /// Begins the next pass, which is the next epoch. Abandons the current pass if it has not ended. Does
    /// nothing if no batch of the current pass has been returned.
    pub fn begin(&self) {
        let mut pass = lock(&self.pass);
        match &*pass {
            // The dataset is already at the beginning of the next pass.
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

    /// Returns the position after the last batch that was returned. At the end of a pass, this is the
    /// beginning of the next pass.
    pub fn position(&self) -> Position {
        self.data.position()
    }

    /// Returns a description of how batches are split over the replicas, for logs and messages.
    pub fn explain(&self) -> String {
        self.data.explain()
    }
}

impl<T: Nest> Resumable for Batches<T> {
    fn dataset_position(&self) -> DatasetPosition {
        let pass = lock(&self.pass);
        let mut position = self.data.position();
        // A position is sent with every call, so it has only a digest of the files: enough to notice other
        // files, but not to list them.
        position.files = position.files.map(|files| files.brief());
        DatasetPosition { position, has_ended: matches!(*pass, Pass::Ended) }
    }

    fn resume_at(&self, at: DatasetPosition) -> Result<()> {
        let mut pass = lock(&self.pass);
        self.data.resume(at.position)?;
        *pass = if at.has_ended { Pass::Ended } else { Pass::Next };
        Ok(())
    }
}

impl DatasetPosition {
    /// Decodes a position from bytes.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the bytes are not a position.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong =
            |error| Error::invalid("Batches", format!("the position of a dataset cannot be read: {error}"));
        postcard::from_bytes(bytes).map_err(wrong)
    }

    /// Encodes a position as bytes.
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

/// The return type of a function for `create_per_worker_dataset`: a [`Dataset`] of batches, which are split
/// over the worker's replicas, or a [`DistributedDataset`] of the worker's strategy.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dataset",
    note = "a function for create_per_worker_dataset returns a `Dataset` or a `DistributedDataset` of the worker's strategy"
)]
pub trait IntoBatches: 'static {
    /// The type of an element.
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
                "the dataset belongs to another strategy than the worker's; create it with worker.strategy()";
            return Err(Error::invalid("create_per_worker_dataset", reason));
        }
        Ok(Batches::new(self))
    }
}
