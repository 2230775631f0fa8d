//! Tests of the handshake, with both sides in one thread.

use distribute_cluster::Job;
use distribute_net::handshake::{
    Caller, HandshakeDecoder, Hello, Host, Names, Offer, Purpose, Reason, Refusal, Words, caller, host,
};
use ring::hmac;

fn hello(rank: usize) -> Hello {
    let (job, purpose) = ("digits".to_owned(), Purpose::Link);
    Hello { job, generation: 2, table: 0, rank, workers: 3, replicas: 1, digest: [7; 32], purpose }
}

fn key(secret: &[u8]) -> Option<hmac::Key> {
    Some(hmac::Key::new(hmac::HMAC_SHA256, secret))
}

/// Returns the messages in these bytes, which may begin with the preamble.
fn words(decoder: &mut HandshakeDecoder, bytes: &[u8]) -> Result<Vec<Words>, Refusal> {
    let (mut all, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let buffer = decoder.buffer();
        let read = buffer.len().min(rest.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        rest = &rest[read..];
        all.extend(decoder.advance(read)?);
    }
    Ok(all)
}

/// Runs the handshake. Returns the caller's hello as the host has received it, or the refusal and the side that
/// refused.
fn talk(caller: &mut Caller, host: &mut Host) -> Result<Hello, (&'static str, Refusal)> {
    let (mut of_caller, mut of_host) = (HandshakeDecoder::default(), HandshakeDecoder::default());
    let mut said = caller.first();
    loop {
        for word in words(&mut of_caller, &said).unwrap() {
            match host.receive(word).map_err(|refusal| ("host", refusal))? {
                host::Answer::Applies(hello, _) => {
                    let end = words(&mut of_host, &Host::welcome()).unwrap();
                    assert_eq!(caller.receive(end[0].clone()), Ok(caller::Answer::Welcome));
                    return Ok(hello);
                }
                host::Answer::Send(bytes) => said = bytes,
            }
        }
        for word in words(&mut of_host, &said).unwrap() {
            match caller.receive(word).map_err(|refusal| ("caller", refusal))? {
                caller::Answer::Welcome => panic!("before the proof"),
                caller::Answer::Send(bytes) => said = bytes,
            }
        }
    }
}

fn caller(hello: Hello, key: Option<hmac::Key>) -> Caller {
    Caller::new(hello, 0, key, [1; 32])
}

#[test]
fn peers_with_the_same_secret_or_without_one_accept_each_other() {
    for secret in [None, key(b"a")] {
        let mut host = Host::new(hello(0), secret.clone(), [2; 32]);
        assert_eq!(talk(&mut caller(hello(1), secret), &mut host), Ok(hello(1)));
    }
}

#[test]
fn every_difference_is_refused_by_its_name() {
    let other = |change: fn(&mut Hello)| {
        let mut hello = hello(1);
        change(&mut hello);
        hello
    };
    let (a, b) = (key(b"a"), key(b"b"));
    for (hello_1, keys, side, reason) in [
        // The caller is the first that sees a proof.
        (hello(1), [&a, &b], "caller", Reason::Secret),
        (hello(1), [&a, &None], "host", Reason::Secret),
        (hello(1), [&None, &a], "host", Reason::Secret),
        (other(|hello| hello.job = "letters".into()), [&a, &a], "host", Reason::Job),
        (other(|hello| hello.workers = 4), [&a, &a], "host", Reason::Cluster),
        (other(|hello| hello.replicas = 2), [&a, &a], "host", Reason::Cluster),
        (other(|hello| hello.digest = [0; 32]), [&a, &a], "host", Reason::Cluster),
        (other(|hello| hello.rank = 3), [&a, &a], "host", Reason::Rank),
        (other(|hello| hello.rank = 0), [&a, &a], "host", Reason::Rank),
    ] {
        let mut host = Host::new(hello(0), keys[1].clone(), [2; 32]);
        let (who, refusal) = talk(&mut caller(hello_1, keys[0].clone()), &mut host).unwrap_err();
        assert_eq!((who, refusal.reason), (side, reason), "{refusal}");
        // Only a caller that has proved the secret can end the rendezvous of the others.
        let has_dissented = matches!(reason, Reason::Job | Reason::Cluster);
        assert_eq!(host.refused_member().is_some(), has_dissented, "{refusal}");
    }
    for (theirs, ours) in [(&a, &b), (&a, &None), (&None, &a)] {
        let stranger = || other(|hello| (hello.job, hello.workers) = ("letters".into(), 4));
        let mut host = Host::new(hello(0), ours.clone(), [2; 32]);
        talk(&mut caller(stranger(), theirs.clone()), &mut host).unwrap_err();
        assert_eq!(host.refused_member(), None);
        let mut host = Host::new(hello(0), ours.clone(), [2; 32]);
        let hello = Words::Hello(stranger(), ours.is_some(), [1; 32]);
        if host.receive(hello).is_ok() && ours.is_some() {
            assert_eq!(host.receive(Words::Proof(Some([7; 32]), None)).unwrap_err().reason, Reason::Secret);
        }
        assert_eq!(host.refused_member(), None);
    }
    let (_, refusal) =
        talk(&mut caller(hello(1), None), &mut Host::new(hello(2), None, [2; 32])).unwrap_err();
    assert_eq!(refusal.to_string(), "it is worker 2, not worker 0: check the addresses");
    // The refusal contains the names of the tasks if they are known.
    let names = || Names::new([Job::Chief.task(0), Job::Worker.task(0), Job::Worker.task(1)]);
    let (_, refusal) =
        talk(&mut caller(hello(1), None).named(names()), &mut Host::new(hello(2), None, [2; 32]))
            .unwrap_err();
    assert_eq!(refusal.to_string(), "it is worker 1, not chief 0: check the addresses");
    let mut host = Host::new(hello(0), None, [2; 32]).named(names());
    let (_, refusal) = talk(&mut caller(other(|hello| hello.workers = 4), None), &mut host).unwrap_err();
    assert!(refusal.text.starts_with("worker 0 knows 4 workers"), "{refusal}");
    assert!(refusal.text.contains("and chief 0 knows 3"), "{refusal}");
}

#[test]
fn memory_is_shared_only_by_hosts_that_announced_it() {
    let offer = Offer { pid: 1, descriptor: 3, inode: 5, token: [9; 32] };
    for (machine, taken) in [(None, None), (Some([6; 32]), Some(offer))] {
        let mut host = Host::new(hello(0), None, [2; 32]).machine(machine);
        host.receive(Words::Hello(hello(1), false, [1; 32])).unwrap();
        // The caller makes an offer, whether or not the host has asked for one.
        let answer = host.receive(Words::Proof(None, Some(offer))).unwrap();
        assert_eq!(answer, host::Answer::Applies(hello(1), taken));
    }
}

/// A caller without the secret learns nothing about the job, and cannot replay messages of another connection.
#[test]
fn a_proof_is_good_for_one_connection_and_one_side() {
    let receive = |host: &mut Host, bytes: &[u8]| {
        words(&mut HandshakeDecoder::default(), bytes).map(|all| host.receive(all[0].clone()))
    };
    let mut first = Caller::new(hello(1), 0, key(b"a"), [1; 32]);
    let mut host = Host::new(hello(0), key(b"a"), [2; 32]);
    let host::Answer::Send(challenge) = receive(&mut host, &first.first()).unwrap().unwrap() else {
        panic!()
    };
    let challenge = words(&mut HandshakeDecoder::default(), &challenge).unwrap().remove(0);
    let caller::Answer::Send(proof) = first.receive(challenge.clone()).unwrap() else { panic!() };
    let proof = Words::decode(&proof[2..]).unwrap();
    // The proof is sent again to a host with another nonce, and the own proof of the host is sent back to it.
    let Words::Challenge(_, _, _, own) = challenge else { panic!() };
    for forged in [proof.clone(), Words::Proof(own, None), Words::Proof(None, None)] {
        let mut host = Host::new(hello(0), key(b"a"), [3; 32]);
        receive(&mut host, &first.first()).unwrap().unwrap();
        assert_eq!(host.receive(forged).unwrap_err().reason, Reason::Secret);
        // The handshake has ended with the refusal.
        assert_eq!(host.receive(proof.clone()).unwrap_err().reason, Reason::Protocol);
    }
    // A member of an old generation without the secret isn't told which is the present one.
    let mut host = Host::new(hello(0), key(b"a"), [4; 32]);
    let old = Hello { generation: 0, ..hello(1) };
    let (_, refusal) = talk(&mut caller(old, key(b"b")), &mut host).unwrap_err();
    assert!(!refusal.text.contains("generation"), "{refusal}");
    // A welcome is not accepted before the host has proved anything.
    let mut caller = caller(hello(1), key(b"a"));
    assert_eq!(caller.receive(Words::Welcome).unwrap_err().reason, Reason::Protocol);
}
