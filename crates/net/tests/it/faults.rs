//! Workers that exit, stop or become silent, in their own processes.

use crate::support::{Kept, addresses, patient};
use distribute_cluster::{Stopwatch, World};
use distribute_net::{Listener, Mesh, Message, Rendezvous, Settings, SharedMemory, Transport};
use distribute_testing::child::{self, Killed};
use distribute_testing::watched;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The two kinds of links: sockets only, and sockets with shared memory.
const BOTH: [SharedMemory; 2] = [SharedMemory::Never, SharedMemory::Auto];

fn join(
    worker: usize,
    port: u16,
    listener: Option<Listener>,
    settings: Settings,
    shared_memory: SharedMemory,
) -> (Mesh, Arc<Kept>) {
    let world = World::new(2, worker, 1).unwrap();
    let rendezvous = Rendezvous::new(world, addresses(2, "127.0.0.1", port));
    let rendezvous = rendezvous.settings(settings).shared_memory(shared_memory);
    let rendezvous = match listener {
        Some(listener) => rendezvous.listener(listener),
        None => rendezvous,
    };
    let kept = Kept::new();
    let mesh = rendezvous.join(kept.clone()).unwrap();
    assert_eq!(mesh.is_near(1 - worker), shared_memory == SharedMemory::Auto);
    (mesh, kept)
}

/// Runs as the second worker, and returns `true`, if the test has started this process as one.
fn second() -> bool {
    let Some(part) = child::part() else { return false };
    let [port, what, memory] = part.split(' ').collect::<Vec<_>>()[..] else { panic!("{part}") };
    let shared_memory = if memory == "Auto" { SharedMemory::Auto } else { SharedMemory::Never };
    let (mesh, kept) = join(1, port.parse().unwrap(), None, patient(), shared_memory);
    mesh.send(0, Message::new("there", vec![7; 1 << 20]));
    match what {
        "exits" => std::process::exit(0),
        "ends" => {}
        // Runs until it is killed, or until the first worker is gone.
        _ => drop(kept.loss(None, 0)),
    }
    true
}

/// Creates a world of this process and a second one, which has already sent a message.
fn two(test: &str, what: &str, settings: Settings, shared_memory: SharedMemory) -> (Mesh, Arc<Kept>, Killed) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let port = listener.address().unwrap().port();
    let part = format!("{port} {what} {shared_memory:?}");
    let child = Killed(child::command(test, &part).spawn().unwrap());
    let (mesh, kept) = join(0, port, Some(listener), settings, shared_memory);
    kept.count(None, 1);
    (mesh, kept, child)
}

fn signal(child: &Killed, signal: Signal) {
    kill_process(Pid::from_child(&child.0), signal).unwrap();
}

// INV-29
#[test]
fn a_killed_worker_is_detected_with_and_without_a_pending_call() {
    const TEST: &str = "faults::a_killed_worker_is_detected_with_and_without_a_pending_call";
    watched(|| {
        if second() {
            return;
        }
        for (waits, memory) in [false, true].into_iter().flat_map(|waits| BOTH.map(|memory| (waits, memory)))
        {
            let (mesh, kept, child) = two(TEST, "stays", patient(), memory);
            let watch = Stopwatch::start();
            signal(&child, Signal::KILL);
            let reason = kept.loss(waits.then_some(&mesh as &dyn Transport), 1);
            eprintln!("noticed after {:?}, waiting: {waits}, {memory:?}: {reason}", watch.elapsed());
            assert!(["it closed its connection", "connection reset"].contains(&&*reason), "{reason}");
            assert_eq!((kept.take().messages.len(), mesh.world().workers()), (1, 2));
        }
    });
}

#[test]
fn a_worker_killed_while_it_is_sent_something_is_noticed() {
    const TEST: &str = "faults::a_worker_killed_while_it_is_sent_something_is_noticed";
    watched(|| {
        if second() {
            return;
        }
        for memory in BOTH {
            let (mesh, kept, child) = two(TEST, "stays", patient(), memory);
            signal(&child, Signal::STOP);
            // More than the sockets, or a ring, take: the rest waits here.
            mesh.send(1, Message::new("large", vec![1; 64 << 20]));
            signal(&child, Signal::KILL);
            let reason = kept.loss(Some(&mesh), 1);
            assert!(["it closed its connection", "connection reset"].contains(&&*reason), "{reason}");
        }
    });
}

#[test]
fn a_worker_that_exits_without_a_message_is_not_a_finished_one() {
    const TEST: &str = "faults::a_worker_that_exits_without_a_message_is_not_a_finished_one";
    watched(|| {
        if second() {
            return;
        }
        let ends = [("exits", false), ("ends", true)];
        for ((what, ended), memory) in ends.into_iter().flat_map(|end| BOTH.map(|memory| (end, memory))) {
            let listener = Listener::bind("127.0.0.1:0").unwrap();
            let port = listener.address().unwrap().port();
            let part = format!("{port} {what} {memory:?}");
            let _child = Killed(child::command(TEST, &part).spawn().unwrap());
            let (_mesh, kept) = join(0, port, Some(listener), patient(), memory);
            let reason = kept.loss(None, 1);
            assert_eq!(reason == distribute_net::ENDED, ended, "{what}: {reason}");
            // Messages that were sent before an orderly end arrive.
            assert!(kept.take().messages.len() == 1 || !ended);
        }
    });
}

#[test]
fn a_stopped_worker_is_lost_although_its_socket_is_open_and_one_that_is_only_idle_is_not() {
    const TEST: &str =
        "faults::a_stopped_worker_is_lost_although_its_socket_is_open_and_one_that_is_only_idle_is_not";
    watched(|| {
        if second() {
            return;
        }
        // Each takes seconds of waiting.
        thread::scope(|scope| {
            for (waits, memory) in [(false, BOTH[0]), (true, BOTH[0]), (false, BOTH[1]), (true, BOTH[1])] {
                scope.spawn(move || {
                    let settings = Settings { silence: Duration::from_secs(3), ..Settings::default() };
                    let (mesh, kept, child) = two(TEST, "stays", settings, memory);
                    let to_poll = waits.then_some(&mesh as &dyn Transport);
                    // Idle, and alive by its heartbeats.
                    let watch = Stopwatch::start();
                    kept.until(to_poll, "the time", |come| {
                        assert_eq!(come.lost, []);
                        (watch.elapsed() > Duration::from_secs(4)).then_some(())
                    });
                    let watch = Stopwatch::start();
                    signal(&child, Signal::STOP);
                    let reason = kept.loss(to_poll, 1);
                    eprintln!("noticed after {:?}, waiting: {waits}", watch.elapsed());
                    assert_eq!(reason, "it has sent nothing for 3.0 s");
                    assert!(watch.elapsed() > Duration::from_secs(2));
                });
            }
        });
    });
}
