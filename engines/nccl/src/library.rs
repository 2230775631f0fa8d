//! The operations of NCCL that the tests can replace.

use crate::CallError;
use crate::offer::{Gpu, UniqueId};
use distribute_net::Number;

/// The NCCL library of one worker, on its GPU. No call waits for another worker: long operations are polled.
pub(crate) trait Library: Send {
    /// Returns the release, as returned by `ncclGetVersion`.
    fn release(&self) -> i32;

    /// Returns the UUID of the GPU.
    fn gpu(&self) -> Result<Gpu, CallError>;

    /// Creates a new id for a communicator, by which its workers find each other.
    fn unique_id(&self) -> Result<UniqueId, CallError>;

    /// Starts to link this worker with the other workers of the communicator `id`.
    fn link(&mut self, id: UniqueId, worker: usize, workers: usize) -> Result<(), CallError>;

    /// Returns whether the workers are linked. Returns an error if linking has failed.
    fn is_linked(&mut self) -> Result<bool, CallError>;

    /// Returns the maximum length in bytes of a vector for which the GPU has enough free memory.
    fn room(&self) -> usize;

    /// Starts to sum the vectors of all workers. `vector` is this worker's, and `number` is the type of its elements.
    fn begin(&mut self, vector: &[u8], number: Number) -> Result<(), CallError>;

    /// Returns the sum if it is complete, and otherwise `None`. Returns an error if the operation has failed.
    fn sum(&mut self) -> Result<Option<Vec<u8>>, CallError>;

    /// Aborts the communicator and its current operation, if there are any.
    fn abort(&mut self);
}
