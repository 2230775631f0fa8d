//! Worlds of several workers in one process, and receivers that store messages.

#![allow(dead_code)]

use distribute_cluster::{Deadline, World};
use distribute_net::{
    Certificates, Identity, Listener, Mesh, Message, PollOutcome, Receiver, Rendezvous, Secret, Settings,
    SharedMemory, Transport, memory,
};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(50);

/// The messages that have arrived.
#[derive(Debug, Default)]
pub struct Come {
    /// The messages with their senders, in the order in which they arrived.
    pub messages: Vec<(usize, Message)>,
    pub lost: Vec<(usize, String)>,
    /// The number of messages that had arrived when a worker was lost.
    pub before: Vec<usize>,
}

/// A receiver that stores messages.
#[derive(Debug, Default)]
pub struct Kept {
    come: Mutex<Come>,
    changed: Condvar,
}

impl Receiver for Kept {
    fn deliver(&self, from: usize, message: Message) {
        self.come.lock().unwrap().messages.push((from, message));
        self.changed.notify_all();
    }

    fn mark_lost(&self, from: usize, reason: String) {
        let mut come = self.come.lock().unwrap();
        let before = come.messages.len();
        come.before.push(before);
        come.lost.push((from, reason));
        self.changed.notify_all();
    }
}

impl Kept {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until a condition on the messages is true. Polls the transport if there is one.
    pub fn until<T>(
        &self,
        transport: Option<&dyn Transport>,
        what: &str,
        mut is: impl FnMut(&mut Come) -> Option<T>,
    ) -> T {
        let deadline = Deadline::after(PATIENCE);
        loop {
            let mut come = self.come.lock().unwrap();
            if let Some(value) = is(&mut come) {
                return value;
            }
            assert!(!deadline.has_passed(), "{what} has not happened: {:?}", come.lost);
            let slice = Duration::from_millis(20);
            match transport {
                Some(transport) => {
                    drop(come);
                    if transport.poll(slice, &|| false) == PollOutcome::Elsewhere {
                        let come = self.come.lock().unwrap();
                        drop(self.changed.wait_timeout(come, Duration::from_millis(1)).unwrap());
                    }
                }
                None => drop(self.changed.wait_timeout(come, slice).unwrap()),
            }
        }
    }

    pub fn count(&self, transport: Option<&dyn Transport>, messages: usize) {
        let enough = |come: &mut Come| (come.messages.len() >= messages).then_some(());
        self.until(transport, &format!("the arrival of {messages} messages"), enough);
    }

    pub fn loss(&self, transport: Option<&dyn Transport>, worker: usize) -> String {
        let lost =
            |come: &mut Come| come.lost.iter().find(|(from, _)| *from == worker).map(|(_, why)| why.clone());
        self.until(transport, &format!("the loss of worker {worker}"), lost)
    }

    pub fn is_empty(&self) -> bool {
        self.come.lock().unwrap().messages.is_empty()
    }

    pub fn take(&self) -> Come {
        std::mem::take(&mut self.come.lock().unwrap())
    }
}

/// The transports that behave alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Memory,
    Tcp,
    /// TCP with a secret that both sides prove to know.
    Proof,
    /// TLS with certificates derived from a secret.
    TlsBySecret,
    /// TLS with certificates from files.
    TlsByCertificates,
    /// Shared memory, as between processes.
    Shared,
    /// Shared memory, negotiated over TLS.
    SharedByTls,
}

pub const KINDS: [Kind; 7] = [
    Kind::Memory,
    Kind::Tcp,
    Kind::Proof,
    Kind::TlsBySecret,
    Kind::TlsByCertificates,
    Kind::Shared,
    Kind::SharedByTls,
];

pub struct Worker {
    pub transport: Arc<dyn Transport>,
    pub kept: Arc<Kept>,
}

impl Worker {
    pub fn to_poll(&self) -> Option<&dyn Transport> {
        Some(&*self.transport)
    }
}

/// Creates a world of workers in this process.
pub fn world(kind: Kind, workers: usize) -> Vec<Worker> {
    if kind == Kind::Memory {
        let kept: Vec<_> = (0..workers).map(|_| Kept::new()).collect();
        let receivers = kept.iter().map(|kept| kept.clone() as Arc<dyn Receiver>).collect();
        let transports = memory::transports(receivers).into_iter();
        return transports.zip(kept).map(|(t, kept)| Worker { transport: Arc::new(t), kept }).collect();
    }
    let folder = tempfile::tempdir().unwrap();
    let identity = match kind {
        Kind::Memory | Kind::Tcp | Kind::Shared => Identity::None,
        Kind::Proof | Kind::TlsBySecret | Kind::SharedByTls => Identity::Secret(Secret::random().unwrap()),
        Kind::TlsByCertificates => Identity::Certificates(certificates(folder.path(), "worker")),
    };
    // 0.0.0.0 is not a loopback address, but is on this machine.
    let host = if matches!(kind, Kind::TlsBySecret | Kind::SharedByTls) { "0.0.0.0" } else { "127.0.0.1" };
    let shares = matches!(kind, Kind::Shared | Kind::SharedByTls);
    let shared_memory = if shares { SharedMemory::Auto } else { SharedMemory::Never };
    let setup =
        move |rendezvous: Rendezvous| rendezvous.credentials(identity.clone()).shared_memory(shared_memory);
    let meshes = meshes(workers, host, setup);
    for (me, (mesh, _)) in meshes.iter().enumerate() {
        let shared = (0..workers).filter(|worker| mesh.is_near(*worker)).count();
        assert_eq!(shared, if shares { workers - 1 } else { 0 }, "worker {me}");
    }
    meshes.into_iter().map(|(mesh, kept)| Worker { transport: Arc::new(mesh), kept }).collect()
}

/// Returns settings with which a busy machine is not taken for a failed one.
pub fn patient() -> Settings {
    Settings { silence: Duration::from_secs(30), ..Settings::default() }
}

/// Joins all workers of a world, each on a thread.
pub fn meshes(
    workers: usize,
    host: &str,
    setup: impl Fn(Rendezvous) -> Rendezvous + Sync,
) -> Vec<(Mesh, Arc<Kept>)> {
    meshes_on(workers, Listener::bind(&format!("{host}:0")).unwrap(), host, setup)
}

/// Joins all workers of a world, whose leader has this listener, each on a thread.
pub fn meshes_on(
    workers: usize,
    listener: Listener,
    host: &str,
    setup: impl Fn(Rendezvous) -> Rendezvous + Sync,
) -> Vec<(Mesh, Arc<Kept>)> {
    let addresses = addresses(workers, host, listener.address().unwrap().port());
    let mut listener = Some(listener);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let (addresses, listener, setup) = (addresses.clone(), listener.take(), &setup);
                scope.spawn(move || {
                    let world = World::new(workers, worker, 1).unwrap();
                    let rendezvous = setup(Rendezvous::new(world, addresses).settings(patient()));
                    let rendezvous = match listener {
                        Some(listener) => rendezvous.listener(listener),
                        None => rendezvous,
                    };
                    let kept = Kept::new();
                    (rendezvous.join(kept.clone()).unwrap(), kept)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns addresses: the leader at this port, the others at ports that the system chooses.
pub fn addresses(workers: usize, host: &str, port: u16) -> Vec<String> {
    (0..workers).map(|worker| format!("{host}:{}", if worker == 0 { port } else { 0 })).collect()
}

/// Creates files with a CA and a certificate that it has signed.
pub fn certificates(folder: &Path, name: &str) -> Certificates {
    let [ca, certificate, key] = distribute_testing::certificates(folder, name);
    Certificates { ca, certificate, key }
}
