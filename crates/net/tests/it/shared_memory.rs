//! Message bodies in shared memory that workers of one machine read in place, and their release.

use crate::support::{self, KINDS, Kept, Kind, Worker, addresses, meshes, patient, world};
use bytes::Bytes;
use distribute_cluster::World;
use distribute_net::{Listener, Mesh, Message, Rendezvous, SharedMemory, Transport};
use distribute_testing::child::{self, Killed};
use distribute_testing::{SplitMix, watched};
use std::sync::Arc;

/// Returns a region with the pattern.
fn filled(transport: &dyn Transport, length: usize, first: u8) -> Bytes {
    let mut region = transport.memory(length).unwrap();
    assert_eq!((region.len(), region.as_ptr().addr() % 64), (length, 0));
    region.copy_from_slice(&pattern(length, first));
    region.freeze()
}

/// Returns bytes that each are one more than the byte before.
fn pattern(length: usize, first: u8) -> Vec<u8> {
    let period: Vec<_> = (0..=255_u8).map(|at| at.wrapping_add(first)).collect();
    let mut bytes = period.repeat(length.div_ceil(256));
    bytes.truncate(length);
    bytes
}

fn is_filled(bytes: &[u8], first: u8) -> bool {
    bytes == pattern(bytes.len(), first)
}

fn next(worker: &Worker) -> Bytes {
    worker.kept.count(worker.to_poll(), 1);
    worker.kept.take().messages.remove(0).1.body
}

fn two() -> [Worker; 2] {
    world(Kind::Shared, 2).try_into().ok().unwrap()
}

#[test]
fn bodies_from_all_peers_arrive_complete_and_in_order() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 3);
            std::thread::scope(|scope| {
                for (me, worker) in workers.iter().enumerate() {
                    scope.spawn(move || {
                        let mut random = SplitMix(me as u64);
                        for number in 0..60_u8 {
                            let length = random.of(&[1, 5000, 16_384, 100_000, 1 << 20, (1 << 20) + 1]);
                            let first = number.wrapping_mul(7);
                            let body = match worker.transport.memory(length) {
                                Some(mut region) if random.below(3) > 0 => {
                                    region.write(0, &pattern(length, first));
                                    region.freeze()
                                }
                                _ => pattern(length, first).into(),
                            };
                            // Slices of the body, which are bodies as well.
                            let from = random.below(2) * (length / 3);
                            for to in (0..3).filter(|to| *to != me) {
                                let head = vec![number, first.wrapping_add(from as u8)];
                                worker.transport.send(to, Message::new(head, body.slice(from..)));
                            }
                        }
                        worker.kept.count(worker.to_poll(), 120);
                    });
                }
            });
            for worker in &workers {
                let messages = worker.kept.take().messages;
                for from in 0..3 {
                    let of: Vec<_> = messages.iter().filter(|(worker, _)| *worker == from).collect();
                    assert!(of.is_sorted_by_key(|(_, message)| message.head[0]), "{kind:?}");
                    for (_, message) in of {
                        assert!(message.body[..] == pattern(message.body.len(), message.head[1]), "{kind:?}");
                    }
                }
                assert_eq!(messages.len(), 120);
            }
            // Only workers that share memory can allocate it.
            let shares = matches!(kind, Kind::Shared | Kind::SharedByTls);
            assert_eq!(workers[0].transport.memory(10).is_some(), shares, "{kind:?}");
        });
    }
}

#[test]
fn memory_is_reused_only_after_the_receiver_has_dropped_it() {
    watched(|| {
        let [first, second] = two();
        for length in [20_000, 1 << 20, 3 << 20] {
            let body = filled(&*first.transport, length, 1);
            let place = body.as_ptr().addr();
            first.transport.send(1, Message::new("", body.slice(100..)));
            drop(body);
            let received = next(&second);
            assert!(is_filled(&received, 101));
            let part = received.slice(5..6000);
            drop(received);
            // While the memory is mapped by the other worker, its addresses are not reused.
            for value in 0..20 {
                let other = filled(&*first.transport, length, value);
                assert_ne!(other.as_ptr().addr(), place);
                first.transport.send(1, Message::new("", other));
                assert!(is_filled(&next(&second), value));
            }
            assert!(is_filled(&part, 106));
            drop(part);
            let regions: Vec<_> = (0..5).map(|_| first.transport.memory(length).unwrap()).collect();
            assert!(regions.iter().any(|region| region.as_ptr().addr() == place), "{length}");
        }
    });
}

#[test]
fn parts_of_a_region_are_filled_and_sent_separately() {
    watched(|| {
        let [first, second] = two();
        let mut region = first.transport.memory(1 << 20).unwrap();
        let place = region.as_ptr().addr();
        region.copy_from_slice(&pattern(1 << 20, 5));
        let mut behind = region.split_off(400_000);
        assert_eq!((region.len(), behind.len()), (400_000, (1 << 20) - 400_000));
        first.transport.send(1, Message::new("", region.freeze()));
        // This worker writes only to the region that the other worker does not read.
        let received = next(&second);
        behind.fill(0);
        behind.write(7, &[1; 9]);
        assert!(is_filled(&received, 5));
        drop(received);
        // One part is in use.
        assert_ne!(first.transport.memory(1 << 20).unwrap().as_ptr().addr(), place);
        assert!(behind.split_off(behind.len()).is_empty());
        assert_eq!(behind[6..17], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
        drop(behind);
        let regions: Vec<_> = (0..3).map(|_| first.transport.memory(1 << 20).unwrap()).collect();
        assert!(regions.iter().any(|region| region.as_ptr().addr() == place));
    });
}

// INV-32
#[test]
fn received_data_is_unchanged_when_its_sender_continues_or_exits() {
    watched(|| {
        let mut workers = world(Kind::Shared, 3);
        let (third, second) = (workers.pop().unwrap(), workers.pop().unwrap());
        let first = workers.pop().unwrap();
        first.transport.send(1, Message::new("", filled(&*first.transport, 1 << 20, 9)));
        let received = next(&second);
        // The second worker ends, and keeps the body. The first continues in other memory.
        drop(second.transport);
        first.kept.loss(first.to_poll(), 1);
        first.kept.take();
        for value in 0..10 {
            first.transport.send(2, Message::new("", filled(&*first.transport, 1 << 20, value)));
            third.kept.until(third.to_poll(), "a message", |come| come.messages.pop());
        }
        assert!(is_filled(&received, 9));
        drop((first, third));
        assert!(is_filled(&received, 9));
    });
}

#[test]
fn workers_use_sockets_to_those_without_shared_memory() {
    watched(|| {
        let two = meshes(2, "127.0.0.1", |rendezvous| {
            // The two threads get different settings.
            static TURN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            let turn = TURN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            rendezvous.shared_memory([SharedMemory::Auto, SharedMemory::Never][turn % 2])
        });
        assert!(!two[0].0.is_near(1) && !two[1].0.is_near(0));
        two[0].0.send(1, Message::new("", "by the socket"));
        two[1].1.count(Some(&two[1].0), 1);
    });
}

fn join(worker: usize, port: u16, listener: Option<Listener>) -> (Mesh, Arc<Kept>) {
    let rendezvous = Rendezvous::new(World::new(2, worker, 1).unwrap(), addresses(2, "127.0.0.1", port));
    let rendezvous = match listener {
        Some(listener) => rendezvous.listener(listener),
        None => rendezvous,
    };
    let kept = Kept::new();
    (rendezvous.settings(patient()).join(kept.clone()).unwrap(), kept)
}

/// Returns the numbers of regions that this process has open and mapped, and of its file descriptors.
fn held() -> (usize, usize, usize) {
    let descriptors: Vec<_> =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().path()).collect();
    let of_workers = |text: &str| text.contains("memfd:distribute");
    let open = descriptors.iter().filter_map(|fd| std::fs::read_link(fd).ok());
    let open = open.filter(|to| of_workers(&to.to_string_lossy())).count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (open, maps.lines().filter(|line| of_workers(line)).count(), descriptors.len())
}

/// Runs in the second process: sends a body, keeps the bodies that it receives, and waits to be killed.
fn keeps_memory(port: u16) {
    let (mesh, kept) = join(1, port, None);
    mesh.send(0, Message::new("", filled(&mesh, 4 << 20, 3)));
    kept.count(None, 1);
    let received = kept.take().messages.remove(0).1;
    assert!(is_filled(&received.body, 4));
    mesh.send(0, Message::new("read", ""));
    kept.loss(None, 0);
}

#[test]
fn a_killed_worker_leaves_only_its_sent_messages() {
    const TEST: &str = "shared_memory::a_killed_worker_leaves_only_its_sent_messages";
    watched(|| match child::part() {
        Some(part) if part != "first" => keeps_memory(part.parse().unwrap()),
        // Runs in a process of its own, because it counts what the process holds.
        None => drop(child::output(child::command(TEST, "first"), support::PATIENCE)),
        Some(_) => {
            let before = held();
            let ours = |name: std::io::Result<std::fs::DirEntry>| {
                name.is_ok_and(|name| name.file_name().to_string_lossy().contains("distribute"))
            };
            let names = || {
                std::fs::read_dir("/dev/shm")
                    .map_or(0, |all| all.filter_map(|n| ours(n).then_some(())).count())
            };
            let listener = Listener::bind("127.0.0.1:0").unwrap();
            let port = listener.address().unwrap().port();
            let child = Killed(child::command(TEST, &port.to_string()).spawn().unwrap());
            let (mesh, kept) = join(0, port, Some(listener));
            // Until the child has joined, it gets copies.
            kept.count(None, 1);
            mesh.send(1, Message::new("", filled(&mesh, 2 << 20, 4)));
            kept.count(None, 2);
            let (open, mapped, _) = held();
            assert_eq!((open, mapped), (1, 3), "its own region; that, the pair and the other's region");
            let received = kept.take().messages.remove(0).1.body;
            drop(child);
            kept.loss(None, 1);
            assert!(is_filled(&received, 3));
            // The memory that was lent to the child is gone, although the child never returned it. The memory that the
            // child lent is still mapped.
            assert_eq!((held().0, held().1), (0, 2));
            drop(mesh);
            assert!(is_filled(&received, 3));
            drop(received);
            assert_eq!((held(), names()), (before, 0));
        }
    });
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn the_memory_of_thousands_of_exchanges_stays_as_it_was() {
    const TEST: &str = "shared_memory::the_memory_of_thousands_of_exchanges_stays_as_it_was";
    watched(|| {
        if child::part().is_none() {
            return drop(child::output(child::command(TEST, "alone"), support::PATIENCE));
        }
        let [first, second] = two();
        let exchange = |rounds: u32| {
            for round in 0..rounds {
                for (from, to) in [(&first, 1), (&second, 0)] {
                    let mut region = from.transport.memory(200_000).unwrap();
                    region[..4].copy_from_slice(&round.to_le_bytes());
                    from.transport.send(to, Message::new("", region.freeze()));
                }
                for worker in [&first, &second] {
                    assert_eq!(next(worker)[..4], round.to_le_bytes());
                }
            }
        };
        exchange(1000);
        let (before, memory) = (held(), resident());
        exchange(10_000);
        let (after, more) = (held(), resident().saturating_sub(memory));
        assert_eq!(after, before);
        assert!(more < 4 << 20, "{more} bytes more");
    });
}
