//! Messages in which a bit changes on the way.

use crate::group::{call, workers_of};
use bytes::Bytes;
use distribute_cluster::{Blame, Cause, Fault, ReplicaStatus, World};
use distribute_collective::Failure;
use distribute_collective::group::{Checksums, Group, GroupCall, Inbox, Session};
use distribute_net::memory::{self, Memory};
use distribute_net::{
    Identity, Listener, Message, PollOutcome, Receiver, Rendezvous, Secret, SharedMemory, Transport,
};
use distribute_testing::{own_address, skipped, watched};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// The change of a message from one worker to another.
type Change = Arc<dyn Fn(usize, usize, Message) -> Message + Send + Sync>;

/// Links in memory that change messages.
struct Flipping {
    inner: Memory,
    worker: usize,
    change: Change,
}

impl Transport for Flipping {
    fn send(&self, to: usize, message: Message) {
        self.inner.send(to, (self.change)(self.worker, to, message));
    }
    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.inner.poll(patience, is_there)
    }
    fn close(&self) {
        self.inner.close();
    }
}

impl fmt::Debug for Flipping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flipping({:?})", self.inner)
    }
}

/// Returns the groups of all workers. `change` changes the messages between them.
fn groups(workers: usize, checksums: impl Fn(usize) -> Checksums, change: Change) -> Vec<Group> {
    let inboxes: Vec<_> = (0..workers).map(|_| Inbox::new(workers)).collect();
    let receivers = inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
    let all = memory::transports(receivers).into_iter().zip(inboxes).enumerate();
    all.map(|(worker, (inner, inbox))| {
        let world = World::new(workers, worker, 1).unwrap();
        let links = Flipping { inner, worker, change: change.clone() };
        Group::new(world, Arc::new(links), inbox).checksums(checksums(worker))
    })
    .collect()
}

fn flipped(bytes: &Bytes, bit: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    let bit = bit % (8 * bytes.len());
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes.into()
}

/// Returns a change that flips a bit of one message from worker `from` to worker `to`, the one after `before` others
/// that have a body. The bit is in the head if `of_head` is `true`, and otherwise in the body.
fn one_bit(from: usize, to: usize, before: usize, bit: usize, of_head: bool) -> Change {
    let seen = AtomicUsize::new(0);
    Arc::new(move |sender, receiver, message: Message| {
        let concerns = (sender, receiver) == (from, to) && !message.body.is_empty();
        if !concerns || seen.fetch_add(1, Ordering::Relaxed) != before {
            message
        } else if of_head {
            Message { head: flipped(&message.head, bit), ..message }
        } else {
            Message { body: flipped(&message.body, bit), ..message }
        }
    })
}

fn calling(session: &Session, detail: &str) -> Vec<ReplicaStatus> {
    vec![ReplicaStatus::waiting(session.world().worker(), call(detail))]
}

/// Makes rounds until one fails. Returns the error, and the number of rounds that have succeeded.
fn rounds(group: &Group) -> (Arc<Blame>, usize) {
    let session = group.open("rounds", 1);
    let made = (0..).find_map(|number| {
        let body = |to| Bytes::from(format!("round {number} of {} for {to}", session.world().worker()));
        let made = session.all_to_all(calling(&session, "some data"), body, LONG);
        let all = match made {
            Err(blame) => return Some((blame, number)),
            Ok(all) => all,
        };
        // All data that is used equals what was sent.
        for (from, bytes) in all.iter().enumerate().filter(|(from, _)| *from != session.world().worker()) {
            assert_eq!(*bytes, format!("round {number} of {from} for {}", session.world().worker()));
        }
        None
    });
    made.unwrap()
}

// INV-104, INV-2
#[test]
fn a_flipped_bit_is_blamed_on_all_workers_with_sender_and_receiver() {
    watched(|| {
        for workers in 2..=4 {
            for (case, before) in (0..workers * (workers - 1)).zip([0, 1, 5].into_iter().cycle()) {
                let from = case / (workers - 1);
                let to = (from + 1 + case % (workers - 1)) % workers;
                let change = one_bit(from, to, before, 31 * case + 7, false);
                let failed = workers_of(groups(workers, |_| Checksums::Always, change), |group| {
                    let failed = rounds(&group);
                    // The worker is lost until the group re-forms.
                    let again = rounds(&group).0;
                    assert_eq!(again.fault, Fault::Corrupted, "{again}");
                    failed
                });
                for (blame, made) in &failed {
                    let Cause::Corrupted { corruption, .. } = &blame.cause else { panic!("{blame}") };
                    assert_eq!((corruption.sender, corruption.receiver), (from, to), "{blame}");
                    let mut both = [from, to];
                    both.sort_unstable();
                    assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Corrupted, &both[..]));
                    // Workers that had received all data learn of the corruption in the next round.
                    assert!((before..before + 2).contains(made), "{made} rounds, {before} before");
                    assert_eq!(blame.to_string(), failed[0].0.to_string());
                }
                assert_eq!(failed[to].1, before);
            }
        }
    });
}

// INV-104
#[test]
fn a_flipped_bit_of_a_head_is_blamed_on_its_sender() {
    watched(|| {
        for bit in 0..240 {
            let change = one_bit(1, 0, 2, bit, true);
            let failed = workers_of(groups(3, |_| Checksums::Always, change), |group| rounds(&group).0);
            for blame in &failed {
                let named = (blame.fault, &blame.culprits[..]);
                assert_eq!(named, (Fault::Corrupted, &[0, 1][..]), "bit {bit}: {blame}");
                assert_eq!(blame.to_string(), failed[0].to_string());
            }
        }
    });
}

/// Sends vectors early, and receives those of the others in a call.
fn early(group: &Group, len: usize) -> Result<(), Failure> {
    let session = group.open("early", 1);
    let ahead = session.early_send();
    let mine: Vec<Bytes> = (0..2).map(|part| vec![part as u8; len].into()).collect();
    for (part, vector) in mine.iter().enumerate() {
        ahead.send_far(part, vector);
    }
    let mut calling = GroupCall::new(&session, calling(&session, "its gradients"), LONG);
    calling.barrier("the call")?;
    let all = calling.receive_early_ranges(ahead.call(), &mine, |_| 1)?;
    let is_sent = |(part, bytes): (usize, &Bytes)| bytes.iter().all(|byte| *byte == part as u8);
    assert!(all.iter().all(|parts| parts.iter().enumerate().all(is_sent)), "changed data is used");
    // Workers that sum ranges make this round as well.
    calling.barrier("its sums")
}

// INV-104, INV-2
#[test]
fn a_flipped_bit_of_a_vector_that_is_sent_early_is_blamed_with_its_bucket() {
    watched(|| {
        for workers in 2..=3 {
            for bucket in 0..2 {
                let change = one_bit(1, 0, bucket, 1000, false);
                let failed = workers_of(groups(workers, |_| Checksums::Always, change), |group| {
                    early(&group, 4000).unwrap_err().to_string()
                });
                let part = format!("bucket {bucket} of worker 1 (");
                assert!(failed[0].contains(&part) && failed[0].contains("its gradients"), "{}", failed[0]);
                assert!(failed.iter().all(|text| *text == failed[0]), "{failed:#?}");
            }
        }
    });
}

#[test]
fn without_checksums_a_flipped_bit_is_not_noticed() {
    watched(|| {
        let seen = workers_of(groups(2, |_| Checksums::Never, one_bit(1, 0, 0, 3, false)), |group| {
            let session = group.open("rounds", 1);
            session.all_to_all(calling(&session, ""), |_| Bytes::from_static(b"data"), LONG).unwrap()
        });
        assert!(seen[0][1] != "data" && seen[1][0] == "data");
    });
}

#[test]
fn a_worker_without_checksums_is_lost_to_one_that_requires_them() {
    watched(|| {
        let setting = |worker| if worker == 2 { Checksums::Never } else { Checksums::Always };
        let blames =
            workers_of(groups(3, setting, Arc::new(|_, _, message| message)), |group| rounds(&group).0);
        for blame in &blames {
            assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Lost, &[2][..]), "{blame}");
            assert!(blame.to_string().contains("DISTRIBUTE_CHECKSUMS"), "{blame}");
        }
    });
}

#[test]
fn links_of_one_machine_have_no_checksums_unless_requested() {
    watched(|| {
        for (checksums, trailer) in [(Checksums::Auto, 0), (Checksums::Always, 8)] {
            let longest = Arc::new(AtomicUsize::new(0));
            let seen = longest.clone();
            let change: Change = Arc::new(move |_, _, message: Message| {
                seen.fetch_max(message.head.len(), Ordering::Relaxed);
                message
            });
            workers_of(groups(2, |_| checksums, change), |group| {
                let session = group.open("rounds", 1);
                session.all_to_all(calling(&session, ""), |_| Bytes::from_static(b"data"), LONG).unwrap();
            });
            // Names, numbers and a digest, in at most 10 bytes each.
            let longest = longest.load(Ordering::Relaxed);
            assert!((trailer + 20..trailer + 26).contains(&longest), "{longest}");
        }
    });
}

/// Joins two workers by sockets at this address. The first requires checksums, and the second has the default.
fn joined(host: &str) -> Vec<Group> {
    let listener = Listener::bind(&format!("{host}:0")).unwrap();
    let port = listener.address().unwrap().port();
    let addresses = vec![format!("{host}:{port}"), format!("{host}:0")];
    let mut listener = Some(listener);
    let identity = Identity::Secret(Secret::random().unwrap());
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|worker| {
            let world = World::new(2, worker, 1).unwrap();
            let rendezvous = Rendezvous::new(world, addresses.clone()).shared_memory(SharedMemory::Never);
            let rendezvous = rendezvous.credentials(identity.clone());
            let rendezvous = match listener.take() {
                Some(listener) => rendezvous.listener(listener),
                None => rendezvous,
            };
            scope.spawn(move || Group::join(world, rendezvous).unwrap())
        });
        let [first, second] = threads.map(|thread| thread.join().unwrap());
        vec![first.checksums(Checksums::Always), second]
    })
}

// INV-104
#[test]
fn links_that_leave_the_machine_have_checksums_by_default() {
    let Some(own) = own_address() else { return skipped("this machine has no address but loopback ones") };
    watched(move || {
        for (host, has_checksums) in [(own.to_string(), true), ("127.0.0.1".to_owned(), false)] {
            let made = workers_of(joined(&host), |group| {
                let session = group.open("rounds", 1);
                session.all_to_all(calling(&session, ""), |_| Bytes::from_static(b"data"), LONG)
            });
            match &made[0] {
                Ok(all) => assert!(has_checksums && all[1] == "data", "{host}"),
                // To the host, a worker without checksums is lost, perhaps after that worker has exited.
                Err(blame) => assert_eq!((has_checksums, blame.fault), (false, Fault::Lost), "{blame}"),
            }
        }
    });
}
