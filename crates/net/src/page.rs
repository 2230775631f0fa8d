//! A test that docs/reference/protocol.md shows the bytes that this crate writes.

use crate::handshake::{Caller, Hello, Host, Purpose, Words, caller, host};
use crate::identity::Secret;
use crate::wire::{Header, Kind};
use distribute_cluster::{Job, Task};
use distribute_testing::compare_bytes;

const PAGE: &str = "reference/protocol.md";

fn hello(job: &str, from: Task) -> Hello {
    let purpose = Purpose::Call { from, to: Job::Ps.task(1) };
    let (generation, table, rank, workers, replicas) = Default::default();
    Hello { job: job.to_owned(), generation, table, rank, workers, replicas, digest: [0; 32], purpose }
}

#[test]
fn the_page_of_the_protocol_has_the_bytes_of_the_handshake() {
    let reader = || Task::new("reader", 0);
    compare_bytes(PAGE, "hello-plain", &Caller::new(hello("", reader()), 0, None, [7; 32]).first());

    let secret = Secret::from_hex(&"01".repeat(32), "a test").unwrap();
    compare_bytes(PAGE, "key", &secret.derive(b"distribute proof"));
    let mut calling = Caller::new(hello("train", reader()), 0, Some(secret.proof_key()), [7; 32]);
    let mut called = Host::new(hello("train", Job::Ps.task(1)), Some(secret.proof_key()), [9; 32]);
    let first = calling.first();
    compare_bytes(PAGE, "hello-secret", &first);
    let of = |bytes: &[u8], at: usize| Words::decode(&bytes[at + 2..]).unwrap();
    let host::Answer::Send(challenge) = called.receive(of(&first, 10)).unwrap() else { panic!() };
    compare_bytes(PAGE, "challenge-secret", &challenge);
    let caller::Answer::Send(proof) = calling.receive(of(&challenge, 10)).unwrap() else { panic!() };
    compare_bytes(PAGE, "proof-secret", &proof);
    assert!(matches!(called.receive(of(&proof, 0)), Ok(host::Answer::Applies(..))));
}

#[test]
fn the_page_of_the_protocol_has_the_bytes_of_a_heartbeat() {
    compare_bytes(PAGE, "heartbeat", &Header { kind: Kind::Heartbeat, head: 0, body: 0 }.encode());
}
