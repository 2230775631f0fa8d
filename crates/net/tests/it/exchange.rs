//! Exchanges of short messages by workers that share memory.

use crate::support::{KINDS, Kind, PATIENCE, Worker, world};
use bytes::Bytes;
use distribute_net::{Message, PollOutcome};
use distribute_testing::{SplitMix, watched};

const SHARED: [Kind; 2] = [Kind::Shared, Kind::SharedByTls];

/// Sends a body to all other workers, and returns the bodies that arrived in the exchange, by worker.
fn exchange(worker: &Worker, me: usize, workers: usize, head: &[u8], body: &Bytes) -> Vec<Option<Bytes>> {
    let mut bodies: Vec<_> = (0..workers).map(|to| (to != me).then(|| body.clone())).collect();
    worker.transport.exchange(head, &mut bodies);
    bodies
}

fn body(worker: usize, round: u32, length: usize) -> Bytes {
    let number = round.wrapping_mul(31).wrapping_add(worker as u32);
    number.to_le_bytes().repeat(length.div_ceil(4)).into()
}

#[test]
fn workers_that_do_not_share_memory_receive_nothing_in_an_exchange() {
    for kind in KINDS {
        watched(move || {
            let workers = world(kind, 3);
            assert!(workers.iter().all(|worker| worker.transport.shares_memory() == SHARED.contains(&kind)));
            let received: Vec<_> = (0..3)
                .map(|me| exchange(&workers[me], me, 3, b"head", &Bytes::from(vec![me as u8])))
                .collect();
            for (me, received) in received.into_iter().enumerate() {
                // The exchanges are made one after another, and the threads in the background may receive first.
                let at_once = received.iter().flatten().count();
                assert!(at_once <= if SHARED.contains(&kind) { me } else { 0 }, "{kind:?}");
                workers[me].kept.count(workers[me].to_poll(), 2 - at_once);
                let come = workers[me].kept.take().messages;
                let delivered = come.into_iter().map(|(from, message)| (from, message.body));
                let at_once = received.into_iter().enumerate().filter_map(|(from, body)| Some((from, body?)));
                let mut all: Vec<_> = at_once.chain(delivered).collect();
                all.sort();
                let of = |from: usize| (from, Bytes::from(vec![from as u8]));
                assert_eq!(all, (0..3).filter(|from| *from != me).map(of).collect::<Vec<_>>(), "{kind:?}");
            }
        });
    }
}

// INV-115
#[test]
fn each_worker_gets_the_messages_of_all_others_of_any_length() {
    for (kind, workers) in SHARED.into_iter().flat_map(|kind| [2, 3, 5].map(|workers| (kind, workers))) {
        watched(move || {
            let workers = world(kind, workers);
            let run = |me: usize| {
                let (worker, mut random, mut at_once) = (&workers[me], SplitMix(5), 0);
                // Messages of a worker that is a round ahead.
                let mut early = Vec::<(usize, Message)>::new();
                for round in 0..100_u32 {
                    // The last ones are too long to be short.
                    let length = random.of(&[0, 4, 64, 1000, 2044, 4096, 100_000]);
                    let head = round.to_le_bytes();
                    let mut all = exchange(worker, me, workers.len(), &head, &body(me, round, length));
                    at_once += all.iter().flatten().count();
                    let mut delivered = std::mem::take(&mut early);
                    loop {
                        for (from, message) in delivered {
                            if message.head[..] == head {
                                assert!(all[from].replace(message.body).is_none());
                            } else {
                                assert_eq!(message.head[..], (round + 1).to_le_bytes());
                                early.push((from, message));
                            }
                        }
                        if all.iter().flatten().count() + 1 == workers.len() {
                            break;
                        }
                        worker.kept.count(worker.to_poll(), 1);
                        delivered = worker.kept.take().messages;
                    }
                    for (from, got) in all.into_iter().enumerate().filter(|(from, _)| *from != me) {
                        assert!(got == Some(body(from, round, length)), "round {round}, {length} bytes");
                    }
                }
                at_once
            };
            let at_once: usize = std::thread::scope(|scope| {
                let run = &run;
                let threads: Vec<_> = (0..workers.len()).map(|me| scope.spawn(move || run(me))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert!(at_once > 0);
        });
    }
}

// INV-115
#[test]
fn messages_before_and_after_an_exchange_keep_their_order() {
    watched(|| {
        let workers = world(Kind::Shared, 2);
        let [first, second] = &workers[..] else { panic!() };
        let rounds = 200_u32;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    first.transport.send(1, Message::new("before", vec![1; 3000 * (round as usize % 50)]));
                    // The other side has another head, so it gets this message from its receiver.
                    let received = exchange(first, 0, 2, b"first", &Bytes::from_static(b"!"));
                    assert_eq!(received, [None, None]);
                    first.transport.send(1, Message::new("after", ""));
                }
                first.kept.count(first.to_poll(), rounds as usize);
            });
            scope.spawn(|| {
                for _ in 0..rounds {
                    assert_eq!(exchange(second, 1, 2, b"second", &Bytes::new()), [None, None]);
                }
                second.kept.count(second.to_poll(), 3 * rounds as usize);
            });
        });
        let come = second.kept.take().messages;
        let heads: Vec<_> = come.iter().map(|(_, message)| &message.head[..]).collect();
        let expected = [&b"before"[..], b"first", b"after"];
        assert!(
            heads.iter().zip(expected.iter().cycle()).all(|(head, expected)| head == expected),
            "{heads:?}"
        );
        assert!(first.kept.take().messages.iter().all(|(_, message)| message.head == "second"));
    });
}

#[test]
fn an_exchange_wakes_a_worker_that_sleeps() {
    watched(|| {
        let workers = world(Kind::Shared, 2);
        for _ in 0..20 {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    // This thread spins for a short time, and then sleeps.
                    let outcome = workers[1].transport.poll(PATIENCE, &|| !workers[1].kept.is_empty());
                    matches!(outcome, PollOutcome::Delivered | PollOutcome::Elsewhere)
                });
                for _ in 0..3000 {
                    std::thread::yield_now();
                }
                assert_eq!(exchange(&workers[0], 0, 2, b"head", &Bytes::new()), [None, None]);
                assert!(waiting.join().unwrap());
            });
            workers[1].kept.count(workers[1].to_poll(), 1);
            workers[1].kept.take();
        }
    });
}
