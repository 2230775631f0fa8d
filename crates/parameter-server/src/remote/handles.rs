//! Handles that a coordinator returns: to values that workers keep, and to pending results.

use super::arguments::Sender;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::ResourceId;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A handle to a value that each worker has created and keeps, such as a model or a dataset. To use the value in a
/// remote function with a parameter `&T`, pass a `&PerWorker<T>`.
///
/// Clones are handles to the same value. Workers drop the value when the last handle is dropped.
#[doc(alias = "PerWorkerValues")]
pub struct PerWorker<T> {
    handle: Arc<dyn ResourceHandle>,
    of: PhantomData<fn() -> T>,
}

/// A resource on the workers. When it is dropped, the workers drop their values.
pub(crate) trait ResourceHandle: Send + Sync {
    fn id(&self) -> ResourceId;

    /// Returns the identity of the coordinator that created the resource.
    fn sender(&self) -> Sender;
}

impl<T> PerWorker<T> {
    /// Creates a handle to the value that a function returns, or to its batches if it returns a dataset.
    pub(crate) fn new(handle: Arc<dyn ResourceHandle>) -> Self {
        Self { handle, of: PhantomData }
    }

    /// Returns the identifier of the resource, or an error if the resource does not belong to the coordinator `from`.
    pub(super) fn id_for(&self, from: Sender) -> Result<ResourceId> {
        if self.handle.sender() != from {
            let reason = format!(
                "{self:?} belongs to another coordinator; create it with the coordinator that schedules the call"
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
/// Clones are handles to the same result.
#[doc(alias = "tf.distribute.experimental.coordinator.RemoteValue")]
pub struct RemoteValue<T> {
    handle: Arc<dyn ValueHandle>,
    of: PhantomData<fn() -> T>,
}

/// A pending result, from which a handle gets the bytes.
pub(crate) trait ValueHandle: Send + Sync + fmt::Debug {
    /// Waits for the bytes of the result, but no longer than `timeout`. With `None`, the coordinator's own timeouts
    /// apply.
    fn bytes(&self, timeout: Option<Duration>) -> Result<Bytes>;
}

impl<T> RemoteValue<T> {
    /// Creates a handle to the result of a call.
    pub(crate) fn new(handle: Arc<dyn ValueHandle>) -> Self {
        Self { handle, of: PhantomData }
    }
}

impl<T: DeserializeOwned> RemoteValue<T> {
    /// Waits for the result and returns it decoded.
    ///
    /// # Errors
    /// - [`Error::Coordinator`]: the call failed, no worker was connected for longer than the timeout, or the
    ///   coordinator was dropped.
    /// - [`Error::InvalidArgument`]: the result cannot be decoded.
    pub fn fetch(&self) -> Result<T> {
        self.decode(&self.handle.bytes(None)?)
    }

    /// Waits for the result, but no longer than `timeout`.
    ///
    /// # Errors
    /// Returns the errors of [`fetch`](Self::fetch), and an error if the call has not finished in time.
    pub fn fetch_within(&self, timeout: Duration) -> Result<T> {
        self.decode(&self.handle.bytes(Some(timeout))?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T> {
        let wrong = |text: String| {
            let name = std::any::type_name::<T>();
            Error::invalid("fetch", format!("a result of {} bytes is not a {name}: {text}", bytes.len()))
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
