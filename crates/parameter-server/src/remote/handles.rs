//! The handles that a coordinator returns: of values that workers keep, and of pending results.

use super::arguments::Sender;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::ResourceId;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A value that each worker has created for itself and keeps, for example a model or a dataset. Remote
/// functions take it as `&PerWorker<T>` for a parameter `&T`.
///
/// Clones are handles of the same value; workers drop it with the last one.
#[doc(alias = "PerWorkerValues")]
pub struct PerWorker<T> {
    handle: Arc<dyn ResourceHandle>,
    of: PhantomData<fn() -> T>,
}

/// The identity of a resource. Workers drop the resource when its handle is dropped.
pub(crate) trait ResourceHandle: Send + Sync {
    fn id(&self) -> ResourceId;

    /// Returns the identity of the coordinator that created the resource.
    fn sender(&self) -> Sender;
}

impl<T> PerWorker<T> {
    /// Creates the handle of a value that a function returns, or of its batches if it returns a dataset.
    pub(crate) fn new(handle: Arc<dyn ResourceHandle>) -> Self {
        Self { handle, of: PhantomData }
    }

    /// Returns the resource's identifier, or an error if the resource belongs to another coordinator.
    pub(super) fn id_for(&self, from: Sender) -> Result<ResourceId> {
        if self.handle.sender() != from {
            let reason = format!(
                "{self:?} belongs to another coordinator; make it with the one that schedules what takes it"
            );
            return Err(Error::invalid("schedule", reason));
        }
        Ok(self.handle.id())
    }
}

impl<T> Clone for PerWorker<T> {
    fn clone(&self) -> Self {
        Self::new(self.handle.clone())
    }
}

impl<T> fmt::Debug for PerWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerWorker<{}>({})", std::any::type_name::<T>(), self.handle.id())
    }
}

/// A handle to the result of a scheduled call.
///
/// Clones are handles of the same result.
#[doc(alias = "tf.distribute.experimental.coordinator.RemoteValue")]
pub struct RemoteValue<T> {
    handle: Arc<dyn ValueHandle>,
    of: PhantomData<fn() -> T>,
}

/// The interface by which a handle gets the bytes of a result.
pub(crate) trait ValueHandle: Send + Sync + fmt::Debug {
    /// Waits for the bytes of the result. Without a timeout, the coordinator's own timeouts apply.
    fn bytes(&self, timeout: Option<Duration>) -> Result<Bytes>;
}

impl<T> RemoteValue<T> {
    /// Creates the handle of the result of a function.
    pub(crate) fn new(handle: Arc<dyn ValueHandle>) -> Self {
        Self { handle, of: PhantomData }
    }
}

impl<T: DeserializeOwned> RemoteValue<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// Returns the error of the call.
    pub fn fetch(&self) -> Result<T> {
        self.decode(&self.handle.bytes(None)?)
    }

    /// Waits for the result, for at most `timeout`.
    ///
    /// # Errors
    /// Returns the error of the call, or an error if the call has not ended in time.
    pub fn fetch_within(&self, timeout: Duration) -> Result<T> {
        self.decode(&self.handle.bytes(Some(timeout))?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T> {
        let wrong = |text: String| {
            let name = std::any::type_name::<T>();
            Error::invalid("fetch", format!("a result of {} bytes is no {name}: {text}", bytes.len()))
        };
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, more)) => Err(wrong(format!("there are {} more", more.len()))),
            Err(error) => Err(wrong(error.to_string())),
        }
    }
}

impl<T> Clone for RemoteValue<T> {
    fn clone(&self) -> Self {
        Self::new(self.handle.clone())
    }
}

impl<T> fmt::Debug for RemoteValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteValue<{}>({:?})", std::any::type_name::<T>(), self.handle)
    }
}
