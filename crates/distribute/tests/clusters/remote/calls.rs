//! Calls: arguments, results, and the properties of the worker that a function can read.

use crate::remote::support::{
    Worker, call_of, context, making, resource, value, worker, worker_with, workers_of,
};
use crate::support::on_cluster;
use bytes::Bytes;
use distribute::cluster::Job;
use distribute::remote::{RemoteFunction, RemoteProgram, WorkerContext, current_worker_index};
use distribute::{Error, LocalCluster, ParameterServerStrategy, Result};
use distribute_coordinator::{FailureKind, Program, ResourceId};
use distribute_testing::watched;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, Ordering};

struct Counter(AtomicU32);

#[derive(Serialize, Deserialize, PartialEq, Debug, Clone)]
struct Settings {
    name: String,
    by: Vec<u32>,
}

#[distribute::remote]
fn count_from(_worker: &WorkerContext, from: u32) -> Result<Counter> {
    Ok(Counter(AtomicU32::new(from)))
}

#[distribute::remote]
fn count(
    worker: &WorkerContext,
    counter: &Counter,
    settings: Settings,
    (twice, more): (bool, Option<u32>),
) -> Result<(String, u32)> {
    let by = settings.by.iter().sum::<u32>() * if twice { 2 } else { 1 } + more.unwrap_or(0);
    let text = format!("{} on {} of {}", settings.name, worker.index(), worker.workers());
    Ok((text, counter.0.fetch_add(by, Ordering::Relaxed) + by))
}

/// Fails with an error of candle, which is converted to one of this crate.
#[distribute::remote]
fn of_candle(_worker: &WorkerContext) -> candle_core::Result<f32> {
    candle_core::Tensor::new(&[1f32, 2.], &candle_core::Device::Cpu)?.sum_all()?.to_scalar()
}

#[distribute::remote]
#[allow(clippy::too_many_arguments, reason = "as many as there may be")]
fn eight(_worker: &WorkerContext, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8) -> Result<Vec<u8>> {
    Ok(vec![a, b, c, d, e, f, g, h])
}

#[distribute::remote]
fn indices(worker: &WorkerContext) -> Result<Vec<usize>> {
    let on_replicas = worker.strategy().run((), |_, ()| current_worker_index())?;
    let mut all = vec![worker.index(), current_worker_index()?];
    all.extend(on_replicas.into_values());
    Ok(all)
}

fn by(name: &str, by: &[u32]) -> Settings {
    Settings { name: name.into(), by: by.to_vec() }
}

#[test]
fn cc_2_values_are_sent_and_references_stay_on_the_worker() {
    watched(|| {
        let workers = workers_of(&on_cluster(2, 2));
        for (number, worker) in workers.iter().enumerate() {
            worker.make(7, count_from, [value(100 * number as u32)]);
        }
        let arguments =
            |twice, more: Option<u32>| [resource(7), value(by("a", &[1, 2])), value((twice, more))];
        assert_eq!(workers[1].call(count, arguments(false, None)), ("a on 1 of 2".into(), 103));
        assert_eq!(workers[1].call(count, arguments(true, Some(5))), ("a on 1 of 2".into(), 114));
        assert_eq!(workers[0].call(count, arguments(false, None)), ("a on 0 of 2".into(), 3));
        assert_eq!(workers[0].call(of_candle, []), 3.);
        let all: Vec<_> = (0..8u8).map(value).collect();
        assert_eq!(workers[0].call(eight, all), [0, 1, 2, 3, 4, 5, 6, 7]);
    });
}

#[test]
fn a_remote_function_can_be_called_by_hand() {
    let strategy = on_cluster(3, 2);
    let worker = WorkerContext::new(&strategy);
    let counter = count_from(&worker, 40).unwrap();
    assert_eq!(count(&worker, &counter, by("b", &[2]), (false, None)).unwrap(), ("b on 0 of 3".into(), 42));
    let cluster = LocalCluster::new(3, 1).unwrap();
    let second =
        ParameterServerStrategy::builder().cluster_resolver(cluster.resolver_of(Job::Worker.task(1)));
    let worker = WorkerContext::new(&second.build().unwrap());
    let input = worker.input_context();
    assert_eq!((worker.index(), input.input_pipeline_id, input.num_input_pipelines), (1, 1, 3));
    assert!(!worker.is_cancelled());
}

// CC-13
#[test]
fn cc_13_the_current_worker_is_available_only_in_its_functions_and_their_replicas() {
    watched(|| {
        let cluster = LocalCluster::new(3, 1).unwrap();
        let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        let strategy = builder.devices(["cpu:0", "cpu:1"]).build().unwrap();
        for (number, worker) in workers_of(&strategy).iter().enumerate() {
            assert_eq!(worker.call(indices, []), [number; 4]);
        }
        let outside = current_worker_index().unwrap_err();
        assert!(matches!(outside, Error::InvalidArgument { .. }), "{outside}");
        let error = strategy.run((), |_, ()| current_worker_index()).unwrap_err();
        assert!(error.to_string().contains("outside a remote function"), "{error}");
    });
}

fn fails(worker: &Worker, arguments: Vec<distribute_coordinator::Argument>, kind: FailureKind, text: &str) {
    let failure = worker.try_call(count, arguments).unwrap_err();
    assert!(failure.kind == kind && failure.text.contains(text), "{failure:?}");
}

#[test]
fn mismatched_arguments_are_refused_by_number_and_the_worker_continues() {
    use FailureKind::{InvalidArgument, Resource};
    watched(|| {
        let worker = worker();
        worker.make(1, count_from, [value(0u32)]);
        let (settings, last) = (|| value(by("c", &[1])), || value((false, None::<u32>)));
        fails(
            &worker,
            vec![resource(1), settings()],
            InvalidArgument,
            "2 arguments were passed, but it has 3",
        );
        fails(
            &worker,
            vec![settings(), settings(), last()],
            InvalidArgument,
            "argument 1 of 3 is a value, but a kept",
        );
        fails(
            &worker,
            vec![resource(1), resource(1), last()],
            InvalidArgument,
            "argument 2 of 3 is resource 1, but a value",
        );
        fails(
            &worker,
            vec![resource(2), settings(), last()],
            Resource,
            "argument 1 of 3 is resource 2, which this worker has not created",
        );
        let cut = distribute_coordinator::Argument::Value(bytes::Bytes::from_static(&[200]));
        fails(
            &worker,
            vec![resource(1), cut, last()],
            InvalidArgument,
            "argument 2 of 3 has 1 bytes that are not a",
        );
        let longer = value((by("c", &[1]), 1u8));
        fails(
            &worker,
            vec![resource(1), longer, last()],
            InvalidArgument,
            "argument 2 of 3 has 1 bytes more than",
        );
        // A resource of another type than that of the coordinator's handle.
        worker.make(3, twin, []);
        fails(
            &worker,
            vec![resource(3), settings(), last()],
            InvalidArgument,
            "a alloc::string::String, but a",
        );
        assert_eq!(worker.call(count, [resource(1), settings(), last()]).1, 1);
        worker.0.forget(ResourceId(1));
        fails(&worker, vec![resource(1), settings(), last()], Resource, "or has dropped");
    });
}

#[distribute::remote]
fn twin(_worker: &WorkerContext) -> Result<String> {
    Ok("twin".into())
}

#[test]
fn functions_of_another_program_are_refused_by_name() {
    watched(|| {
        let worker = worker();
        let mut call = call_of(twin, []);
        call.function.source ^= 1;
        let failure = worker.0.call(&context(), &call).unwrap_err();
        let text = "has a different clusters::remote::calls::twin than the coordinator's, at crates/distribute/tests/clusters/remote/calls.rs:";
        assert!(failure.kind == FailureKind::UnknownFunction && failure.text.contains(text), "{failure:?}");
        call.function.name = "clusters::remote::calls::gone".into();
        let failure = worker.0.create(&making(), ResourceId(1), &call, None).unwrap_err();
        assert_eq!(failure.kind, FailureKind::UnknownFunction);
        assert!(failure.text.contains("has no remote function clusters::remote::calls::gone"), "{failure:?}");
        // Some types can be kept but not sent, and a function without a dataset makes no batches.
        let failure = worker.0.call(&context(), &call_of(count_from, [value(1u32)])).unwrap_err();
        assert!(failure.text.contains("can be kept but not sent"), "{failure:?}");
        call.function = distribute_coordinator::FunctionId {
            name: format!("dataset of {}", twin::NAME),
            source: twin::SOURCE,
        };
        let failure = worker.0.create(&making(), ResourceId(1), &call, None).unwrap_err();
        assert!(failure.text.contains("does not return a dataset"), "{failure:?}");
    });
}

#[test]
fn a_program_has_its_functions_by_their_paths() {
    let program = RemoteProgram::of_local_cluster(&on_cluster(1, 2)).unwrap().unwrap();
    let functions = program.functions();
    assert!(functions.contains(&count::id()) && functions.contains(&count_from::id()), "{functions:?}");
    assert_eq!(count::NAME, "clusters::remote::calls::count");
    let mut names: Vec<_> = functions.iter().map(|id| &id.name).collect();
    names.dedup();
    assert_eq!(names.len(), functions.len());
}

#[test]
fn a_worker_that_is_taken_for_another_is_refused() {
    let cluster = LocalCluster::new(2, 1).unwrap();
    let settings =
        ParameterServerStrategy::builder().cluster_resolver(cluster.resolver_of(Job::Worker.task(1)));
    let program = RemoteProgram::of_task(settings).unwrap();
    assert!(program.start(1, 2, &Bytes::new()).is_ok());
    let refused = |worker, workers| program.start(worker, workers, &Bytes::new()).err().unwrap().text;
    assert!(
        refused(0, 2).contains("expects worker 0 here, but this process is worker 1"),
        "{}",
        refused(0, 2)
    );
    assert!(refused(1, 3).contains("has 3 workers, but the cluster of this one has 2"), "{}", refused(1, 3));
    let of_chief =
        RemoteProgram::of_task(ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()))
            .unwrap();
    assert!(of_chief.start(0, 2, &Bytes::new()).err().unwrap().text.contains("but this process is chief 0"));
}

#[test]
fn workers_of_one_process_have_the_settings_of_the_coordinators_strategy() {
    watched(|| {
        let worker = worker_with(ParameterServerStrategy::builder().devices(["cpu:0", "cpu:1", "cpu:2"]));
        assert_eq!(worker.call(indices, []), [0; 5]);
        let away = r#"{"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}"#;
        let (channels, _) = crate::parameter_servers::channels::channels(1);
        let resolver = distribute::cluster::resolver::SimpleClusterResolver::new(away.parse().unwrap());
        let elsewhere =
            ParameterServerStrategy::builder().cluster_resolver(resolver).channels(channels).build().unwrap();
        assert!(RemoteProgram::of_local_cluster(&elsewhere).unwrap().is_none());
    });
}
