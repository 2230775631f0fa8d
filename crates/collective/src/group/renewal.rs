//! Links that are replaced when the group re-forms: users of them continue with those of the current world.

use distribute_cluster::{Address, World};
use distribute_net::{Arriving, Drive, Mesh, Message, Region, Transport};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// The links of the present world, who is in it, and how often it has been made.
pub(super) struct Renewable {
    /// None while the workers meet.
    mesh: RwLock<Option<Mesh>>,
    /// The world, or the last one while the group re-forms.
    world: RwLock<(World, Arc<Where>)>,
    generation: AtomicU64,
}

/// The places of the workers of a world.
#[derive(Debug)]
pub(super) struct Where {
    /// The place of each in the cluster.
    pub places: Vec<usize>,
    /// The address of each, if that is known.
    pub addresses: Vec<Address>,
}

impl Where {
    fn of(mesh: &Mesh) -> Arc<Self> {
        Arc::new(Self { places: mesh.places().to_vec(), addresses: mesh.addresses().to_vec() })
    }
}

impl Renewable {
    pub fn new(mesh: Mesh) -> Self {
        let generation = AtomicU64::new(mesh.generation());
        let world = RwLock::new((mesh.world(), Where::of(&mesh)));
        Self { mesh: RwLock::new(Some(mesh)), world, generation }
    }

    /// Leaves the present world. When this returns, nothing more comes over its links, and this worker listens nowhere.
    pub fn leave(&self) {
        let left = self.mesh.write().unwrap_or_else(PoisonError::into_inner).take();
        left.iter().for_each(Mesh::leave);
        // It waits until the others have what was sent, and for its thread.
        drop(left);
    }

    /// The links of the next world.
    pub fn renew(&self, mesh: Mesh) {
        self.generation.store(mesh.generation(), Ordering::Relaxed);
        let world = (mesh.world(), Where::of(&mesh));
        *self.world.write().unwrap_or_else(PoisonError::into_inner) = world;
        *self.mesh.write().unwrap_or_else(PoisonError::into_inner) = Some(mesh);
    }

    /// The generation of the present world, or of the last one while the workers meet.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The present world, or the last one while the workers meet.
    pub fn world(&self) -> World {
        self.world.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the places of its workers.
    pub fn places(&self) -> Arc<Where> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Returns the number of workers that wait until the group re-forms.
    pub fn waiting(&self) -> usize {
        self.mesh().as_ref().map_or(0, Mesh::waiting)
    }

    /// Their places in the cluster.
    pub fn places_waiting(&self) -> BTreeSet<usize> {
        self.mesh().as_ref().map(Mesh::places_waiting).unwrap_or_default()
    }

    /// Whether one of them was in another world as late as this one.
    pub fn is_supplanted(&self) -> bool {
        self.mesh().as_ref().is_some_and(Mesh::is_supplanted)
    }

    /// Whether the workers don't meet again.
    pub fn set_over(&self, over: bool) {
        self.mesh().iter().for_each(|mesh| mesh.set_over(over));
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

    fn arriving(&self, worker: usize) -> Option<Arriving> {
        self.mesh().as_ref()?.arriving(worker)
    }

    fn stay(&self, patience: Duration) {
        if let Some(mesh) = &*self.mesh() {
            mesh.stay(patience);
        }
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
