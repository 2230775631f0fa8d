//! The requirements on every transport.

use crate::support::{Come, KINDS, Kind, world};
use distribute_net::{ENDED, Message, Transport};
use distribute_testing::{SplitMix, watched};
use std::sync::Arc;

fn message(head: &[u8], length: usize) -> Message {
    // The period is prime, so that a shift by a block is noticed.
    let period: Vec<u8> = (0..251).map(|at: u8| at.wrapping_mul(167)).collect();
    let mut body = period.repeat(length.div_ceil(period.len()));
    body.truncate(length);
    Message::new(head.to_vec(), body)
}

fn head(numbers: [u32; 2]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(head: &[u8]) -> [u32; 2] {
    [0, 4].map(|at| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()))
}

#[test]
fn messages_of_each_pair_arrive_complete_and_in_order() {
    for (kind, workers) in KINDS.into_iter().flat_map(|kind| (2..=6).map(move |workers| (kind, workers))) {
        watched(move || {
            let (workers, count) = (world(kind, workers), 40);
            std::thread::scope(|scope| {
                for (me, worker) in workers.iter().enumerate() {
                    let others = (0..workers.len()).filter(move |to| *to != me);
                    scope.spawn(move || {
                        let mut random = SplitMix(me as u64);
                        let sizes = [0, 1, 15, 16, 17, 1000, 16_384, 70_000, 300_000];
                        for number in 0..count {
                            for to in others.clone() {
                                let length = random.of(&sizes);
                                let head = head([number, length as u32]);
                                worker.transport.send(to, message(&head, length));
                            }
                        }
                        worker.kept.count(worker.to_poll(), count as usize * others.count());
                    });
                }
            });
            for (me, worker) in workers.iter().enumerate() {
                let come = worker.kept.take();
                for from in (0..workers.len()).filter(|from| *from != me) {
                    let of = come.messages.iter().filter(|(worker, _)| *worker == from);
                    for (number, (_, got)) in of.enumerate() {
                        let [sent, length] = numbers(&got.head);
                        assert_eq!(sent as usize, number, "{kind:?}: {from} to {me}");
                        assert_eq!(*got, message(&got.head, length as usize), "{kind:?}: {from} to {me}");
                    }
                }
                assert_eq!(come.lost, []);
            }
        });
    }
}

#[test]
fn two_workers_can_send_each_other_64_mib_at_once() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 2);
            let sent = message(b"large", 64 << 20);
            std::thread::scope(|scope| {
                for (me, worker) in workers.iter().enumerate() {
                    let sent = sent.clone();
                    scope.spawn(move || {
                        worker.transport.send(1 - me, sent);
                        worker.kept.count(worker.to_poll(), 1);
                    });
                }
            });
            for worker in &workers {
                assert!(worker.kept.take().messages[0].1 == sent, "{kind:?}");
            }
        });
    }
}

#[test]
fn several_threads_may_send_and_poll_at_once() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 3);
            let (threads, count) = (3, 40);
            std::thread::scope(|scope| {
                for (me, worker) in workers.iter().enumerate() {
                    for thread in 0..threads {
                        scope.spawn(move || {
                            for number in 0..count {
                                for to in (0..3).filter(|to| *to != me) {
                                    let length = (number as usize * 7919) % 50_000;
                                    worker.transport.send(to, message(&head([thread, number]), length));
                                }
                            }
                            worker.kept.count(worker.to_poll(), (2 * threads * count) as usize);
                        });
                    }
                }
            });
            for worker in &workers {
                let come = worker.kept.take();
                assert_eq!(come.messages.len(), (2 * threads * count) as usize);
                for from in 0..3 {
                    for thread in 0..threads {
                        let of = come.messages.iter().filter(|(worker, _)| *worker == from);
                        let of = of.map(|(_, message)| numbers(&message.head));
                        let of: Vec<_> = of.filter(|[sender, _]| *sender == thread).collect();
                        assert!(of.is_sorted(), "{kind:?}: {of:?}");
                    }
                }
            }
        });
    }
}

#[test]
fn sent_messages_arrive_though_no_thread_polls() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 2);
            for length in [10, 20 << 20] {
                workers[0].transport.send(1, message(b"a", length));
                workers[1].transport.send(0, message(b"b", length));
            }
            for worker in &workers {
                worker.kept.count(None, 2);
            }
        });
    }
}

// INV-29
#[test]
fn a_peer_that_exits_is_disconnected_once_after_all_its_messages() {
    for (kind, closes) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        watched(move || {
            let mut workers = world(kind, 3);
            let first = workers.remove(0);
            // Only this worker sends, because messages to it may be lost after its end.
            for to in [1, 2] {
                first.transport.send(to, message(b"large", 8 << 20));
                first.transport.send(to, message(b"last", 0));
            }
            if closes {
                first.transport.close();
                first.transport.close();
                first.transport.send(1, message(b"never", 0));
            }
            drop(first);
            for worker in &workers {
                assert_eq!(worker.kept.loss(worker.to_poll(), 0), ENDED, "{kind:?}");
                worker.transport.send(0, message(b"into the void", 1 << 20));
                let come = worker.kept.take();
                let heads: Vec<_> = come.messages.iter().map(|(_, message)| &message.head[..]).collect();
                assert_eq!(heads, [&b"large"[..], b"last"], "{kind:?}");
                assert_eq!(come.before, [2]);
            }
            // The others go on.
            workers[0].transport.send(2, message(b"on", 5));
            workers[1].kept.count(workers[1].to_poll(), 1);
            let come: Come = workers[1].kept.take();
            assert_eq!((come.messages[0].0, come.lost), (1, vec![]), "{kind:?}");
        });
    }
}

#[test]
fn two_peers_that_close_at_once_disconnect_once() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Memory) {
        watched(move || {
            let workers = world(kind, 2);
            let kept: Vec<_> = workers.iter().map(|worker| worker.kept.clone()).collect();
            for (me, worker) in workers.iter().enumerate() {
                worker.transport.send(1 - me, message(b"large", 4 << 20));
            }
            std::thread::scope(|scope| {
                for worker in workers {
                    scope.spawn(move || drop(worker));
                }
            });
            let reasons: Vec<_> = kept.iter().enumerate().map(|(me, kept)| kept.loss(None, 1 - me)).collect();
            // A worker may have learned of the end of the other before its own.
            assert!(reasons.iter().any(|reason| reason == ENDED), "{kind:?}: {reasons:?}");
            for kept in &kept {
                let come = kept.take();
                assert!(come.messages.len() <= 1, "{kind:?}");
                assert_eq!(come.lost.len(), 1, "{kind:?}");
            }
        });
    }
}

#[test]
fn messages_to_no_receiver_are_dropped() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 2);
            workers[0].transport.send(0, message(b"to itself", 1));
            workers[0].transport.send(7, message(b"to nobody", 1));
            workers[0].transport.send(1, message(b"to the other", 1));
            workers[1].kept.count(workers[1].to_poll(), 1);
            assert_eq!(workers[0].kept.take().messages, []);
        });
    }
}

#[test]
fn transports_can_be_shared_and_shown() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 2);
            let transport: Arc<dyn Transport> = workers[0].transport.clone();
            let shown = format!("{transport:?}");
            assert!(shown.starts_with("Me") && shown.contains("of 2"), "{shown}");
        });
    }
}
