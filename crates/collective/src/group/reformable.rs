//! Links that are replaced when the group re-forms. Their users continue with the links of the new world.

use distribute_cluster::{Address, World};
use distribute_net::{Mesh, Message, PartialMessage, PollOutcome, Region, Transport};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// The links of the current world, its workers, and its generation.
pub(super) struct ReformableLinks {
    /// The links; `None` for a spare, and while the group re-forms.
    mesh: RwLock<Option<Mesh>>,
    /// The current world, or the previous one while the group re-forms.
    world: RwLock<(World, Arc<WorkerLocations>)>,
    generation: AtomicU64,
    /// The workers of the current world to which messages may leave this machine, one bit for each. Ranks from 64 on
    /// are looked up in the mesh.
    distant: AtomicU64,
    /// The longest time by which the shutdown wait of the current mesh was extended, in milliseconds.
    longest_wait: AtomicU64,
    /// Whether this worker has resigned from the current world.
    resigned: AtomicBool,
}

/// The positions and addresses of the workers of a world.
#[derive(Debug)]
pub(super) struct WorkerLocations {
    /// The position of each worker in the cluster.
    pub positions: Vec<usize>,
    /// The address of each worker; empty if the addresses are unknown.
    pub addresses: Vec<Address>,
}

impl WorkerLocations {
    fn of(mesh: &Mesh) -> Arc<Self> {
        Arc::new(Self { positions: mesh.positions().to_vec(), addresses: mesh.addresses().to_vec() })
    }
}

impl ReformableLinks {
    pub fn new(mesh: Mesh) -> Self {
        let generation = AtomicU64::new(mesh.generation());
        let world = RwLock::new((mesh.world(), WorkerLocations::of(&mesh)));
        let distant = AtomicU64::new(distant(&mesh));
        let (longest_wait, resigned) = Default::default();
        Self { mesh: RwLock::new(Some(mesh)), world, generation, distant, longest_wait, resigned }
    }

    /// Creates the links of a spare, which is in no world yet. `world` is returned as its world until it joins one, and
    /// `generation` is that of the world that is complete without it.
    pub fn spare(world: World, generation: u64) -> Self {
        let locations = WorkerLocations { positions: Vec::new(), addresses: Vec::new() };
        let world = RwLock::new((world, Arc::new(locations)));
        let (distant, longest_wait, resigned) = Default::default();
        let generation = AtomicU64::new(generation);
        Self { mesh: RwLock::new(None), world, generation, distant, longest_wait, resigned }
    }

    /// Returns whether this process is a spare that has been in no world yet.
    pub fn is_spare(&self) -> bool {
        self.locations().positions.is_empty()
    }

    /// Leaves the current world. After this returns, this worker no longer listens, and receives nothing more over the
    /// old links.
    pub fn leave(&self) {
        let left = self.mesh.write().unwrap_or_else(PoisonError::into_inner).take();
        left.iter().for_each(Mesh::leave);
        // This waits until the others have received what was sent, and for the thread of the mesh.
        drop(left);
    }

    /// Reports to the other workers that this one has exited, although it takes part in the next rendezvous.
    pub fn resign(&self) {
        self.resigned.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Returns whether this worker has resigned from the current world.
    pub fn has_resigned(&self) -> bool {
        self.resigned.load(Ordering::Relaxed)
    }

    /// Sets the links of the next world.
    pub fn replace_mesh(&self, mesh: Mesh) {
        self.resigned.store(false, Ordering::Relaxed);
        self.generation.store(mesh.generation(), Ordering::Relaxed);
        let world = (mesh.world(), WorkerLocations::of(&mesh));
        *self.world.write().unwrap_or_else(PoisonError::into_inner) = world;
        let mut current = self.mesh.write().unwrap_or_else(PoisonError::into_inner);
        self.distant.store(distant(&mesh), Ordering::Relaxed);
        self.longest_wait.store(0, Ordering::Relaxed);
        *current = Some(mesh);
    }

    /// Returns the generation of the current world, or of the previous one while the group re-forms.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns the current world, or the previous one while the group re-forms.
    pub fn world(&self) -> World {
        self.world.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sets the number of logical replicas of a worker in the current world, until the group re-forms. Does nothing if
    /// the world cannot have this share.
    pub fn set_share(&self, worker: usize, replicas: usize) {
        let mut world = self.world.write().unwrap_or_else(PoisonError::into_inner);
        world.0 = world.0.with_share(worker, replicas).unwrap_or(world.0);
    }

    /// Returns the positions and addresses of the workers of the current world, or of the previous one while the group
    /// re-forms.
    pub fn locations(&self) -> Arc<WorkerLocations> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Returns the number of workers that wait until the group re-forms, without spares.
    pub fn waiting(&self) -> usize {
        self.mesh().as_ref().map_or(0, Mesh::waiting)
    }

    /// Returns the cluster positions of the workers that wait until the group re-forms, including spares.
    pub fn waiting_positions(&self) -> BTreeSet<usize> {
        self.mesh().as_ref().map(Mesh::waiting_positions).unwrap_or_default()
    }

    /// Returns whether another world has replaced this one: a waiting worker was a member of another world, of the same
    /// generation or a later one.
    pub fn is_supplanted(&self) -> bool {
        self.mesh().as_ref().is_some_and(Mesh::is_supplanted)
    }

    /// Sets whether the run has finished on all workers. If it has, the group does not re-form.
    pub fn set_finished(&self, finished: bool) {
        self.mesh().iter().for_each(|mesh| mesh.set_finished(finished));
    }

    fn mesh(&self) -> RwLockReadGuard<'_, Option<Mesh>> {
        self.mesh.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the first workers to which messages may leave this machine, as bits.
fn distant(mesh: &Mesh) -> u64 {
    let first = 0..mesh.world().workers().min(u64::BITS as usize);
    first.filter(|worker| mesh.leaves_machine(*worker)).fold(0, |bits, worker| bits | 1 << worker)
}

// A short message takes no longer than a few locks, so values that every call needs are read without a lock.
impl Transport for ReformableLinks {
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

    fn leaves_machine(&self, worker: usize) -> bool {
        if worker < u64::BITS as usize {
            return self.distant.load(Ordering::Relaxed) >> worker & 1 > 0;
        }
        self.mesh().as_ref().is_some_and(|mesh| mesh.leaves_machine(worker))
    }

    fn partial_message(&self, worker: usize) -> Option<PartialMessage> {
        self.mesh().as_ref()?.partial_message(worker)
    }

    fn extend_shutdown_wait(&self, patience: Duration) {
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        if millis <= self.longest_wait.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mesh) = &*self.mesh() {
            mesh.extend_shutdown_wait(patience);
            self.longest_wait.store(millis, Ordering::Relaxed);
        }
    }

    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.mesh().as_ref().map_or(PollOutcome::Never, |mesh| mesh.poll(patience, is_there))
    }

    fn close(&self) {
        if let Some(mesh) = &*self.mesh() {
            mesh.close();
        }
    }
}

impl fmt::Debug for ReformableLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.mesh() {
            Some(mesh) => write!(f, "{mesh:?}"),
            None => write!(f, "ReformableLinks(none)"),
        }
    }
}
