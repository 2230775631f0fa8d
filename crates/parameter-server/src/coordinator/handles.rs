//! The implementation of the handles of resources and results.

use crate::remote::{ResourceHandle, Sender, ValueHandle};
use bytes::Bytes;
use distribute_base::Result;
use distribute_coordinator::{Coordinator, Remote, ResourceId};
use std::sync::Arc;
use std::time::Duration;

/// A resource of a coordinator. Workers drop the resource when this handle is dropped.
pub(super) struct ResourceOf {
    pub id: ResourceId,
    pub sender: Sender,
    pub coordinator: Arc<Coordinator>,
}

impl ResourceHandle for ResourceOf {
    fn id(&self) -> ResourceId {
        self.id
    }

    fn sender(&self) -> Sender {
        self.sender
    }
}

impl Drop for ResourceOf {
    fn drop(&mut self) {
        self.coordinator.forget(self.id);
    }
}

/// The result of a closure.
#[derive(Debug)]
pub(super) struct ResultOf(pub Remote);

impl ValueHandle for ResultOf {
    fn bytes(&self, timeout: Option<Duration>) -> Result<Bytes> {
        Ok(match timeout {
            Some(timeout) => self.0.fetch_timeout(timeout)?,
            None => self.0.fetch()?,
        })
    }
}
