//! Handles to resources and results, implemented for a coordinator.

use crate::remote::{ResourceHandle, Sender, ValueHandle};
use bytes::Bytes;
use distribute_base::Result;
use distribute_coordinator::{Coordinator, ResourceId, ResultHandle};
use std::sync::Arc;
use std::time::Duration;

/// A coordinator's handle to a resource. When it is dropped, the workers drop their values.
pub(super) struct CoordinatorResource {
    pub id: ResourceId,
    pub sender: Sender,
    pub coordinator: Arc<Coordinator>,
}

impl ResourceHandle for CoordinatorResource {
    fn id(&self) -> ResourceId {
        self.id
    }

    fn sender(&self) -> Sender {
        self.sender
    }
}

impl Drop for CoordinatorResource {
    fn drop(&mut self) {
        self.coordinator.forget(self.id);
    }
}

/// A handle to the result of a closure that a coordinator scheduled.
#[derive(Debug)]
pub(super) struct CoordinatorResult(pub ResultHandle);

impl ValueHandle for CoordinatorResult {
    fn bytes(&self, timeout: Option<Duration>) -> Result<Bytes> {
        Ok(match timeout {
            Some(timeout) => self.0.fetch_timeout(timeout)?,
            None => self.0.fetch()?,
        })
    }
}
