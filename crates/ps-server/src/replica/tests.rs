//! Round trips of messages, and the requests that a follower accepts.

use super::Replicas;
use super::message::{FollowerRequest, FollowerResponse, Position, ServerLife};
use crate::codec::Encoded;
use crate::log::Record;
use crate::store::{Change, StateHeader};
use distribute_cluster::Job;
use distribute_net::Message;
use distribute_optim::{Adam, RuleSpec, Step};
use distribute_ps_tables::{
    ClientPushes, Contents, DynamicOptions, ImageContents, Initializer, Origin, Push, Request, Response,
    TableImage, TableSpec, Tables,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Wire, Write};
use distribute_testing::{SplitMix, fuzz_inputs};

/// Returns two dense tables, and a dynamic one with ids that have no row yet.
fn images() -> Vec<TableImage> {
    let tables = Tables::new();
    let rule = RuleSpec::Adam(Adam::lazy());
    let initializer = Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 3, "ids");
    let options = DynamicOptions { admit_after: 2, ..DynamicOptions::default() };
    let contents = Contents::Dynamic { row_shape: vec![2], dtype: DType::F32, initializer, options };
    let values = HostTensor::new(vec![1f32; 6], [3, 2]).unwrap();
    for spec in [
        TableSpec { name: "ids".into(), contents, rule: Some(rule.clone()), rounding: None },
        TableSpec::values("w", values).rule(rule),
        TableSpec::values("names", HostTensor::vector(vec![b"ab".to_vec(), Vec::new()])),
    ] {
        tables.handle(&Request::Create(spec)).unwrap();
    }
    for step in 0..3u64 {
        let gradient = HostTensor::new(vec![step as f32 + 1.; 4], [2, 2]).unwrap();
        let push = Push::at(Step::after(step, 0.1)).counted();
        let ids = vec![-7, 5 + step as i64];
        tables
            .handle(&Request::PushRows { table: "ids".into(), push, rows: ids, gradient: gradient.clone() })
            .unwrap();
        let change = Request::PushRows { table: "w".into(), push, rows: vec![0, 2], gradient };
        let origin = Origin { job: 0, closure: step + 7, floor: step };
        let once = Request::Once { origin, number: 70, change: Box::new(change) };
        tables.handle(&once).unwrap();
    }
    let image = |name: &String| {
        let mut image = tables.image(name).unwrap().unwrap();
        if let ImageContents::Dense(state) = &mut image.contents {
            // Versions are specific to a process.
            state.version = 0;
        }
        image
    };
    tables.names().iter().map(image).collect()
}

fn of(life: u64) -> ServerLife {
    ServerLife { server: 4, life }
}

fn client() -> ClientPushes {
    ClientPushes { client: 9, highest: u64::MAX, applied: vec![5, u64::MAX] }
}

fn header() -> Box<StateHeader> {
    let clients = vec![client(), ClientPushes { client: 1, highest: 0, applied: Vec::new() }];
    Box::new(StateHeader { clients, job: 7, tables: vec!["w".into(), String::new()], lost: vec!["x".into()] })
}

/// Returns the changes that create and increment a counter.
fn changes() -> Vec<Change> {
    let change = |(i, request): (u64, Request)| {
        let message = Encoded::new(request, Wire::Full).unwrap().message(9, i).unwrap();
        let call = crate::codec::Call::decode(message).unwrap();
        let sent = &call.requests[0];
        let record = Record { client: 9, sequence: i, head: sent.head.clone(), body: sent.body.clone() };
        Change { record, log: 10 + i }
    };
    let add = || Request::Write { table: "n".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
    let create = Request::Create(TableSpec::values("n", HostTensor::scalar(0i64)));
    (0..).zip([create, add(), add()]).map(change).collect()
}

fn asks() -> Vec<FollowerRequest> {
    let mut all = vec![
        FollowerRequest::Copy { server: u64::MAX, run: u64::MAX },
        FollowerRequest::Position { server: u64::MAX },
        FollowerRequest::StateHeader(of(1)),
        FollowerRequest::Table(of(1), "w".into()),
        FollowerRequest::Adopt(of(1), 2),
        FollowerRequest::Begin(of(1), header()),
        FollowerRequest::Begin(of(1), Box::default()),
        FollowerRequest::End(of(1), 5, 6),
        FollowerRequest::Changes(of(1), 7, changes()),
        FollowerRequest::Changes(of(1), 7, Vec::new()),
    ];
    all.extend(images().into_iter().map(|image| FollowerRequest::Put(of(1), Box::new(image))));
    all
}

fn answers() -> Vec<FollowerResponse> {
    let mut all = vec![
        FollowerResponse::Position(Position {
            run: u64::MAX,
            life: 1,
            changes: 2,
            log: 3,
            tables: vec!["w".into(), String::new()],
            broken: true,
            incomplete: Some((4, vec!["v".into()])),
        }),
        FollowerResponse::Position(Position::default()),
        FollowerResponse::StateHeader(header()),
        FollowerResponse::Done,
        FollowerResponse::Refused("no".into()),
    ];
    all.extend(images().into_iter().map(|image| FollowerResponse::Table(Box::new(image))));
    all
}

#[test]
fn messages_come_back() {
    for (ask, there) in asks().into_iter().zip(asks()) {
        assert_eq!(FollowerRequest::decode(there.encode().unwrap()).unwrap(), ask);
    }
    for (answer, there) in answers().into_iter().zip(answers()) {
        assert_eq!(FollowerResponse::decode(there.encode().unwrap()).unwrap(), answer);
    }
}

#[test]
fn mutated_messages_are_errors_or_others() {
    let mut random = SplitMix(11);
    let messages: Vec<Message> = asks().into_iter().map(|ask| ask.encode().unwrap()).collect();
    for _ in 0..fuzz_inputs() {
        let message = &messages[random.below(messages.len())];
        let (mut head, mut body) = (message.head.to_vec(), message.body.to_vec());
        if random.below(2) == 0 {
            random.mutate(&mut head)
        } else {
            random.mutate(&mut body)
        }
        let replicas = Replicas::new();
        if let Ok(ask) = FollowerRequest::decode(Message::new(head.clone(), body.clone())) {
            let _ = replicas.answer(&Job::Ps.task(4), ask).encode();
        }
        let _ = FollowerResponse::decode(Message::new(head, body));
    }
}

fn counted(replicas: &Replicas, life: u64) -> Option<i64> {
    match replicas.answer(&Job::Ps.task(4), FollowerRequest::Table(of(life), "n".into())) {
        FollowerResponse::Table(image) => {
            let tables = Tables::new();
            tables.restore_image(*image).unwrap();
            let read = tables.handle(&Request::ReadRows { table: "n".into(), rows: vec![0] });
            let Ok(Response::Rows(rows)) = read else { panic!("{read:?}") };
            Some(rows.to_vec::<i64>().unwrap()[0])
        }
        _ => None,
    }
}

// INV-57
#[test]
fn a_follower_makes_each_change_of_the_greatest_life_once_and_none_of_others() {
    let replicas = Replicas::new();
    let run = replicas.run();
    let ask = |ask| replicas.answer(&Job::Ps.task(4), ask);
    let refused = |answer: FollowerResponse| matches!(answer, FollowerResponse::Refused(_));
    let nothing = || FollowerResponse::Position(Position { run, ..Position::default() });
    assert_eq!(ask(FollowerRequest::Position { server: 4 }), nothing());
    assert!(refused(ask(FollowerRequest::Changes(of(1), 0, changes()))));
    assert!(refused(ask(FollowerRequest::End(of(1), 0, 0))));
    let state = StateHeader { clients: vec![client()], job: 6, ..StateHeader::default() };
    assert_eq!(ask(FollowerRequest::Begin(of(3), Box::new(state))), FollowerResponse::Done);
    // Until the transfer is complete, the previous copy is kept.
    let begun = Position { run, incomplete: Some((3, Vec::new())), ..Position::default() };
    assert_eq!(ask(FollowerRequest::Position { server: 4 }), FollowerResponse::Position(begun));
    assert_eq!(ask(FollowerRequest::End(of(3), 0, 0)), FollowerResponse::Done);
    assert_eq!(ask(FollowerRequest::Changes(of(3), 0, changes()[..2].to_vec())), FollowerResponse::Done);
    // Repeated because no response was received, with one more change.
    assert_eq!(ask(FollowerRequest::Changes(of(3), 0, changes())), FollowerResponse::Done);
    assert_eq!(counted(&replicas, 3), Some(2));
    let position =
        Position { run, life: 3, changes: 3, log: 13, tables: vec!["n".into()], ..Position::default() };
    assert_eq!(ask(FollowerRequest::Position { server: 4 }), FollowerResponse::Position(position));
    let FollowerResponse::StateHeader(header) = ask(FollowerRequest::StateHeader(of(3))) else {
        panic!("no clients")
    };
    assert_eq!((header.clients[0].client, header.job), (9, 6));
    // A life that was replaced, and one that has not begun.
    assert!(refused(ask(FollowerRequest::Begin(of(2), Box::default()))));
    assert!(refused(ask(FollowerRequest::Changes(of(2), 3, changes()[1..2].to_vec()))));
    assert!(refused(ask(FollowerRequest::Changes(of(4), 3, changes()[1..2].to_vec()))));
    assert!(refused(ask(FollowerRequest::Adopt(of(3), 5))));
    assert_eq!(ask(FollowerRequest::Adopt(of(3), 4)), FollowerResponse::Done);
    assert!(refused(ask(FollowerRequest::Changes(of(3), 3, changes()[1..2].to_vec()))));
    assert_eq!(ask(FollowerRequest::Changes(of(4), 0, changes()[1..2].to_vec())), FollowerResponse::Done);
    assert_eq!(counted(&replicas, 4), Some(3));
    // After a gap no change is applied.
    assert!(refused(ask(FollowerRequest::Changes(of(4), 2, changes()[1..2].to_vec()))));
    // A part of a newer state does not replace anything. It can only be completed after all tables were
    // received.
    let state = StateHeader { tables: vec!["w".into()], ..StateHeader::default() };
    assert_eq!(ask(FollowerRequest::Begin(of(5), Box::new(state))), FollowerResponse::Done);
    assert!(refused(ask(FollowerRequest::End(of(5), 0, 0))));
    assert_eq!(counted(&replicas, 4), Some(3));
    // After a change that cannot be applied, the acknowledged state is kept until it is sent again.
    let mut wrong = changes()[1].clone();
    wrong.record.head = b"no head"[..].into();
    assert!(refused(ask(FollowerRequest::Changes(of(4), 1, vec![wrong]))));
    assert!(refused(ask(FollowerRequest::Changes(of(4), 1, changes()[1..2].to_vec()))));
    assert!(refused(ask(FollowerRequest::Adopt(of(4), 5))));
    let FollowerResponse::Position(position) = ask(FollowerRequest::Position { server: 4 }) else {
        panic!("no position")
    };
    assert!(position.broken && position.incomplete == Some((5, vec!["w".into()])), "{position:?}");
    assert_eq!(counted(&replicas, 4), Some(3));
}

// INV-57
#[test]
fn each_server_speaks_for_its_own_copy_alone() {
    let replicas = Replicas::new();
    let server = Job::Ps.task(4);
    assert_eq!(
        replicas.answer(&server, FollowerRequest::Begin(of(1), Box::default())),
        FollowerResponse::Done
    );
    assert_eq!(replicas.answer(&server, FollowerRequest::End(of(1), 0, 0)), FollowerResponse::Done);
    for caller in [Job::Ps.task(5), Job::Worker.task(4), Job::Chief.task(0)] {
        for ask in asks() {
            let text = format!("{ask:?}");
            let ask = match ask {
                FollowerRequest::Position { .. } => FollowerRequest::Position { server: 4 },
                ask => ask,
            };
            let answer = replicas.answer(&caller, ask);
            assert!(matches!(answer, FollowerResponse::Refused(_)), "{caller}: {text}: {answer:?}");
        }
    }
    let FollowerResponse::Position(position) =
        replicas.answer(&server, FollowerRequest::Position { server: 4 })
    else {
        panic!()
    };
    assert_eq!(position.life, 1);
}
