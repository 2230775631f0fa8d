//! The values that a step computes with, and the time at which they are fetched.

use crate::parameter_servers::channels::logged;
use crate::parameter_servers::support::servers;
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::tensor::IndexedSlices;
use distribute::{Checkpoint, Error, HostTensor, ParameterServerStrategy, Replicated, Sgd, nn};
use distribute_testing::watched;

fn sevens(rows: usize) -> Tensor {
    Tensor::full(7f32, (rows, 2), &Device::Cpu).unwrap()
}

fn table(strategy: &ParameterServerStrategy) -> Replicated<nn::Embedding> {
    let table = strategy.replicate(|vb| nn::embedding(5, 2, vb)).unwrap();
    table.variables.set("weight", &sevens(5)).unwrap();
    table
}

// INV-55
#[test]
fn a_table_of_rows_is_fetched_completely_when_its_tensor_is_taken() {
    watched(|| {
        let all = vec![vec![7f32; 2]; 5];
        let strategy = servers(2, 2);
        let outside = table(&strategy).variables.variable("weight").unwrap();
        assert_eq!(outside.as_tensor().unwrap().to_vec2::<f32>().unwrap(), all);
        let inside = table(&strategy).variables.variable("weight").unwrap();
        let run = strategy.run((), |_, ()| Ok(inside.as_tensor()?.to_vec2::<f32>()?));
        assert_eq!(run.unwrap().into_values(), [all]);
    });
}

#[test]
fn a_step_fails_that_has_computed_with_a_table_that_could_not_be_fetched() {
    watched(|| {
        let (builder, log) = logged(2);
        let strategy = builder.partitioner(FixedShardsPartitioner::new(2).unwrap()).build().unwrap();
        let model = table(&strategy);
        let sum = |_: &distribute::ReplicaContext, table: &nn::Embedding| {
            Ok(table.embeddings().sum_all()?.to_scalar::<f32>()?)
        };
        let evaluate = |lost| {
            strategy.run(&model, |ctx, table| {
                *log.lost.lock().unwrap() = lost;
                sum(ctx, table)
            })
        };
        let error = evaluate(Some("read")).unwrap_err();
        assert!(matches!(error, Error::Server { operation: "embeddings", .. }), "{error}");
        *log.lost.lock().unwrap() = None;
        assert_eq!(evaluate(None).unwrap().into_values(), [70.]);
    });
}

/// Returns a model of one weight, and an optimizer that subtracts the weight's gradient.
fn weight(
    strategy: &ParameterServerStrategy,
) -> (Replicated<Tensor>, distribute::Optimizer<distribute::optimizer::rules::Sgd>) {
    let weight = |vb: VarBuilder| vb.get_with_hints(2, "w", Init::Const(64.));
    let model = strategy.replicate(weight).unwrap();
    let optimizer = Sgd::new(&model.variables, 1.).unwrap();
    (model, optimizer)
}

// INV-55
#[test]
fn a_write_during_pending_updates_is_the_value_of_the_next_step() {
    watched(|| {
        let (builder, _log) = logged(1);
        let strategy = builder.staleness(2).build().unwrap();
        let (model, optimizer) = weight(&strategy);
        let v = model.variables.variable("w").unwrap();
        let step = || {
            let run = strategy.run(&model, |ctx, w| {
                let began_with = w.to_vec1::<f32>()?;
                optimizer.minimize(ctx, w.sum_all()?, 1)?;
                Ok(began_with)
            });
            run.unwrap().into_values().remove(0)
        };
        let of = |value: f32| Tensor::full(value, 2, &Device::Cpu).unwrap();
        step();
        model.variables.set("w", &of(5.)).unwrap();
        assert_eq!(step(), [5.; 2]);
        let row = HostTensor::vector(vec![9f32]);
        v.scatter_update(IndexedSlices::new(row, HostTensor::vector(vec![1i64]), None).unwrap()).unwrap();
        assert_eq!(step(), [4., 9.]);
        // Also in a step, after its own update.
        let run = strategy.run(&model, |ctx, w| {
            optimizer.minimize(ctx, w.sum_all()?, 1)?;
            ctx.merge_call((), |_, _| v.assign(of(2.)))
        });
        run.unwrap();
        assert_eq!(step(), [2.; 2]);
        let folder = tempfile::tempdir().unwrap();
        let saved = || Checkpoint::new().part("model", &model.variables);
        saved().save(folder.path().join("saved")).unwrap();
        step();
        saved().restore(folder.path().join("saved")).unwrap();
        assert_eq!(step(), [1.; 2]);
        // A program that sends nothing receives the changes of others.
        let evaluate =
            || strategy.run(&model, |_, w| Ok(w.to_vec1::<f32>()?)).unwrap().into_values().remove(0);
        evaluate();
        assert_eq!(evaluate(), [0.; 2]);
    });
}

#[test]
fn saves_and_reads_wait_for_pending_updates() {
    watched(|| {
        let (builder, log) = logged(1);
        let strategy = builder.staleness(1).build().unwrap();
        let (model, optimizer) = weight(&strategy);
        let step = || strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).map(drop);
        let folder = tempfile::tempdir().unwrap();
        let v = model.variables.variable("w").unwrap();
        let save =
            || Checkpoint::new().part("model", &model.variables).save(folder.path().join("saved")).map(drop);
        for wait in [&save as &dyn Fn() -> distribute::Result<()>, &|| v.read::<Tensor>().map(drop), &|| {
            v.gather(&[0]).map(drop)
        }] {
            step().unwrap();
            v.read::<Tensor>().unwrap();
            // The gradients of this step are lost, but no call waits for them yet.
            *log.lost.lock().unwrap() = Some("push");
            step().unwrap();
            *log.lost.lock().unwrap() = None;
            assert!(wait().unwrap_err().to_string().contains("push"));
            wait().unwrap();
        }
    });
}

#[test]
fn a_step_with_acknowledged_gradients_counts_though_the_next_fetch_failed() {
    watched(|| {
        for staleness in 0..2 {
            let (builder, log) = logged(1);
            let strategy = builder.staleness(staleness).build().unwrap();
            let (model, optimizer) = weight(&strategy);
            let one = |ctx: &distribute::ReplicaContext, w: &Tensor| {
                optimizer.minimize(ctx, w.sum_all()?, 1)?;
                Ok(w.to_vec1::<f32>()?[0])
            };
            let lost = strategy.run(&model, |ctx, w| {
                *log.lost.lock().unwrap() = Some("read");
                one(ctx, w)
            });
            assert_eq!(lost.unwrap().into_values(), [64.], "what could not be fetched");
            assert_eq!(optimizer.finished_steps(), 1);
            assert_eq!(strategy.run(&model, |ctx, w| one(ctx, w)).is_err(), staleness == 0);
            *log.lost.lock().unwrap() = None;
            let now = strategy.run(&model, |_, w| Ok(w.to_vec1::<f32>()?[0])).unwrap().into_values();
            let made = optimizer.finished_steps() as f32;
            assert_eq!(now, [64. - made], "staleness {staleness}");
            // In one run, a second update has no values for its computation.
            if staleness == 0 {
                let twice = strategy.run(&model, |ctx, w| {
                    *log.lost.lock().unwrap() = Some("read");
                    one(ctx, w)?;
                    one(ctx, w)
                });
                let error = twice.unwrap_err();
                assert!(matches!(error.root_cause(), Error::Server { .. }), "{error}");
                *log.lost.lock().unwrap() = None;
                assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [62.; 2]);
            }
        }
    });
}
