//! Links that are made again when the workers meet again: whoever holds them goes on with those of the present world.

use distribute_net::{Drive, Mesh, Message, Region, Transport};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// The links of the present world, and how often it has been made.
pub(super) struct Renewable {
    /// None while the workers meet.
    mesh: RwLock<Option<Mesh>>,
    generation: AtomicU64,
}

impl Renewable {
    pub fn new(mesh: Mesh) -> Self {
        let generation = AtomicU64::new(mesh.generation());
        Self { mesh: RwLock::new(Some(mesh)), generation }
    }

    /// Ends the links in order. When this returns, nothing more comes over them, and this worker listens nowhere.
    pub fn end(&self) {
        let ended = self.mesh.write().unwrap_or_else(PoisonError::into_inner).take();
        // It waits until the others have what was sent, and for its thread.
        drop(ended);
    }

    /// The links of the next world.
    pub fn renew(&self, mesh: Mesh) {
        self.generation.store(mesh.generation(), Ordering::Relaxed);
        *self.mesh.write().unwrap_or_else(PoisonError::into_inner) = Some(mesh);
    }

    /// The generation of the present world, or of the last one while the workers meet.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn mesh(&self) -> RwLockReadGuard<'_, Option<Mesh>> {
        self.mesh.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Renewable {
    fn send(&self, to: usize, message: Message) {
        if let Some(mesh) = &*self.mesh() {
            mesh.send(to, message);
        }
    }

    fn memory(&self, len: usize) -> Option<Region> {
        self.mesh().as_ref()?.memory(len)
    }

    fn is_near(&self, worker: usize) -> bool {
        self.mesh().as_ref().is_some_and(|mesh| mesh.is_near(worker))
    }

    fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive {
        self.mesh().as_ref().map_or(Drive::Never, |mesh| mesh.drive(patience, is_there))
    }

    fn close(&self) {
        if let Some(mesh) = &*self.mesh() {
            mesh.close();
        }
    }
}

impl fmt::Debug for Renewable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.mesh() {
            Some(mesh) => write!(f, "{mesh:?}"),
            None => write!(f, "Renewable(none)"),
        }
    }
}
