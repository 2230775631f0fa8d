//! Models that workers keep: the location of their variables, and the messages of a step.

use crate::parameter_servers::channels::logged;
use crate::remote::support::{call_of, context, making, resource, value, worker_with, workers_of};
use crate::support::on_cluster;
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules;
use distribute::remote::WorkerContext;
use distribute::{
    LocalCluster, OneDeviceStrategy, Optimizer, ParameterServerStrategy, Replicated, Result, Sgd,
};
use distribute_coordinator::{CallContext, Cancellation, ClosureId, FailureKind, Origin, ResourceId};
use distribute_ps_tables::Request;
use distribute_testing::watched;
use std::time::Duration;

/// A model of one weight, with its optimizer.
struct Model {
    net: Replicated<Tensor>,
    optimizer: Optimizer<rules::Sgd>,
}

fn weight(vb: VarBuilder) -> candle_core::Result<Tensor> {
    vb.get_with_hints(3, "w", Init::Const(8.))
}

#[distribute::remote]
fn build(worker: &WorkerContext) -> Result<Model> {
    let net = worker.strategy().replicate(weight)?;
    let optimizer = Sgd::new(&net.variables, 0.5)?;
    Ok(Model { net, optimizer })
}

/// Returns the loss of some rows of a batch.
fn loss(w: &Tensor, rows: &[f32]) -> Result<Tensor> {
    let rows = Tensor::new(rows, &Device::Cpu)?.reshape((rows.len(), 1))?;
    Ok(rows.broadcast_mul(&w.sqr()?.reshape((1, 3))?)?.sum(1)?.mean_all()?)
}

#[distribute::remote]
fn train(worker: &WorkerContext, model: &Model, rows: Vec<f32>) -> Result<f32> {
    let losses = worker.strategy().run(&model.net, |ctx, w| {
        let replicas = ctx.num_replicas_in_sync();
        let mine = &rows[ctx.replica_id_in_sync_group() * rows.len() / replicas..][..rows.len() / replicas];
        model.optimizer.minimize(ctx, loss(w, mine)?, mine.len())
    })?;
    Ok(losses.values()[0].to_scalar()?)
}

#[distribute::remote]
fn weights(_worker: &WorkerContext, model: &Model) -> Result<Vec<f32>> {
    Ok(model.net.variables.get("w")?.to_vec1()?)
}

// PSV2-7
#[test]
fn replicas_of_a_worker_are_reduced_before_it_pushes() {
    watched(|| {
        let rows = [1f32, 2., 3., 4.];
        let alone = OneDeviceStrategy::new("cpu:0").unwrap();
        let expected = alone.replicate(weight).unwrap();
        let optimizer = Sgd::new(&expected.variables, 0.5).unwrap();
        let step = alone.run(&expected, |ctx, w| optimizer.minimize(ctx, loss(w, &rows)?, 4)).unwrap();

        let (settings, log) = logged(2);
        let worker = worker_with(settings.devices(["cpu:0", "cpu:1"]));
        worker.make(1, build, []);
        log.take();
        let loss = worker.call(train, [resource(1), value(rows.to_vec())]);
        let pushes =
            log.take().into_iter().filter(|(_, request)| matches!(request, Request::Push { .. })).count();
        assert_eq!(pushes, 1, "of two replicas");
        assert_eq!(loss, step.values()[0].to_scalar::<f32>().unwrap());
        assert_eq!(
            worker.call(weights, [resource(1)]),
            expected.variables.get("w").unwrap().to_vec1::<f32>().unwrap()
        );
    });
}

#[test]
fn workers_train_the_coordinators_variables() {
    watched(|| {
        let strategy = on_cluster(2, 2);
        let model = strategy.replicate(weight).unwrap();
        let workers = workers_of(&strategy);
        for worker in &workers {
            worker.0.create(&context(), ResourceId(1), &call_of(build, []), None).unwrap();
        }
        workers[0].call(train, [resource(1), value(vec![1f32])]);
        let once = model.variables.get("w").unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(once, [0.; 3]);
        model.variables.set("w", &Tensor::new(&[1f32, 2., 3.], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(workers[1].call(weights, [resource(1)]), [1., 2., 3.]);
    });
}

#[test]
fn one_worker_creates_missing_variables_and_the_others_find_them() {
    watched(|| {
        let cluster = LocalCluster::new(2, 1).unwrap();
        let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        let strategy = builder.join_timeout(Duration::from_millis(50)).build().unwrap();
        let workers = workers_of(&strategy);
        let make = |worker: usize, context: CallContext| {
            workers[worker].0.create(&context, ResourceId(1), &call_of(build, []), None)
        };
        let failure = make(1, context()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::InvalidArgument);
        assert!(failure.text.contains("the chief creates variables"), "{failure:?}");
        make(0, making()).unwrap();
        make(1, context()).unwrap();
        workers[0].call(train, [resource(1), value(vec![1f32])]);
        assert_eq!(workers[1].call(weights, [resource(1)]), [0.; 3]);
        // Another call without this permission is refused.
        let failure =
            workers[0].0.create(&context(), ResourceId(2), &call_of(another, []), None).unwrap_err();
        assert!(failure.text.contains("the chief creates variables"), "{failure:?}");
    });
}

#[distribute::remote]
fn another(worker: &WorkerContext) -> Result<Replicated<Tensor>> {
    worker.strategy().replicate(|vb: VarBuilder| vb.get_with_hints(1, "other", Init::Const(1.)))
}

/// A model for one replica, as users of candle write it.
struct Plain {
    w: Tensor,
    optimizer: Optimizer<rules::Sgd>,
}

#[distribute::remote]
fn plain(worker: &WorkerContext) -> Result<Plain> {
    let w = weight(worker.var_builder()?)?;
    Ok(Plain { w, optimizer: Sgd::new(worker.variables(), 0.5)? })
}

#[distribute::remote]
fn train_plain(worker: &WorkerContext, model: &Plain) -> Result<Vec<f32>> {
    worker.strategy().run((), |ctx, ()| model.optimizer.minimize(ctx, loss(&model.w, &[1.])?, 1))?;
    Ok(model.w.to_vec1()?)
}

#[test]
fn a_model_of_one_replica_is_made_by_a_var_builder() {
    watched(|| {
        let strategy = on_cluster(1, 2);
        let worker = workers_of(&strategy).remove(0);
        worker.make(1, plain, []);
        assert_eq!(worker.call(train_plain, [resource(1)]), [0.; 3]);
        assert_eq!(worker.call(train_plain, [resource(1)]), [0.; 3]);
        let several = worker_with(ParameterServerStrategy::builder().devices(["cpu:0", "cpu:1"]));
        let failure = several.0.create(&making(), ResourceId(1), &call_of(plain, []), None).unwrap_err();
        assert!(failure.text.contains("worker.strategy().replicate"), "{failure:?}");
    });
}

// INV-59
#[test]
fn changes_of_a_closure_that_is_rerun_elsewhere_are_applied_once() {
    watched(|| {
        let strategy = on_cluster(2, 2);
        let model = strategy.replicate(weight).unwrap();
        let job = strategy.extended().parameter_servers().unwrap().begin_job().unwrap();
        let workers = workers_of(&strategy);
        for worker in &workers {
            worker.0.create(&context(), ResourceId(1), &call_of(build, []), None).unwrap();
        }
        let train_in = |worker: usize, closure, floor| {
            let origin = Origin { job, closure: ClosureId(closure), floor: ClosureId(floor) };
            let context = CallContext::new(Some(origin), false, Cancellation::default());
            let call = call_of(train, [resource(1), value(vec![0.5f32])]);
            workers[worker].0.call(&context, &call).map(drop)
        };
        let now = || model.variables.get("w").unwrap().to_vec1::<f32>().unwrap()[0];
        train_in(0, 0, 0).unwrap();
        assert_eq!(now(), 4.);
        train_in(1, 0, 0).unwrap();
        assert_eq!(now(), 4.);
        train_in(1, 1, 1).unwrap();
        assert_eq!(now(), 2.);
        // Changes of a closure that has ended are refused, and calls outside closures work as before.
        let failure = train_in(0, 0, 0).unwrap_err();
        assert_eq!((failure.kind, now()), (FailureKind::Cancelled, 2.));
        workers[0].call(train, [resource(1), value(vec![0.5f32])]);
        assert_eq!(now(), 1.);
    });
}
