//! Round trips of messages, and invalid messages.

use super::*;
use distribute_net::Message;
use distribute_optim::{Adagrad, Adam, RuleSpec, Step, StochasticRounding};
use distribute_ps_tables::{
    ChangedRows, Contents, Copies, DynamicOptions, DynamicState, Initializer, LogPosition, Origin,
    PartitionStrategy, Push, PushResult, Refusal, RefusalKind, Request, Response, RowPartition, RowReads,
    State, StateColumn, TableInfo, TableKind, TableSpec, Usage, Version, VersionedValue,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Wire, Write};
use distribute_testing::{SplitMix, fuzz_inputs};

fn tensor(dims: &[usize]) -> HostTensor {
    let count = dims.iter().product::<usize>();
    HostTensor::new((0..count).map(|x| x as f32 / 3.).collect(), dims).unwrap()
}

fn states() -> Vec<State> {
    let slots = vec![("m".to_owned(), tensor(&[2, 3])), ("v".to_owned(), tensor(&[2, 3]))];
    let state = DynamicState {
        ids: vec![-1, i64::MAX],
        used: vec![0, 9],
        values: tensor(&[2, 3]),
        slots: slots.clone(),
    };
    let (ids, used) = (vec![i64::MIN, 4], vec![7, u64::MAX]);
    vec![
        State::Rows { first: 7, values: tensor(&[2, 3]), slots: slots.clone() },
        State::Ids(state),
        State::Slots { first: 9, slots: slots.clone() },
        State::IdSlots { ids: ids.clone(), slots },
        State::IdValues { ids, used, values: tensor(&[2, 3]) },
    ]
}

fn requests() -> Vec<Request> {
    let table = || "words/part_1".to_owned();
    let push = Push::at(Step::after(41, 0.01)).finite();
    let initializer = Initializer::new(Distribution::Uniform { lo: -0.1, up: 0.1 }, 42, "words");
    let drawn = Contents::Initialized {
        shape: vec![10, 3],
        dtype: DType::F64,
        initializer,
        partition: RowPartition::new(PartitionStrategy::Mod, 10, 3),
        shard: 1,
    };
    let options = DynamicOptions { max_rows: Some(5), ..DynamicOptions::default() };
    let initializer = Initializer::new(Distribution::Normal { mean: 0., stdev: f64::INFINITY }, 42, "users");
    let dynamic = Contents::Dynamic { row_shape: vec![], dtype: DType::F32, initializer, options };
    let adam = RuleSpec::Adam(Adam::lazy());
    let mut all = vec![
        Request::Create(TableSpec { name: table(), contents: drawn, rule: Some(adam), rounding: None }),
        Request::Create(TableSpec { name: String::new(), contents: dynamic, rule: None, rounding: None }),
        Request::Create(
            TableSpec::values("w", tensor(&[2, 3])).rounding(StochasticRounding::new(9, u64::MAX)),
        ),
        Request::Remove { table: table() },
        Request::List,
        Request::SetRule { table: table(), rule: RuleSpec::Adagrad(Adagrad::default()) },
        Request::Read { table: table(), known: None, may_round: false },
        Request::Read {
            table: table(),
            known: Some(Version { created: u64::MAX, writes: 1 }),
            may_round: false,
        },
        Request::ReadRows { table: table(), rows: vec![i64::MIN, 0, 7] },
        Request::WriteRows { table: table(), how: Write::Max, rows: vec![], values: tensor(&[0, 3]) },
        Request::Push { table: table(), push, gradient: tensor(&[]) },
        Request::PushRows {
            table: table(),
            push: push.counted(),
            rows: vec![4, -4],
            gradient: tensor(&[2, 1]),
        },
        Request::Changed { table: table(), since: None },
        Request::Changed { table: table(), since: Some(LogPosition { history: u64::MAX, next: 9 }) },
        Request::StateRows { table: table(), rows: 3..9 },
        Request::StatePart { table: table(), part: 63 },
        Request::StateColumn { table: table(), part: 0, column: StateColumn::Uses },
        Request::StateColumn { table: table(), part: 1, column: StateColumn::Values },
        Request::StateColumn { table: table(), part: 2, column: StateColumn::Slot("m".to_owned()) },
        Request::Evict { table: table(), now: 5 },
        Request::Keep { table: table(), between: (i64::MIN, -1), ids: vec![-5, -7] },
    ];
    all.extend(states().into_iter().map(|state| Request::Restore { table: table(), state }));
    for dtype in DType::ALL {
        let values = HostTensor::vector(vec![0u8, 1, 1]);
        let values = match dtype {
            DType::String => HostTensor::vector(vec![b"ab".to_vec(), vec![], vec![0xff]]),
            dtype => values.cast(dtype).unwrap(),
        };
        all.push(Request::Create(TableSpec::values("all", values.clone())));
        all.push(Request::Write { table: table(), how: Write::Assign, value: values });
    }
    let origin = Origin { job: u64::MAX, closure: 300, floor: 299 };
    let once = |(number, change): (u64, Request)| Request::Once { origin, number, change: Box::new(change) };
    let changes: Vec<_> = all.iter().filter(|request| request.can_be_exactly_once()).cloned().collect();
    all.extend((0..).zip(changes).map(once));
    all.push(Request::BeginJob { job: 1 << 40 });
    all.push(Request::Usage);
    all.push(Request::Batch(all.clone()));
    all.push(Request::Batch(Vec::new()));
    all
}

fn answers() -> Vec<Result<Response, Refusal>> {
    let info = |kind| TableInfo {
        name: "words".to_owned(),
        kind,
        shape: vec![2, 3],
        dtype: DType::Bf16,
        rows: 2,
        parts: 0,
        bytes: 99,
        rule: Some(RuleSpec::Adam(Adam::default())),
        reads: RowReads { rows: u64::MAX, bytes: 7 },
    };
    let version = Version { created: 5, writes: 6 };
    let changed = ChangedRows {
        position: LogPosition { history: 3, next: u64::MAX },
        complete: true,
        rows: vec![-1, 5],
        numbers: vec![7, 8],
        values: tensor(&[2, 3]),
    };
    let mut all = vec![
        Ok(Response::Done),
        Ok(Response::Created { new: true }),
        Ok(Response::Tables(vec![info(TableKind::Dense), info(TableKind::Dynamic)])),
        Ok(Response::Value(VersionedValue { version, value: tensor(&[3, 2]) })),
        Ok(Response::Unchanged),
        Ok(Response::Changed(changed)),
        Ok(Response::Rows(tensor(&[2, 2]))),
        Ok(Response::Pushed(PushResult { rows: 1, created: 2, waiting: 3, full: 4, evicted: 5 })),
        Ok(Response::Restored { left_out: 7 }),
        Ok(Response::Evicted(8)),
        Ok(Response::Job { newest: u64::MAX }),
        Ok(Response::Usage(Usage {
            tables: 1,
            rows: 2,
            bytes: 3,
            rows_read: u64::MAX,
            rows_pushed: 5,
            has_folder: true,
            copies: Copies::Alone,
            follows: 1,
        })),
        Err(Refusal::new(RefusalKind::NotFinite, "push: no")),
    ];
    all.extend(states().into_iter().map(|state| Ok(Response::State(state))));
    all
}

fn message(request: Request, wire: Wire) -> Message {
    Encoded::new(request, wire).unwrap().message(77, 1000).unwrap()
}

/// Returns the original request of a call.
fn request(call: Call) -> Request {
    let mut all: Vec<_> = call.requests.into_iter().map(|sent| sent.request).collect();
    if call.batch { Request::Batch(all) } else { all.remove(0) }
}

#[test]
fn every_request_comes_back_also_each_by_itself() {
    for sent in requests() {
        let message = message(sent.clone(), Wire::Full);
        let call = Call::decode(message.clone()).unwrap();
        assert_eq!((call.client, call.first, call.wire), (77, 1000, Wire::Full));
        // The encoding in a log.
        for one in &call.requests {
            let again = EncodedRequest::decode(one.head.clone(), one.body.clone()).unwrap();
            assert_eq!(again.request, one.request);
        }
        let bodies: usize = call.requests.iter().map(|one| one.body.len()).sum();
        assert_eq!(bodies, message.body.len());
        assert_eq!(request(call), sent);
    }
}

#[test]
fn every_answer_comes_back() {
    for answer in answers() {
        let message = encode_answer(vec![answer.clone()], false, &[], |_| None).unwrap();
        assert_eq!(decode_answer(message).unwrap(), answer);
    }
    for all in [answers(), Vec::new()] {
        let message = encode_answer(all.clone(), true, &[], |_| None).unwrap();
        assert_eq!(decode_answer(message).unwrap(), Ok(Response::Batch(all)));
    }
}

#[test]
fn gradients_rows_and_values_to_compute_with_are_halves_if_the_client_wants_them() {
    let (table, push) = ("t".to_owned(), Push::at(Step::after(0, 1.)));
    let gradient = HostTensor::new(vec![1f32, 1. / 3., -2.5e3], [3, 1]).unwrap();
    for (wire, dtype) in [(Wire::Bf16, DType::Bf16), (Wire::F16, DType::F16)] {
        let rounded = gradient.cast(dtype).unwrap().cast(DType::F32).unwrap();
        assert_ne!(rounded, gradient);
        let sent = Request::Push { table: table.clone(), push, gradient: gradient.clone() };
        let halves = message(sent, wire);
        assert_eq!(halves.body.len(), 6);
        let expected = Request::Push { table: table.clone(), push, gradient: rounded.clone() };
        assert_eq!(request(Call::decode(halves).unwrap()), expected);
        let read = |known, may_round| Request::Read { table: table.clone(), known, may_round };
        let rows = Request::ReadRows { table: table.clone(), rows: vec![0] };
        let state = Request::StateRows { table: table.clone(), rows: 0..1 };
        let batch = Request::Batch(vec![read(None, false), read(None, true), rows, state]);
        let wires = Call::decode(message(batch, wire)).unwrap().wires(&[]);
        assert_eq!(wires, [Wire::Full, wire, wire, Wire::Full]);
        let version = Version { created: 0, writes: 0 };
        let value = |value: &HostTensor| Response::Value(VersionedValue { version, value: value.clone() });
        let rows = |rows: &HostTensor| Response::Rows(rows.clone());
        let both: [&dyn Fn(&HostTensor) -> Response; 2] = [&value, &rows];
        for answer in both {
            let rows = encode_answer(vec![Ok(answer(&gradient))], false, &[wire], |_| None).unwrap();
            assert_eq!(rows.body.len(), 6);
            assert_eq!(decode_answer(rows).unwrap(), Ok(answer(&rounded)));
        }
        // Written values and other dtypes are unchanged.
        let write = Request::Write { table: table.clone(), how: Write::Assign, value: gradient.clone() };
        assert_eq!(request(Call::decode(message(write.clone(), wire)).unwrap()), write);
        let wide = gradient.cast(DType::F64).unwrap();
        let rows = encode_answer(vec![Ok(Response::Rows(wide.clone()))], false, &[wire], |_| None).unwrap();
        assert_eq!(decode_answer(rows).unwrap(), Ok(Response::Rows(wide)));
    }
}

/// Checks that `float32` rows are sent in bf16, in half of the bytes, only if no bit is lost. Other rows are sent in
/// full.
// INV-95
#[test]
fn exact_values_are_sent_in_bf16_if_no_bit_is_lost() {
    let exact = HostTensor::new(vec![1f32, -2.5, f32::INFINITY, -0., 0.], [5, 1]).unwrap();
    let third = HostTensor::new(vec![1f32, 1. / 3.], [2, 1]).unwrap();
    let nan = HostTensor::new(vec![f32::from_bits(0x7f81_0000)], [1, 1]).unwrap();
    let ask = Request::ReadRows { table: "t".to_owned(), rows: vec![0] };
    for (rows, bytes) in [(exact, 10), (third, 8), (nan, 4)] {
        let answers = vec![Ok(Response::Rows(rows.clone()))];
        let wires = Call::decode(message(ask.clone(), Wire::Full)).unwrap().wires(&answers);
        let sent = encode_answer(answers, false, &wires, |_| None).unwrap();
        assert_eq!(sent.body.len(), bytes);
        let Ok(Ok(Response::Rows(received))) = decode_answer(sent) else { panic!("no rows") };
        assert!(received.same_bits(&rows));
    }
    let doubles = vec![Ok(Response::Rows(HostTensor::vector(vec![1f64])))];
    let wires = Call::decode(message(ask, Wire::Full)).unwrap().wires(&doubles);
    assert_eq!(wires, [Wire::Full]);
}

#[test]
fn one_tensor_is_sent_from_where_it_lies() {
    let value = tensor(&[100]);
    let at = value.as_slice::<f32>().unwrap().as_ptr().cast::<u8>();
    let version = Version { created: 0, writes: 0 };
    let value = Response::Value(VersionedValue { version, value });
    let message = encode_answer(vec![Ok(value)], false, &[], |_| None).unwrap();
    assert_eq!(message.body.as_ptr(), at);
}

// INV-28
#[test]
fn mutated_calls_and_answers_are_errors_or_others() {
    let mut random = SplitMix(9);
    let calls: Vec<_> = requests().into_iter().map(|request| message(request, Wire::Full)).collect();
    let answers = [(vec![answers().remove(3)], false), (answers(), true)];
    let answers = answers.map(|(all, batch)| encode_answer(all, batch, &[], |_| None).unwrap());
    let mut errors = 0;
    for i in 0..fuzz_inputs() {
        let is_call = i % 2 == 0;
        let message = if is_call { random.of(&calls) } else { random.of(&answers) };
        let (mut head, mut body) = (message.head.to_vec(), message.body.to_vec());
        if random.below(3) > 0 {
            random.mutate(&mut head);
        }
        if random.below(3) == 0 {
            random.mutate(&mut body);
        }
        let message = Message::new(head, body);
        errors += usize::from(if is_call {
            Call::decode(message).map(|call| format!("{call:?}")).is_err()
        } else {
            decode_answer(message).map(|answer| format!("{answer:?}")).is_err()
        });
    }
    assert!(errors as u64 > fuzz_inputs() / 10, "{errors}");
}

#[test]
fn an_invalid_call_gets_a_reason() {
    let says = |message: Message| Call::decode(message).unwrap_err().to_string();
    assert_eq!(says(Message::new("", "")), "it has no head");
    let other = format!("it has another version of requests than {VERSION}, which this server has");
    assert_eq!(says(Message::new("\u{7}x", "")), other);
    let list = message(Request::List, Wire::Full);
    assert_eq!(says(Message::new(list.head.clone(), "x")), "it has more in its body than its heads announce");
    let many = message(Request::Batch(vec![Request::List; MAX_REQUESTS + 1]), Wire::Full);
    assert_eq!(says(many), "it has too many requests");
    let rows = message(Request::ReadRows { table: "t".to_owned(), rows: vec![1, 2] }, Wire::Full);
    assert_eq!(says(Message::new(rows.head, rows.body.slice(..15))), "it has a tensor that is truncated");
}

// INV-28
#[test]
fn a_change_to_be_made_once_stands_in_nothing_else_and_nothing_else_in_it() {
    let once = |number, change| {
        let origin = Origin { job: 1, closure: 2, floor: 0 };
        Request::Once { origin, number, change: Box::new(change) }
    };
    let remove = Request::Remove { table: "t".to_owned() };
    for wrong in [Request::List, remove, once(0, Request::List), Request::Batch(Vec::new())] {
        let wrong = once(1, wrong);
        assert!(wrong.check().is_err());
        // A client may send it nevertheless.
        if let Ok(encoded) = Encoded::new(wrong, Wire::Full) {
            let error = Call::decode(encoded.message(77, 0).unwrap()).unwrap_err();
            assert_eq!(error.to_string(), "it has something that cannot be executed exactly once");
        }
    }
    // Requests that are nested as deeply as an attacker likes.
    let change = once(9, Request::Evict { table: "t".to_owned(), now: 5 });
    let whole = message(change.clone(), Wire::Full);
    let inner = message(Request::Evict { table: "t".to_owned(), now: 5 }, Wire::Full);
    let call = inner.head.len() - message(Request::Batch(vec![]), Wire::Full).head.len();
    let head = |depth: usize| {
        let (start, change) = inner.head.split_at(inner.head.len() - call);
        let one = &whole.head[start.len()..whole.head.len() - change.len()];
        Message::new([start, &one.repeat(depth), change].concat(), "")
    };
    assert_eq!(request(Call::decode(head(1)).unwrap()), change);
    for depth in [2, 1 << 20] {
        let error = Call::decode(head(depth)).unwrap_err();
        assert_eq!(error.to_string(), "it has something that cannot be executed exactly once");
    }
    // A call without its change.
    assert!(Call::decode(Message::new(whole.head.slice(..whole.head.len() - call), "")).is_err());
}

// INV-28
#[test]
fn shapes_have_so_many_axes_and_no_more() {
    let shaped = |axes: usize| {
        let initializer = Initializer::new(Distribution::Constant(0.), 7, "t");
        let contents = Contents::Initialized {
            shape: vec![1; axes],
            dtype: DType::F32,
            initializer,
            partition: RowPartition::div(1, 1),
            shard: 0,
        };
        Request::Create(TableSpec { name: "t".to_owned(), contents, rule: None, rounding: None })
    };
    let read = |axes| Call::decode(message(shaped(axes), Wire::Full));
    assert!(read(64).is_ok());
    // Each size is one byte in the message, and would be eight in memory.
    assert!(read(65).is_err() && read(1 << 20).is_err());
    let value = HostTensor::new(vec![1f32], vec![1; 65]).unwrap();
    let write = Request::Write { table: "t".to_owned(), how: Write::Assign, value };
    assert!(Encoded::new(write, Wire::Full).is_err());
}

// INV-28
#[test]
fn a_head_of_small_parts_does_not_take_many_times_its_bytes() {
    let restore = |slots: usize| {
        let slot = (String::new(), HostTensor::vector(Vec::<f32>::new()));
        let state = State::Slots { first: 0, slots: vec![slot; slots] };
        message(Request::Restore { table: "t".to_owned(), state }, Wire::Full)
    };
    assert!(Call::decode(restore(10_000)).is_ok());
    // Slots of 6 bytes each, which would take 64 or more in memory.
    let many = restore(2_500_000);
    assert!(many.head.len() > 12 << 20 && many.head.len() < 16 << 20);
    let error = Call::decode(many).unwrap_err().to_string();
    assert_eq!(error, "it has more elements in its head than a head of its length can have");
    // The same in many requests of one call, each of which would be accepted.
    let part = restore(20_000);
    let empty = message(Request::Batch(vec![]), Wire::Full).head;
    let one = part.head.slice(empty.len()..);
    let head = [&empty[..], &one.repeat(100)].concat();
    assert!(
        Call::decode(Message::new(head, "")).unwrap_err().to_string().contains("more elements in its head")
    );
}
