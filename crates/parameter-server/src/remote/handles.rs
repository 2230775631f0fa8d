//! What a coordinator gives in return: handles of what workers keep, and of results to come.

use super::arguments::Sender;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::ResourceId;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A value that each worker has made for itself, and keeps: a model, a dataset. It is given to remote functions as `&PerWorker<T>` for a
/// parameter `&T`.
///
/// A clone is another handle of the same; when the last is dropped, workers let go of it.
#[doc(alias = "PerWorkerValues")]
pub struct PerWorker<T> {
    handle: Arc<dyn ResourceHandle>,
    of: PhantomData<fn() -> T>,
}

/// What a coordinator knows a resource by. Workers let go of it when it is dropped.
pub(crate) trait ResourceHandle: Send + Sync {
    fn id(&self) -> ResourceId;

    /// Whose it is.
    fn sender(&self) -> Sender;
}

impl<T> PerWorker<T> {
    /// The handle of what was made by a function that returns a `T` or, of a dataset, of its batches.
    pub(crate) fn new(handle: Arc<dyn ResourceHandle>) -> Self {
        Self { handle, of: PhantomData }
    }

    /// Its number, for calls of its own coordinator.
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

/// The result of a call that was scheduled, when it is there.
///
/// A clone is another handle of the same.
#[doc(alias = "tf.distribute.experimental.coordinator.RemoteValue")]
pub struct RemoteValue<T> {
    handle: Arc<dyn ValueHandle>,
    of: PhantomData<fn() -> T>,
}

/// What a coordinator knows a result by.
pub(crate) trait ValueHandle: Send + Sync + fmt::Debug {
    /// Waits for its bytes; without a timeout as long as the coordinator waits.
    fn bytes(&self, timeout: Option<Duration>) -> Result<Bytes>;
}

impl<T> RemoteValue<T> {
    /// The handle of what a function returns.
    pub(crate) fn new(handle: Arc<dyn ValueHandle>) -> Self {
        Self { handle, of: PhantomData }
    }
}

impl<T: DeserializeOwned> RemoteValue<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// The call's own.
    pub fn fetch(&self) -> Result<T> {
        self.decode(&self.handle.bytes(None)?)
    }

    /// Waits for the result, so long at most.
    ///
    /// # Errors
    /// The call's own; that it has not ended in time.
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
