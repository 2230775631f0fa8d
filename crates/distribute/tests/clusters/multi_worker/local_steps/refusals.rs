//! Errors for settings and calls that do not combine with local steps.

use super::{DILOCO, local, model, on, on_groups};
use candle_core::{Device, Tensor};
use candle_nn::Init;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::nn::{batch_norm, embedding, loss};
use distribute::strategy::{
    Compression, Links, LocalSteps, MultiWorkerMirroredStrategyBuilder, Outer, RowFormat, TableHosts,
    TableOptions,
};
use distribute::{Adam, Error, ErrorKind, MultiWorkerMirroredStrategy, ReduceOp, Result, Sgd, Strategy};
use distribute_collective::group::local as groups;
use distribute_testing::watched;

fn builder(local: LocalSteps) -> MultiWorkerMirroredStrategyBuilder {
    let cluster: ClusterSpec = r#"{"worker": ["localhost:0", "localhost:0"]}"#.parse().unwrap();
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).local_steps(local)
}

#[test]
fn a_builder_refuses_what_does_not_combine_before_it_joins() {
    let nesterov = |learning_rate, momentum| local(3, Outer::Nesterov { learning_rate, momentum });
    let of = || builder(local(3, DILOCO));
    for (builder, text) in [
        (of().tables(TableHosts::Workers), "tables on workers"),
        (of().logical_replicas(4), "logical_replicas"),
        (of().min_workers(1), "min_workers"),
        (builder(local(0, Outer::Average)), "at least 1"),
        (builder(nesterov(-1., 0.5)), "must be positive"),
        (builder(nesterov(0.7, 1.5)), "in [0, 1)"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(text), "{text:?} is not in {error}");
    }
}

/// Checks that `body` returns an error that contains `text` on all workers.
fn refused(text: &str, body: impl Fn(&Strategy) -> Result<()> + Sync) {
    for error in on((2, 1), local(3, DILOCO), |strategy| Ok(body(strategy).expect_err("an error"))) {
        assert!(matches!(error.root_cause(), Error::NotSupported { .. }), "{error}");
        assert!(error.to_string().contains(text), "{text:?} is not in {error}");
    }
}

#[test]
fn an_optimizer_refuses_what_does_not_combine() {
    watched(|| {
        refused("sharding the state", |strategy| {
            Adam::new(&model(strategy)?.variables, 0.1)?.shard_state().map(drop)
        });
        refused("averages of weights", |strategy| {
            Adam::new(&model(strategy)?.variables, 0.1)?.with_ema(0.9).map(drop)
        });
        refused("gradients of collectives", |strategy| {
            let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.)))?;
            let optimizer = Sgd::new(&model.variables, 0.1)?;
            let step = strategy.run(&model, |ctx, w| {
                optimizer.minimize(ctx, ctx.all_reduce(ReduceOp::Sum, w.sum_all()?)?, 1)
            });
            step.map(drop)
        });
        refused("candle_nn's batch norm", |strategy| {
            let model = strategy.replicate(|vb| batch_norm(3, 1e-5, vb))?;
            let optimizer = Sgd::new(&model.variables, 0.1)?;
            let x = Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((4, 3))?;
            let labels = Tensor::new(&[0u32, 1, 2, 0], &Device::Cpu)?;
            let step = strategy.run(&model, |ctx, norm| {
                optimizer.minimize(ctx, loss::cross_entropy(&norm.forward_train(&x)?, &labels)?, 4)
            });
            step.map(drop)
        });
    });
}

#[test]
fn an_optimizer_refuses_tables_that_outer_steps_would_not_round() {
    watched(|| {
        let format = RowFormat::Bf16 { seed: 7 };
        let tables = TableOptions { format, min_bytes: 0, ..TableHosts::Mirrored.into() };
        let builder = MultiWorkerMirroredStrategy::builder().local_steps(local(3, DILOCO)).tables(tables);
        let all = builder.on_threads(Links::Memory, 2, |strategy| {
            let model = strategy.replicate(|vb| embedding(10, 4, vb))?;
            Ok(Sgd::new(&model.variables, 0.1).map(drop).unwrap_err())
        });
        for error in all.unwrap() {
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
            assert!(error.to_string().contains("RowFormat::Full"), "{error}");
        }
    });
}

#[test]
fn weights_are_not_saved_while_each_worker_has_its_own() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        on((2, 1), local(3, DILOCO), |strategy| {
            let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.)))?;
            let optimizer = Sgd::new(&model.variables, 0.1)?;
            strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1))?;
            let error = model.variables.save(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(!path.exists());
            optimizer.finish_local_steps()?;
            model.variables.save(&path)
        });
        assert!(path.exists());
    });
}

#[test]
fn values_without_a_graph_are_still_reduced_over_all_workers() {
    watched(|| {
        let sums = on((3, 2), local(3, DILOCO), |strategy| {
            let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.)))?;
            let optimizer = Sgd::new(&model.variables, 0.1)?;
            let all = strategy.run(&model, |ctx, w| {
                let loss = w.sum_all()?;
                let sum = ctx.all_reduce(ReduceOp::Sum, loss.detach())?;
                optimizer.minimize(ctx, loss, 1)?;
                Ok(sum.to_scalar::<f32>()?)
            })?;
            Ok(all.into_values())
        });
        assert_eq!(sums, vec![vec![12.; 2]; 3]);
    });
}

#[test]
fn workers_with_other_settings_get_one_error_in_the_first_step() {
    let run = |of: [LocalSteps; 2]| {
        let errors = on_groups(
            groups::groups(Links::Memory, 2, 1).unwrap(),
            |worker, builder| builder.local_steps(of[worker]),
            |strategy| {
                let error = strategy.run((), |_, ()| Ok(())).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
                Ok(error)
            },
        );
        crate::multi_worker::one_message(&errors, &["worker 1 has other local_steps than worker 0"]);
    };
    watched(move || {
        run([local(3, DILOCO), local(4, DILOCO)]);
        run([local(3, DILOCO), local(3, Outer::Average)]);
        run([local(1, Outer::Average), local(3, Outer::Average)]);
    });
}

#[test]
fn other_settings_of_an_optimizer_are_found_in_the_outer_step_which_changes_nothing() {
    watched(|| {
        for (rule_differs, text) in
            [(true, "after_reduce"), (false, "different learning rates (0.125, 0.25, by worker)")]
        {
            on((2, 2), local(2, DILOCO), |strategy| {
                let model = model(strategy)?;
                let is_other = strategy.world().worker() == 1;
                let optimizer = Adam::new(&model.variables, 0.125)?;
                let optimizer = match (is_other, rule_differs) {
                    (true, true) => {
                        optimizer.after_reduce(distribute::optimizer::Transform::clip_by_norm(1.))?
                    }
                    _ => optimizer,
                };
                if is_other && !rule_differs {
                    optimizer.set_learning_rate(0.25)?;
                }
                let step = |number| {
                    strategy.run(&model, |ctx, layers| {
                        super::step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                    })
                };
                step(1)?;
                let before = super::weights(&model)?;
                for _ in 0..2 {
                    let error = step(2).unwrap_err();
                    assert!(error.to_string().contains(text), "{text:?} is not in {error}");
                    assert_eq!(super::bits(&super::weights(&model)?), super::bits(&before));
                    assert_eq!(optimizer.finished_steps(), 1);
                }
                Ok(())
            });
        }
    });
}

/// Makes one step of an optimizer, and returns the error of the step.
fn step(strategy: &Strategy, model: &distribute::Replicated<super::Layers>, optimizer: &Adam) -> Result<()> {
    let made = strategy
        .run(model, |ctx, layers| super::step_of(ctx, optimizer, layers, 1, ctx.replica_id_in_sync_group()));
    made.map(drop)
}

// INV-98
#[test]
fn a_second_optimizer_of_a_variable_waits_for_the_outer_step_of_the_first() {
    watched(|| {
        for (of, form) in [
            (local(2, DILOCO), Compression::None),
            (local(2, Outer::Average), Compression::TopK),
            (local(2, Outer::Average), Compression::Bf16),
        ] {
            let builder = MultiWorkerMirroredStrategy::builder().local_steps(of).compression(form);
            let all = builder.on_threads(crate::multi_worker::links(2, 1), 2, |strategy| {
                let model = model(strategy)?;
                let first = Adam::new(&model.variables, 0.01)?;
                let second = Adam::new(&model.variables, 0.02)?.freeze(|name| name.starts_with("a."))?;
                let other = Adam::new(&model.variables, 0.02)?.freeze(|name| name.starts_with("b."))?;
                step(strategy, &model, &first)?;
                let error = step(strategy, &model, &second).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
                let text = error.to_string();
                for part in ["adam 2 trains", "\"b.bias\"", "adam 1 has", "finish_local_steps() of adam 1"] {
                    assert!(text.contains(part), "{part:?} is not in {text}");
                }
                first.finish_local_steps()?;
                step(strategy, &model, &second)?;
                // They have no variable in common.
                step(strategy, &model, &other)?;
                step(strategy, &model, &second)?;
                step(strategy, &model, &other)?;
                let once = model.variables.sha256()?;
                step(strategy, &model, &first)?;
                step(strategy, &model, &first)?;
                drop(first);
                step(strategy, &model, &second)?;
                second.finish_local_steps()?;
                Ok([once, model.variables.sha256()?])
            });
            let all = all.unwrap();
            assert_eq!(all[0], all[1], "{form}");
        }
        // The mean of weights begins at no weights.
        let all = on((2, 1), local(2, Outer::Average), |strategy| {
            let model = model(strategy)?;
            let [first, second] = [Adam::new(&model.variables, 0.01)?, Adam::new(&model.variables, 0.02)?];
            for _ in 0..2 {
                step(strategy, &model, &first)?;
                step(strategy, &model, &second)?;
            }
            model.variables.sha256()
        });
        assert_eq!(all[0], all[1]);
    });
}
