//! Candle variables whose values a checkpoint copies while the program continues.

use candle_core::{Layout, Storage, Var};
use distribute_checkpoint::{HeldTensors, LiveTensors, SourceError};
use distribute_tensor::HostTensor;
use std::ops::Deref;

/// A candle variable in CPU memory.
///
/// A save holds the variable by locking its storage for reading. All writes then wait: those of optimizers, of
/// `assign`, and of the program by `Var::set`.
pub(super) struct LiveVar(pub(super) Var);

impl LiveTensors for LiveVar {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        let (storage, layout) = self.0.storage_and_layout();
        Ok(Box::new(HeldVar { storage, layout }))
    }
}

/// A variable that is being held. `storage` is the guard of its storage; candle does not export the type of this guard.
struct HeldVar<'a, G> {
    storage: G,
    layout: &'a Layout,
}

impl<G: Deref<Target = Storage>> HeldTensors for HeldVar<'_, G> {
    fn copy(&self, _index: usize) -> Result<HostTensor, SourceError> {
        Ok(HostTensor::from_candle_storage(&self.storage, self.layout)?)
    }
}
