//! Groups whose workers are threads of this process, for tests, examples and first experiments.

use super::{Group, Inbox};
use distribute_cluster::{ReplicaCount, World};
use distribute_net::{Identity, JoinError, Listener, Receiver, Rendezvous, Secret, SharedMemory, memory};
use std::sync::Arc;
use std::thread;

/// The kind of links between workers that are threads of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Memory: a message is passed as a pointer.
    #[default]
    Memory,
    /// Sockets on this machine, without encryption.
    Tcp,
    /// Sockets on this machine, encrypted as between machines.
    Tls,
    /// Shared memory, as between processes of one machine.
    Shared,
}

/// Creates the groups of all workers of a world in this process, by rank.
///
/// A worker is lost to the others when its group [ends](Group::end), or when its group and all its sessions have been
/// dropped.
///
/// # Errors
/// Returns a [`JoinError`] if `workers` and `replicas` do not describe a valid world, or if a socket cannot be opened.
pub fn groups(links: Links, workers: usize, replicas: usize) -> Result<Vec<Group>, JoinError> {
    groups_of(links, workers, ReplicaCount::PerWorker(replicas))
}

/// Equivalent to [`groups`], with the number of replicas of each worker or of all workers together.
///
/// # Errors
/// Returns the errors of [`groups`].
pub fn groups_of(links: Links, workers: usize, replicas: ReplicaCount) -> Result<Vec<Group>, JoinError> {
    let worlds = (0..workers.max(1)).map(|worker| World::with_count(workers, worker, replicas));
    let worlds = worlds.collect::<Result<Vec<_>, _>>()?;
    match links {
        Links::Memory => Ok(over_memory(worlds)),
        Links::Tcp => over_sockets(worlds, "127.0.0.1", Identity::None, SharedMemory::Never),
        // Any address but a loopback one has encryption.
        Links::Tls => {
            over_sockets(worlds, "0.0.0.0", Identity::Secret(Secret::random()?), SharedMemory::Never)
        }
        Links::Shared => over_sockets(worlds, "127.0.0.1", Identity::None, SharedMemory::Auto),
    }
}

fn over_memory(worlds: Vec<World>) -> Vec<Group> {
    let inboxes: Vec<_> = worlds.iter().map(|_| Inbox::new(worlds.len())).collect();
    let receivers = inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
    let all = worlds.into_iter().zip(memory::transports(receivers)).zip(inboxes);
    all.map(|((world, transport), inbox)| Group::new(world, Arc::new(transport), inbox)).collect()
}

fn over_sockets(
    worlds: Vec<World>,
    host: &str,
    identity: Identity,
    shared_memory: SharedMemory,
) -> Result<Vec<Group>, JoinError> {
    let first = Listener::bind(&format!("{host}:0"))?;
    let leader = format!("{host}:{}", first.address()?.port());
    let others = worlds.iter().skip(1).map(|_| format!("{host}:0"));
    let addresses: Vec<_> = std::iter::once(leader).chain(others).collect();
    let mut first = Some(first);
    thread::scope(|scope| {
        let join = |world: World| {
            let rendezvous = Rendezvous::new(world, addresses.clone());
            let rendezvous = rendezvous.credentials(identity.clone()).shared_memory(shared_memory);
            let rendezvous = match first.take() {
                Some(listener) => rendezvous.listener(listener),
                None => rendezvous,
            };
            thread::Builder::new()
                .name(format!("joining {}", world.worker()))
                .spawn_scoped(scope, move || Group::join(world, rendezvous))
        };
        let joining: Vec<_> = worlds.into_iter().map(join).collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, _>>| {
            let panicked = |_| std::io::Error::other("a thread that joins workers has panicked");
            thread?.join().map_err(panicked)?
        };
        joining.into_iter().map(join).collect()
    })
}
