//! Several workers that call `runner::run`.

use crate::between_graph::support::all;
use candle_core::{Device, Tensor};
use candle_nn::Module;
use distribute::nn;
use distribute::prelude::*;
use distribute::runner::{self, Datasets, End, Trainer};
use distribute_testing::watched;
use std::ops::ControlFlow;

const EXAMPLES: usize = 32;

fn train(strategy: &Strategy, trainer: &Trainer<'_>) -> distribute::Result<runner::History> {
    train_by(strategy, trainer, Ok)
}

/// Trains with the optimizer that `with` returns. `with` gets a default one.
fn train_by(
    strategy: &Strategy,
    trainer: &Trainer<'_>,
    with: impl FnOnce(Sgd) -> distribute::Result<Sgd>,
) -> distribute::Result<runner::History> {
    let model = strategy.replicate(|vb| nn::linear(2, 1, vb.pp("fc")))?;
    let optimizer = with(Sgd::new(&model.variables, 0.05)?)?;
    let points = Tensor::arange(0f32, 64., &Device::Cpu)?.sin()?.reshape((EXAMPLES, 2))?;
    let points = Dataset::from_slices(points)?;
    let held_out = points.take(8);
    let datasets =
        Datasets::new(
            move |context| Ok(points.shard(context.num_input_pipelines, context.input_pipeline_id)),
        )
        .validation(move |_| Ok(held_out.clone()));
    runner::run(trainer, &model, &optimizer, &datasets, |linear, points, _phase| {
        Ok((linear.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?))
    })
}

// PSV1-1, PSV1-4, GNN-4
#[test]
fn gnn_4_each_worker_runs_separate_epochs_without_waiting() {
    watched(|| {
        let histories = all(2, 2, |strategy| {
            // Worker 1 ends early, which must not hold up worker 0.
            let early = strategy.worker() == 1;
            let trainer = Trainer::new(4).epochs(5).on_epoch(move |epoch| {
                Ok(if early && epoch.epoch == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            train(&strategy, &trainer)
        });
        let epochs: Vec<_> = histories.iter().map(|it| it.epochs.len()).collect();
        assert_eq!((epochs, histories[0].end, histories[1].end), (vec![5, 2], End::Epochs, End::Callback));
        for epoch in histories.iter().flat_map(|it| &it.epochs) {
            // Each worker reads half of the examples, in batches of its own.
            assert_eq!(epoch.steps, EXAMPLES / 2 / 4);
            assert!(epoch.validation_loss.is_some_and(f64::is_finite));
        }
        assert!(histories[0].epochs[4].loss < histories[0].epochs[0].loss);
    });
}

// PSV1-1
#[test]
fn psv1_1_operations_that_need_a_common_step_are_refused_with_advice() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let told = all(2, 1, |strategy| {
            let backup = train(&strategy, &Trainer::new(4).backup(folder.path())).unwrap_err();
            let best = train(&strategy, &Trainer::new(4).save_best(folder.path())).unwrap_err();
            let averages = train_by(&strategy, &Trainer::new(4).validate_ema(), |sgd| sgd.with_ema(0.5));
            let averages = averages.unwrap_err().to_string();
            assert!(averages.contains("Trainer::validate_ema with workers"), "{averages}");
            assert!(averages.contains("with a separate model") && !averages.contains("save a"), "{averages}");
            Ok([("backup", backup.to_string()), ("save_best", best.to_string())])
        });
        for (what, error) in told.into_iter().flatten() {
            assert!(error.contains(&format!("Trainer::{what} with workers")), "{error}");
            assert!(error.contains("on the chief in Trainer::on_epoch"), "{error}");
        }
    });
}
