//! `runner::evaluate` and `runner::predict` under each strategy, and weights that are saved under one strategy and
//! loaded under another.

use super::*;
use distribute::Checkpoint;
use distribute::input::DistributedDataset;

/// Returns the held-out examples in global batches, which the strategy splits.
fn batches(strategy: &Strategy) -> DistributedDataset<(Tensor, Tensor)> {
    strategy.distribute_dataset(rows(31, 4).batch(GLOBAL_BATCH)).unwrap()
}

fn outputs(net: &Net, (x, _): (Tensor, Tensor)) -> Result<Tensor> {
    Ok(net.1.forward(&net.0.forward(&x)?.tanh()?)?)
}

fn bits(tensor: &Tensor) -> Vec<Vec<u32>> {
    let rows = tensor.to_vec2::<f32>().unwrap();
    rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

// SCOPE-9
#[test]
fn scope_9_evaluate_and_predict_are_the_same_under_each_strategy_in_its_scope_and_without() {
    watched(|| {
        let of = |strategy: &Strategy| {
            let (model, _) = made(strategy, 7);
            let found = || {
                let loss = runner::evaluate(&model, &batches(strategy), |net, batch| net.loss(&batch))?;
                Ok((loss, runner::predict(&model, &batches(strategy), outputs)?))
            };
            let (without, within) = (found().unwrap(), strategy.scope(found).unwrap());
            assert_eq!(without.0.to_bits(), within.0.to_bits());
            assert_eq!(bits(&without.1), bits(&within.1));
            without
        };
        // The reference: all rows in one batch, computed by hand.
        let one: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        let (model, _) = made(&one, 7);
        let net = model.merged().unwrap();
        let all = rows(31, 4).batch(31).iter().next().unwrap().unwrap();
        let loss = f64::from(net.loss(&all).unwrap().0.to_scalar::<f32>().unwrap());
        let expected = bits(&outputs(&net, all).unwrap());
        for (strategy, workers) in everywhere(of) {
            for (found, rows) in workers {
                // Other sizes of batches round otherwise.
                assert!((found - loss).abs() < 1e-6, "{strategy}: {found} {loss}");
                assert_eq!(rows.dims(), [31, 3], "{strategy}");
                let found = bits(&rows);
                let near = |a: u32, b: u32| (f32::from_bits(a) - f32::from_bits(b)).abs() < 1e-6;
                let same = found.iter().flatten().zip(expected.iter().flatten()).all(|(a, b)| near(*a, *b));
                assert!(same, "{strategy}: rows are in the order of the dataset");
            }
        }
    });
}

#[test]
fn a_dataset_without_an_example_can_be_neither_evaluated_nor_predicted() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let (model, _) = made(&strategy, 7);
        let empty = strategy.distribute_dataset(rows(31, 4).take(0).batch(4)).unwrap();
        let loss = runner::evaluate(&model, &empty, |net, batch| net.loss(&batch)).unwrap_err();
        let rows = runner::predict(&model, &empty, outputs).unwrap_err();
        for error in [loss, rows].map(|error| error.to_string()) {
            assert!(error.contains("is the dataset empty?"), "{error}");
        }
    });
}

// SCOPE-9, CKPT-1
#[test]
fn scope_9_weights_saved_in_a_scope_are_loaded_under_every_other_strategy_and_back() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mirrored: Strategy = MirroredStrategy::cpus(2).unwrap();
        let (trained, optimizer) = made(&mirrored, 7);
        let trainer = Trainer::new(GLOBAL_BATCH);
        runner::run(&trainer, &trained, &optimizer, &datasets(), |net, batch, _| net.loss(&batch)).unwrap();
        let [file, state] = ["weights.safetensors", "state"].map(|name| folder.path().join(name));
        // As a file of weights for any program, and as a checkpoint; in the scope of the strategy.
        mirrored
            .scope(|| {
                trained.variables.save(&file)?;
                Checkpoint::new().part("model", &trained.variables).part("optimizer", &optimizer).save(&state)
            })
            .unwrap();
        let sum = trained.variables.sha256().unwrap();
        let load = |strategy: &Strategy| {
            // Of other first values, made where they are to be: in the scope, or by `replicate` without it.
            let (model, _) = strategy.scope(|| Ok(made(strategy, 8))).unwrap();
            model.variables.load(&file).unwrap();
            let of_file = model.variables.sha256().unwrap();
            let (model, optimizer) = made(strategy, 9);
            Checkpoint::new()
                .part("model", &model.variables)
                .part("optimizer", &optimizer)
                .restore(&state)
                .unwrap();
            (of_file, model, optimizer)
        };
        for (strategy, workers) in everywhere(|strategy| {
            let (of_file, model, optimizer) = load(strategy);
            (of_file, model.variables.sha256().unwrap(), optimizer.finished_steps())
        }) {
            let expected = (sum.clone(), sum.clone(), optimizer.finished_steps());
            assert!(workers.iter().all(|found| *found == expected), "{strategy}");
        }
        // And back: from servers, and from two workers.
        for (strategy, name) in [(servers(), "servers"), (OneDeviceStrategy::new("cpu:0").unwrap(), "one")] {
            let (_, model, optimizer) = load(&strategy);
            let path = folder.path().join(name);
            Checkpoint::new()
                .part("model", &model.variables)
                .part("optimizer", &optimizer)
                .save(&path)
                .unwrap();
            let (back, again) = made(&mirrored, 3);
            Checkpoint::new()
                .part("model", &back.variables)
                .part("optimizer", &again)
                .restore(&path)
                .unwrap();
            assert_eq!(
                (back.variables.sha256().unwrap(), again.finished_steps()),
                (sum.clone(), 8),
                "{name}"
            );
        }
    });
}
