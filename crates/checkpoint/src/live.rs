//! Tensors that the program changes while it runs, and that hold off changes while a save copies them.

use distribute_tensor::HostTensor;
use std::sync::Arc;

/// An error of a source of tensors.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Tensors that the program changes while it runs, behind one lock: the weights of a layer, for example.
///
/// A save in the background needs the values at the time of its call. It holds the tensors, copies them while the
/// program continues, and then releases them. A change of any of them waits until all of them have been copied. The
/// program needs no other synchronization with saves, because they use the tensors' own lock.
pub trait LiveTensors: Send + Sync {
    /// Returns a guard. Nothing can change the tensors until the guard is dropped.
    ///
    /// A caller may hold several `LiveTensors` at the same time, but each only once.
    ///
    /// # Errors
    /// Returns an error if the tensors are being changed and waiting for the end of the change could deadlock.
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError>;
}

/// Tensors that cannot change while this guard exists. See [`LiveTensors::hold`].
pub trait HeldTensors {
    /// Copies the tensor with the given index.
    ///
    /// # Errors
    /// Returns an error if there is no such tensor, or if it cannot be copied.
    fn copy(&self, index: usize) -> Result<HostTensor, SourceError>;
}

/// A tensor among [`LiveTensors`].
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) tensors: Arc<dyn LiveTensors>,
    pub(crate) index: usize,
}

impl Live {
    /// Returns the address of the [`LiveTensors`]. Tensors with the same address share a lock.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.tensors).cast::<()>().addr()
    }
}
