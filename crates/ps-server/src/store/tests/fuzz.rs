//! Requests that are corrupted in transit.

use super::*;
use distribute_net::Message;
use distribute_ps_tables::{PartitionStrategy, RowPartition, StateColumn};
use distribute_testing::fuzz_inputs;

// INV-28
#[test]
fn mutated_requests_are_refused_or_executed_and_the_server_continues() {
    let core = Core::new(None);
    core.tables.set_memory(64 << 20);
    let initializer = Initializer::new(Distribution::Uniform { lo: 0., up: 1. }, 3, "w");
    let partition = RowPartition::new(PartitionStrategy::Mod, 30, 3);
    let drawn =
        Contents::Initialized { shape: vec![30, 2], dtype: DType::F32, initializer, partition, shard: 1 };
    let mut requests = vec![
        Request::Create(TableSpec { name: "drawn".into(), contents: drawn, rule: None, rounding: None }),
        Request::ReadRows { table: "drawn".into(), rows: vec![0, 9] },
        Request::StateRows { table: "w".into(), rows: 3..9 },
        Request::StatePart { table: "ids".into(), part: 0 },
        Request::StateColumn { table: "ids".into(), part: 0, column: StateColumn::Slot("accum".into()) },
        Request::Read { table: "w".into(), known: None, may_round: false },
        Request::SetRule { table: "drawn".into(), rule: RuleSpec::Momentum(Momentum::new(0.5)) },
    ];
    let Request::Batch(made) = tables() else { panic!("it is a batch") };
    requests.extend(made);
    requests.extend((0..30).map(change));
    let origin = Origin { job: 0, closure: 3, floor: 1 };
    let once = |change: Request| Request::Once { origin, number: 2, change: Box::new(change) };
    requests.extend((0..30).map(change).map(once));
    requests.push(Request::BeginJob { job: 0 });
    requests.push(Request::Usage);
    for (table, is_dense) in [("w", true), ("ids", false)] {
        ask(&core, 0, tables());
        let request = if is_dense {
            Request::StateRows { table: table.into(), rows: 0..4 }
        } else {
            Request::StatePart { table: table.into(), part: 0 }
        };
        let Ok(Response::State(state)) = ask(&core, 0, request).remove(0) else { panic!("no state") };
        requests.push(Request::Restore { table: table.into(), state });
    }
    let messages: Vec<_> = requests
        .into_iter()
        .map(|request| Encoded::new(request, Wire::Full).unwrap().message(5, 0).unwrap())
        .collect();
    let (mut random, mut answered, mut refused) = (SplitMix(11), 0, 0);
    for i in 0..fuzz_inputs() {
        let message = random.of(&messages);
        // One bit at a time: with more changes, most are not requests.
        let (mut head, mut body) = (message.head.to_vec(), message.body.to_vec());
        let part = if body.is_empty() || random.below(4) > 0 { &mut head } else { &mut body };
        let at = random.below(part.len());
        part[at] ^= 1 << random.below(8);
        let Ok(mut call) = Call::decode(Message::new(head, body)) else { continue };
        (call.client, call.first) = (5, i);
        for answer in core.answer(&call) {
            if answer.is_ok() { answered += 1 } else { refused += 1 }
        }
        if i % 100 == 0 {
            // Removed tables are created again.
            ask(&core, i, tables());
        }
    }
    assert!(answered > 100 && refused > 100, "{answered} {refused}");
}

/// Returns short requests that would take more memory than there is, or unlimited time.
fn greedy() -> Vec<Request> {
    let initializer = Initializer::new(Distribution::Uniform { lo: 0., up: 1. }, 3, "w");
    let drawn = |shape: &[usize], (rows, shards, shard)| {
        let partition = RowPartition::new(PartitionStrategy::Mod, rows, shards);
        let (shape, dtype) = (shape.to_vec(), DType::F32);
        let contents = Contents::Initialized { shape, dtype, initializer, partition, shard };
        Request::Create(TableSpec { name: "greedy".into(), contents, rule: None, rounding: None })
    };
    let dynamic = |width| {
        let (row_shape, options) = (vec![width], DynamicOptions::default());
        let contents = Contents::Dynamic { row_shape, dtype: DType::F32, initializer, options };
        Request::Create(TableSpec { name: "greedy".into(), contents, rule: None, rounding: None })
    };
    let nothing = HostTensor::new(Vec::<f32>::new(), [1 << 60, 0]).unwrap();
    vec![
        drawn(&[1 << 30, 1], (1 << 30, 1, 0)),
        drawn(&[1 << 44, 1 << 10], (1 << 44, 3, 1)),
        drawn(&[1 << 60, 0], (1 << 60, 1, 0)),
        drawn(&[], (1, 1, 1)),
        drawn(&[3], (3, 2, 2)),
        drawn(&[3], (4, 2, 0)),
        dynamic(1 << 44),
        dynamic(1 << 20),
        Request::Create(TableSpec::values("greedy", nothing)),
    ]
}

// INV-28
#[test]
fn too_large_requests_are_refused_before_they_are_logged_and_the_server_restarts() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let options = || options(folder.path()).memory(64 << 20);
        let core = Core::open(options(), Arc::new(open_disk)).unwrap();
        ask(&core, 0, tables());
        let bytes = core.log.as_ref().unwrap().journal.bytes();
        for (i, request) in (10..).zip(greedy()) {
            let refusal = ask(&core, i, request.clone()).remove(0).unwrap_err();
            assert!(
                matches!(refusal.kind, RefusalKind::NoMemory | RefusalKind::Argument),
                "{refusal} of {request:?}"
            );
        }
        assert_eq!(core.log.as_ref().unwrap().journal.bytes(), bytes, "a refused request was logged");
        // Rows and slots count, also for ids that are added one after another.
        let wide = 1 << 12;
        let rows = Contents::Dynamic {
            row_shape: vec![wide],
            dtype: DType::F32,
            initializer: Initializer::new(Distribution::Constant(1.), 3, "w"),
            options: DynamicOptions::default(),
        };
        let rule = Some(RuleSpec::Momentum(Momentum::new(0.5)));
        assert!(
            ask(
                &core,
                40,
                Request::Create(TableSpec { name: "wide".into(), contents: rows, rule, rounding: None })
            )[0]
            .is_ok()
        );
        let push = |id: i64| Request::PushRows {
            table: "wide".into(),
            push: Push::at(Step::after(0, 0.1)),
            rows: vec![id],
            gradient: HostTensor::new(vec![1f32; wide], [1, wide]).unwrap(),
        };
        let full = (0..1000).find(|id| ask(&core, 100 + *id as u64, push(*id))[0].is_err()).unwrap();
        let refusal = ask(&core, 2000, push(full)).remove(0).unwrap_err();
        assert!(
            refusal.kind == RefusalKind::NoMemory && refusal.text.contains("ServerOptions::memory"),
            "{refusal}"
        );
        // Ids that have a row accept pushes as before.
        assert!(ask(&core, 2001, push(0))[0].is_ok());
        let many = Request::ReadRows { table: "wide".into(), rows: (0..1 << 14).collect() };
        assert_eq!(ask(&core, 0, many).remove(0).unwrap_err().kind, RefusalKind::NoMemory);
        let was = contents(&core);
        drop(core);
        assert_eq!(contents(&Core::open(options(), Arc::new(open_disk)).unwrap()), was);
    });
}

#[test]
fn a_change_that_cannot_be_made_again_is_set_aside_and_the_server_begins() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    // As logged by a version without limits.
    let message = Encoded::new(greedy().remove(0), Wire::Full).unwrap().message(9, 3).unwrap();
    let call = Call::decode(message).unwrap();
    let (head, body) = (call.requests[0].head.clone(), call.requests[0].body.clone());
    let record = log::Record { client: 9, sequence: 3, head: head.clone(), body };
    let number = core.log.as_ref().unwrap().journal.append(&record).unwrap();
    drop(core);
    let limited = || options(folder.path()).memory(64 << 20);
    drop(Core::open(limited(), Arc::new(open_disk)).unwrap());
    let core = Core::open(limited(), Arc::new(open_disk)).unwrap();
    assert_eq!(core.tables.names(), ["count", "ids", "names", "w"]);
    let backup = folder.path().join(format!("set-aside/change-{number}"));
    assert_eq!(fs::read(backup).unwrap(), head);
    // A different kind of refusal.
    ask(&core, 4, Request::Write { table: "w".into(), how: Write::Add, value: HostTensor::scalar(1f32) });
    core.snapshot().unwrap();
    ask(&core, 5, Request::Write { table: "w".into(), how: Write::Add, value: HostTensor::scalar(1f32) });
    drop(core);
    drop(Core::open(limited(), Arc::new(open_disk)).unwrap());
    assert_eq!(fs::read_dir(folder.path().join("set-aside")).unwrap().count(), 1);
}
