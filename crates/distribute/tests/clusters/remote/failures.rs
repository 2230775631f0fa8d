//! Failures of functions, as the coordinator receives them.

use crate::parameter_servers::channels::logged;
use crate::remote::support::{
    Worker, call_of, context, making, resource, value, worker, worker_with, workers_of,
};
use crate::support::on_cluster;
use bytes::Bytes;
use candle_nn::Init;
use distribute::cluster::{Job, Stopwatch};
use distribute::remote::{RemoteProgram, WorkerContext};
use distribute::{Error, LocalCluster, ParameterServerStrategy, Replicated, Result, Variable};
use distribute_coordinator::{CallContext, Cancellation, FailureKind, Program, ResourceId};
use distribute_testing::watched;
use std::time::Duration;

#[distribute::remote]
fn fail(worker: &WorkerContext, how: String) -> Result<u32> {
    let strategy = worker.strategy();
    let invalid = || distribute::OneDeviceStrategy::new("moon:0").unwrap_err();
    match how.as_str() {
        "user" => Err(Error::other("label 12 is outside of 0..10")),
        "invalid" => Err(invalid()),
        "invalid, within" => Err(Error::other(Wrapped(invalid()))),
        "replica" => strategy.run((), |_, ()| Err::<u32, _>(invalid())).map(|_| 0),
        "panic" => panic!("the {} are out of reach", "rows"),
        "panic of a replica" => strategy.run((), |_, ()| -> Result<()> { panic!("out of reach") }).map(|_| 0),
        _ => Ok(1),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("while reading: {0}")]
struct Wrapped(#[source] Error);

#[distribute::remote]
fn large(_worker: &WorkerContext, bytes: usize) -> Result<Vec<u8>> {
    Ok(vec![1; bytes])
}

#[distribute::remote]
fn unsent(_worker: &WorkerContext) -> Result<Unsent> {
    Ok(Unsent)
}

/// A value whose encoding and decoding panic.
struct Unsent;

impl serde::Serialize for Unsent {
    fn serialize<S: serde::Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        panic!("not this one")
    }
}

impl<'de> serde::Deserialize<'de> for Unsent {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        panic!("nor here")
    }
}

#[distribute::remote]
fn take(_worker: &WorkerContext, _unsent: Unsent) -> Result<()> {
    Ok(())
}

#[distribute::remote]
fn give_up(worker: &WorkerContext) -> Result<()> {
    if worker.is_cancelled() { Err(Error::other("gave up")) } else { Ok(()) }
}

fn works(worker: &Worker) {
    assert_eq!(worker.call(fail, [value("not at all")]), 1);
}

#[test]
fn errors_keep_their_kind_and_their_text() {
    use FailureKind::{Function, InvalidArgument, Panicked};
    watched(|| {
        let worker = worker();
        for (how, kind, text) in [
            ("user", Function, "label 12 is outside of 0..10"),
            ("invalid", InvalidArgument, "moon"),
            ("invalid, within", InvalidArgument, "while reading: device \"moon:0\""),
            ("replica", InvalidArgument, "replica 0"),
            ("panic", Panicked, "panicked: the rows are out of reach"),
            ("panic of a replica", Panicked, "out of reach"),
        ] {
            let failure = worker.try_call(fail, [value(how)]).unwrap_err();
            assert!(failure.kind == kind && failure.text.contains(text), "{how}: {failure:?}");
            works(&worker);
        }
    });
}

#[test]
fn a_panic_while_encoding_or_creating_is_a_failure() {
    watched(|| {
        let worker = worker();
        let failure = worker.0.call(&context(), &call_of(unsent, [])).unwrap_err();
        assert!(
            failure.kind == FailureKind::Panicked && failure.text.contains("not this one"),
            "{failure:?}"
        );
        let failure = worker.0.call(&context(), &call_of(take, [value(())])).unwrap_err();
        assert!(failure.kind == FailureKind::Panicked && failure.text.contains("nor here"), "{failure:?}");
        let failure =
            worker.0.create(&making(), ResourceId(1), &call_of(fail, [value("panic")]), None).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Panicked);
        works(&worker);
    });
}

#[test]
fn a_result_has_at_most_this_number_of_bytes() {
    let cluster = LocalCluster::new(1, 1).unwrap();
    let strategy =
        ParameterServerStrategy::builder().cluster_resolver(cluster.resolver_of(Job::Worker.task(0)));
    let program = RemoteProgram::of_task(strategy).unwrap().largest_result(100);
    let worker = Worker(program.start(0, 1, &Bytes::new()).unwrap());
    // One byte of the result is the length.
    assert_eq!(worker.call(large, [value(99usize)]).len(), 99);
    let failure = worker.try_call(large, [value(100usize)]).unwrap_err();
    assert!(
        failure.kind == FailureKind::TooLarge && failure.text.contains("exceeds the limit of 100 bytes"),
        "{failure:?}"
    );
}

#[test]
fn cc_7_a_call_that_was_cancelled_does_not_run_and_one_that_sees_it_gives_up() {
    let worker = worker();
    let cancellation = Cancellation::default();
    let context = CallContext::new(None, false, cancellation.clone());
    assert!(worker.0.call(&context, &call_of(give_up, [])).is_ok());
    cancellation.cancel();
    let failure = worker.0.call(&context, &call_of(fail, [value("panic")])).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Cancelled);
    // The function is cancelled while it runs.
    let cancellation = Cancellation::default();
    let context = CallContext::new(None, false, cancellation.clone());
    lock_cancellation(Some(cancellation));
    let failure = worker.0.call(&context, &call_of(cancelled_within, [])).unwrap_err();
    assert!(failure.kind == FailureKind::Cancelled && failure.text == "gave up", "{failure:?}");
}

static WITHIN: std::sync::Mutex<Option<Cancellation>> = std::sync::Mutex::new(None);

fn lock_cancellation(cancellation: Option<Cancellation>) {
    *WITHIN.lock().unwrap() = cancellation;
}

/// Fails as if the coordinator had cancelled the call while it ran.
#[distribute::remote]
fn cancelled_within(worker: &WorkerContext) -> Result<()> {
    WITHIN.lock().unwrap().take().unwrap().cancel();
    give_up(worker)
}

#[distribute::remote]
fn make_weights(worker: &WorkerContext) -> Result<Replicated<candle_core::Tensor>> {
    worker.strategy().replicate(|vb: candle_nn::VarBuilder| vb.get_with_hints(2, "w", Init::Const(1.)))
}

#[distribute::remote]
fn read(_worker: &WorkerContext, weights: &Replicated<candle_core::Tensor>, id: i64) -> Result<f32> {
    let variable = weights.variables.variable("w")?;
    let row = variable.gather(&[id])?;
    Ok(row.to_vec::<f32>()?[0])
}

#[test]
fn ft_1_an_unresponsive_server_is_distinguished_from_one_that_refuses() {
    watched(|| {
        let (settings, log) = logged(2);
        let worker = worker_with(settings);
        worker.make(1, make_weights, []);
        assert_eq!(worker.call(read, [resource(1), value(1i64)]), 1.);
        let failure = worker.try_call(read, [resource(1), value(9i64)]).unwrap_err();
        assert!(matches!(failure.kind, FailureKind::InvalidArgument), "{failure:?}");
        *log.down.lock().unwrap() = Some("ps 0".into());
        let failure = worker.try_call(read, [resource(1), value(1i64)]).unwrap_err();
        assert!(failure.kind == FailureKind::Server && failure.text.contains("ps 0"), "{failure:?}");
        *log.down.lock().unwrap() = None;
        assert_eq!(worker.call(read, [resource(1), value(0i64)]), 1.);
    });
}

#[distribute::remote]
fn count(worker: &WorkerContext, name: String) -> Result<f32> {
    let counter = worker.strategy().scope(|| Variable::new(name, 0f32))?;
    counter.assign_add(1f32)?;
    counter.read()
}

// CC-3
#[test]
fn a_scheduled_function_that_creates_a_variable_fails_at_once_with_advice() {
    watched(|| {
        let strategy = on_cluster(1, 2);
        let there = strategy.scope(|| Variable::new("there", 4f32)).unwrap();
        let worker = workers_of(&strategy).remove(0);
        let started = Stopwatch::start();
        let failure = worker.try_call(count, [value("new")]).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!(failure.kind, FailureKind::InvalidArgument);
        for part in
            ["variable new", "a scheduled function cannot create variables", "create_per_worker_value"]
        {
            assert!(failure.text.contains(part), "{failure:?}");
        }
        // An existing variable is found by its name.
        assert_eq!(worker.call(count, [value("there")]), 5.);
        assert_eq!(there.read::<f32>().unwrap(), 5.);
    });
}

/// Checks that the wait for a missing variable takes one timeout. It once took two: one to find the variable, and one
/// to check it.
#[test]
fn a_variable_that_is_never_created_is_awaited_until_the_timeout() {
    watched(|| {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let patience = Duration::from_millis(400);
        let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        let strategy = builder.join_timeout(patience).build().unwrap();
        let worker = workers_of(&strategy).remove(0);
        let started = Stopwatch::start();
        let failure = worker.0.create(&context(), ResourceId(1), &call_of(model, []), None).unwrap_err();
        let waited = started.elapsed();
        assert!(failure.text.contains("no variable of this name was created within 400ms"), "{failure:?}");
        assert!(waited >= patience && waited < 2 * patience, "{waited:?}");
    });
}

#[distribute::remote]
fn model(worker: &WorkerContext) -> Result<Replicated<candle_core::Tensor>> {
    worker.strategy().replicate(|vb: candle_nn::VarBuilder| vb.get_with_hints(1, "w", Init::Const(1.)))
}
