//! Requests that were changed on the way.

use super::*;
use distribute_net::Message;
use distribute_params::{PartitionStrategy, RowPartition};
use distribute_testing::fuzz_inputs;

/// Whether a request makes a table that is too large for a test.
fn is_large(request: &Request) -> bool {
    let Request::Create(TableSpec { contents, .. }) = request else { return false };
    let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    match contents {
        Contents::Values(_) => false,
        Contents::Drawn { shape, .. } => elements(shape).is_some_and(|n| n > 1 << 20),
        Contents::Dynamic { row_shape, .. } => elements(row_shape).is_some_and(|n| n > 1 << 12),
    }
}

// INV-28
#[test]
fn mutated_requests_are_refused_or_carried_out_and_the_server_goes_on() {
    let core = Core::new(None);
    let initializer = Initializer::new(Distribution::Uniform { lo: 0., up: 1. }, 3, "w");
    let partition = RowPartition::new(PartitionStrategy::Mod, 30, 3);
    let drawn = Contents::Drawn { shape: vec![30, 2], dtype: DType::F32, initializer, partition, shard: 1 };
    let mut requests = vec![
        Request::Create(TableSpec { name: "drawn".into(), contents: drawn, rule: None }),
        Request::ReadRows { table: "drawn".into(), rows: vec![0, 9] },
        Request::StateRows { table: "w".into(), rows: 3..9 },
        Request::StatePart { table: "ids".into(), part: 0 },
        Request::Read { table: "w".into(), known: None },
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
        .map(|request| Encoded::new(request, false).unwrap().message(5, 0).unwrap())
        .collect();
    let (mut random, mut answered, mut refused) = (SplitMix(11), 0, 0);
    for i in 0..fuzz_inputs() {
        let message = random.of(&messages);
        // One bit at a time: most of what is changed more is no request.
        let (mut head, mut body) = (message.head.to_vec(), message.body.to_vec());
        let part = if body.is_empty() || random.below(4) > 0 { &mut head } else { &mut body };
        let at = random.below(part.len());
        part[at] ^= 1 << random.below(8);
        let Ok(mut call) = Call::decode(Message::new(head, body)) else { continue };
        if call.requests.iter().any(|sent| is_large(&sent.request)) {
            continue;
        }
        (call.client, call.first) = (5, i);
        for answer in core.answer(&call) {
            if answer.is_ok() { answered += 1 } else { refused += 1 }
        }
        if i % 100 == 0 {
            // What was removed comes again.
            ask(&core, i, tables());
        }
    }
    assert!(answered > 100 && refused > 100, "{answered} {refused}");
}
