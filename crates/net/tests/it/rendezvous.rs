//! Rendezvous of workers, and the errors when it fails.

use crate::support::{Kept, addresses, meshes, patient};
use distribute_cluster::{Job, World};
use distribute_net::identity::PolicyError;
use distribute_net::{
    Credentials, Identity, JoinError, Listener, Message, PollOutcome, Rendezvous, Transport,
};
use distribute_testing::{Port, SplitMix, watched};
use std::sync::mpsc;
use std::time::Duration;

fn alone_of(workers: usize, worker: usize, addresses: Vec<String>) -> Rendezvous {
    let world = World::new(workers, worker, 1).unwrap();
    Rendezvous::new(world, addresses).settings(patient()).timeout(Duration::from_secs(40))
}

#[test]
fn workers_may_start_in_any_order_and_at_any_time() {
    watched(|| {
        let mut random = SplitMix(11);
        for round in 0..8 {
            let workers = 2 + random.below(5);
            let mut order: Vec<_> = (0..workers).collect();
            for last in (1..workers).rev() {
                order.swap(last, random.below(last + 1));
            }
            let reserved = Port::reserve();
            let port = reserved.number();
            let (_keep, never) = mpsc::channel::<()>();
            let kept: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = order
                    .iter()
                    .map(|&worker| {
                        // The pause is part of the test.
                        let _ = never.recv_timeout(Duration::from_millis(random.below(60) as u64));
                        scope.spawn(move || {
                            let addresses = addresses(workers, "127.0.0.1", port);
                            let kept = Kept::new();
                            let mesh = alone_of(workers, worker, addresses).join(kept.clone()).unwrap();
                            for to in (0..workers).filter(|to| *to != worker) {
                                mesh.send(to, Message::new(vec![worker as u8], vec![]));
                            }
                            kept.count(Some(&mesh), workers - 1);
                            (mesh, kept)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (_, kept) in &kept {
                let come = kept.take();
                assert!(come.messages.iter().all(|(from, message)| message.head[..] == [*from as u8]));
                assert_eq!((come.messages.len(), come.lost), (workers - 1, vec![]), "round {round}");
            }
        }
    });
}

#[test]
fn missing_workers_are_logged_every_second_and_named_at_the_deadline() {
    watched(|| {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let port = listener.address().unwrap().port();
        let mut all = addresses(3, "127.0.0.1", port);
        all[2] = "127.0.0.1:2222".to_owned();
        let (said, heard) = mpsc::channel();
        let told = said.clone();
        let leader = alone_of(3, 0, all.clone())
            .listener(listener)
            .on_progress(move |progress| drop(said.send((0, progress.to_string()))))
            .timeout(Duration::from_secs(4));
        let second = alone_of(3, 1, all)
            .on_progress(move |progress| drop(told.send((1, progress.to_string()))))
            .timeout(Duration::from_secs(3));
        let errors = std::thread::scope(|scope| {
            let threads =
                [second, leader].map(|worker| scope.spawn(move || worker.join(Kept::new()).unwrap_err()));
            threads.map(|thread| thread.join().unwrap())
        });
        let said: Vec<_> = heard.try_iter().collect();
        for worker in [0, 1] {
            let line = |(who, line): &&(i32, String)| {
                *who == worker
                    && line.starts_with("2 of 3 workers joined after ")
                    && line.ends_with(" s, missing worker 2 at 127.0.0.1:2222")
            };
            assert!(said.iter().any(|said| line(&said)), "worker {worker}: {said:?}");
        }
        let JoinError::Deadline { missing, workers: 3, loopback: true, .. } = &errors[0] else {
            panic!("{errors:?}")
        };
        assert_eq!((missing.len(), missing[0].worker), (1, 2));
        for error in errors.map(|error| error.to_string()) {
            assert!(error.starts_with("the world is not complete after "), "{error}");
            assert!(error.contains("workers are missing: worker "), "{error}");
            assert!(error.contains("(loopback addresses only reach this machine)"), "{error}");
        }
    });
}

#[test]
fn a_missing_leader_is_named_with_the_error_of_the_last_attempt() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        let second = alone_of(2, 1, addresses(2, "127.0.0.1", port)).timeout(Duration::from_millis(300));
        let error = second.join(Kept::new()).unwrap_err().to_string();
        assert!(error.contains(&format!("worker 0 at 127.0.0.1:{port} (connection refused)")), "{error}");
    });
}

#[test]
fn a_worker_that_exits_before_the_rendezvous_is_complete_may_return() {
    watched(|| {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let port = listener.address().unwrap().port();
        let of_three = move |worker| alone_of(3, worker, addresses(3, "127.0.0.1", port));
        std::thread::scope(|scope| {
            let join = |worker: Rendezvous| {
                let kept = Kept::new();
                let mesh = worker.join(kept.clone()).unwrap();
                (mesh, kept)
            };
            let leader = scope.spawn(move || join(of_three(0).listener(listener)));
            // To the others, giving up is the same as exiting.
            let error = of_three(1).timeout(Duration::from_millis(1500)).join(Kept::new()).unwrap_err();
            assert!(matches!(error, JoinError::Deadline { .. }), "{error}");
            let again = scope.spawn(move || join(of_three(1)));
            let third = scope.spawn(move || join(of_three(2)));
            let all = [leader, again, third].map(|thread| thread.join().unwrap());
            all[1].0.send(2, Message::new("a", vec![]));
            all[2].1.count(Some(&all[2].0), 1);
        });
    });
}

#[test]
fn a_worker_of_a_later_generation_waits_for_the_leader_of_its_generation() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        let of = move |worker, generation| {
            alone_of(2, worker, addresses(2, "127.0.0.1", port)).generation(generation)
        };
        std::thread::scope(|scope| {
            let (reached, waits) = mpsc::channel();
            let new = of(1, 2).on_progress(move |progress| {
                let last = progress.missing.first().and_then(|missing| missing.last.clone());
                if last.is_some_and(|last| last.contains("worker 0 of generation 1")) {
                    let _ = reached.send(());
                }
            });
            let new = scope.spawn(move || new.join(Kept::new()).map(drop).unwrap());
            let old = scope.spawn(move || of(0, 1).timeout(Duration::from_secs(4)).join(Kept::new()));
            waits.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(old.join().unwrap().is_err());
            of(0, 2).join(Kept::new()).unwrap();
            new.join().unwrap();
        });
    });
}

#[test]
fn detectable_mistakes_are_refused_before_waiting() {
    watched(|| {
        let all = |addresses: &[&str]| addresses.iter().map(|&a| a.to_owned()).collect::<Vec<_>>();
        let error = |addresses: &[&str], identity: Identity| {
            let worker = alone_of(2, 1, all(addresses)).credentials(identity);
            worker.join(Kept::new()).unwrap_err()
        };
        for (addresses, text) in [
            (&["127.0.0.1:1"][..], "there are 1 for 2 workers"),
            (&["127.0.0.1:1", "127.0.0.1"], "\"127.0.0.1\" of worker 1 is not host:port"),
            (&["127.0.0.1:0", "127.0.0.1:1"], "\"127.0.0.1:0\" of worker 0 has no port"),
            (&["127.0.0.1:1", "10.9.8.7:1"], "127.0.0.1:1 of worker 0 is a loopback address"),
            (
                &["10.9.8.7:1", "10.9.8.8:1"],
                "10.9.8.7:1 can be reached over the network, and any process could join",
            ),
        ] {
            let error = error(addresses, Identity::None).to_string();
            assert!(error.contains(text), "{error}");
        }
        let taken = Listener::bind("127.0.0.1:0").unwrap();
        let taken = taken.address().unwrap().to_string();
        let found = error(&["127.0.0.1:1", &taken], Identity::None).to_string();
        assert!(found.contains(&format!("worker 1 cannot listen at {taken}")), "{found}");
        assert!(found.contains("stop it, or choose another port"), "{found}");
        let source = std::io::ErrorKind::AddrNotAvailable.into();
        let found =
            JoinError::Bind { worker: 1, task: Job::Worker.task(1), address: "10.0.0.9:1".into(), source }
                .to_string();
        assert!(found.contains("is this the right worker?"), "{found}");
    });
}

fn without_encryption() -> Credentials {
    Credentials::from(Identity::None).allow_plain_text_on_the_network()
}

#[test]
fn plain_text_leaves_the_machine_only_if_that_is_asked_for_by_name() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        let far = move || alone_of(2, 0, addresses(2, "0.0.0.0", port));
        let error = far().join(Kept::new()).unwrap_err();
        assert!(matches!(error, JoinError::Policy(PolicyError::PlainTextOnTheNetwork { .. })), "{error}");
        let allowed = |worker: Rendezvous| worker.credentials(without_encryption());
        let pair = meshes(2, "0.0.0.0", allowed);
        pair[0].0.send(1, Message::new("in the open", vec![]));
        pair[1].1.count(Some(&pair[1].0), 1);
    });
}

#[test]
fn a_world_of_one_needs_no_socket() {
    watched(|| {
        let kept = Kept::new();
        let mesh = Rendezvous::new(World::alone(4).unwrap(), vec![]).join(kept.clone()).unwrap();
        mesh.send(0, Message::new("to itself", vec![]));
        assert_eq!(mesh.poll(Duration::ZERO, &|| false), PollOutcome::Never);
        mesh.close();
        drop(mesh);
        assert_eq!(kept.take().messages, []);
    });
}

#[test]
fn a_missing_worker_is_named_by_its_task() {
    watched(|| {
        let tasks = || vec![Job::Chief.task(0), Job::Worker.task(0), Job::Worker.task(1)];
        let reserved = Port::reserve();
        let port = reserved.number();
        let join = |worker| {
            let rendezvous = alone_of(3, worker, addresses(3, "127.0.0.1", port));
            rendezvous
                .tasks(tasks())
                // The chief is there when the worker gives up.
                .timeout(Duration::from_secs(if worker == 0 { 4 } else { 2 }))
                .join(Kept::new())
                .unwrap_err()
                .to_string()
        };
        let (worker, chief) = std::thread::scope(|scope| {
            let chief = scope.spawn(|| join(0));
            (join(1), chief.join().unwrap())
        });
        assert!(worker.contains("missing: worker 1 at 127.0.0.1:0"), "{worker}");
        assert!(chief.contains("worker 1 at 127.0.0.1:0") && !chief.contains("worker 2"), "{chief}");
        // A chief that is not there.
        let absent = Port::reserve();
        let error = alone_of(2, 1, addresses(2, "127.0.0.1", absent.number()));
        let error = error.tasks(tasks()).timeout(Duration::from_millis(100)).join(Kept::new()).unwrap_err();
        assert!(error.to_string().contains("missing: chief 0 at 127.0.0.1:"), "{error}");
        // The address does not belong to this machine.
        let all = vec!["192.0.2.1:9".to_owned(), "192.0.2.1:8".to_owned()];
        let error = alone_of(2, 0, all).tasks(tasks()).credentials(without_encryption());
        let error = error.join(Kept::new()).unwrap_err().to_string();
        assert!(error.starts_with("chief 0 cannot listen at 192.0.2.1:9"), "{error}");
    });
}
