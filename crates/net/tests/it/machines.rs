//! Links that leave the machine, whose messages have checksums by default, and links that do not.

use crate::support::{KINDS, certificates, meshes, meshes_on, world};
use distribute_net::{Identity, Listener, Rendezvous, Secret, SharedMemory, Transport};
use distribute_testing::{own_address, skipped, watched};

/// Returns settings with a secret, without which workers only join over loopback addresses.
fn with_secret(shared_memory: SharedMemory) -> impl Fn(Rendezvous) -> Rendezvous + Sync {
    let identity = Identity::Secret(Secret::random().unwrap());
    move |rendezvous| rendezvous.credentials(identity.clone()).shared_memory(shared_memory)
}

#[test]
fn links_of_one_machine_stay_on_it() {
    watched(|| {
        for kind in KINDS {
            for (me, worker) in world(kind, 2).iter().enumerate() {
                assert!(!worker.transport.leaves_machine(1 - me), "{kind:?}, worker {me}");
                assert!(!worker.transport.leaves_machine(me) && !worker.transport.leaves_machine(2));
            }
        }
    });
}

#[test]
fn a_loopback_address_in_the_form_of_ipv6_is_one() {
    // It accepts 127.0.0.1 as ::ffff:127.0.0.1.
    let Ok(listener) = Listener::bind("[::]:0") else { return skipped("this machine has no IPv6") };
    watched(|| {
        // With certificates, TLS is used at all addresses, unlike with a secret.
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::Certificates(certificates(folder.path(), "worker"));
        let setup = move |rendezvous: Rendezvous| {
            rendezvous.credentials(identity.clone()).shared_memory(SharedMemory::Never)
        };
        for (mesh, _) in meshes_on(2, listener, "127.0.0.1", setup) {
            assert!((0..2).all(|worker| !mesh.leaves_machine(worker)), "{mesh:?}");
        }
    });
}

#[test]
fn only_shared_memory_keeps_links_to_other_addresses_on_the_machine() {
    let Some(own) = own_address() else { return skipped("this machine has no address but loopback ones") };
    watched(move || {
        for (shared_memory, leaves) in [(SharedMemory::Never, true), (SharedMemory::Auto, false)] {
            let all = meshes(2, &own.to_string(), with_secret(shared_memory));
            for (me, (mesh, _)) in all.iter().enumerate() {
                assert_eq!(mesh.leaves_machine(1 - me), leaves, "{shared_memory:?}");
                assert!(!mesh.leaves_machine(me));
            }
        }
    });
}
