//! What is asked of NCCL: so much as the tests can play.

use crate::CallError;
use crate::offer::{Gpu, UniqueId};
use distribute_net::Number;

/// One worker's NCCL, on its GPU. No call waits for another worker: what takes time is asked for again and again.
pub(crate) trait Library: Send {
    /// Which release it is, as `ncclGetVersion` says it.
    fn release(&self) -> i32;

    /// The GPU.
    fn gpu(&self) -> Result<Gpu, CallError>;

    /// A new name for a communicator, by which its workers find each other.
    fn unique_id(&self) -> Result<UniqueId, CallError>;

    /// Begins to link the workers of a communicator.
    fn link(&mut self, id: UniqueId, worker: usize, workers: usize) -> Result<(), CallError>;

    /// Whether that has ended.
    fn is_linked(&mut self) -> Result<bool, CallError>;

    /// How many bytes the GPU has room for.
    fn room(&self) -> usize;

    /// Begins to sum vectors.
    fn begin(&mut self, vector: &[u8], number: Number) -> Result<(), CallError>;

    /// The sum, when it is there.
    fn sum(&mut self) -> Result<Option<Vec<u8>>, CallError>;

    /// Gives up the communicator, and what it is doing.
    fn abort(&mut self);
}
