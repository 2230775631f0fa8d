//! The number of examples that is passed to `minimize`.

use crate::optimizer::{Log, mirrored, vectors};
use candle_core::{DType, Device};
use candle_nn::{Init, VarBuilder};
use distribute::data::Dataset;
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;

/// Trains on the numbers below `rows`, in batches of 4. Each replica passes `n(rows)` for its number of rows.
fn train(replicas_: usize, rows: i64, n: fn(usize) -> usize, name: &'static str) -> Result<Vec<f64>> {
    let strategy = mirrored(replicas_);
    let model = strategy
        .replicate(move |vb: VarBuilder| vb.get_with_hints_dtype(1, name, Init::Const(0.), DType::F64))?;
    let optimizer = Sgd::new(&model.variables, 0.1)?;
    let batches = strategy.distribute_dataset(Dataset::range(rows).batch(4))?;
    let mut losses = Vec::new();
    for batch in &batches {
        let loss = strategy.run((&model, batch?), |ctx, (w, piece)| {
            let x = piece.to_candle(&Device::Cpu)?.to_dtype(DType::F64)?;
            let rows = x.dim(0)?;
            let loss = match rows {
                0 => w.sum_all()?,
                _ => x.broadcast_sub(w)?.sqr()?.mean_all()?,
            };
            optimizer.minimize(ctx, loss, n(rows))
        })?;
        losses.push(loss.into_values().remove(0).to_scalar::<f64>()?);
    }
    Ok(losses)
}

#[test]
fn examples_of_an_empty_batch_are_refused() {
    watched(|| {
        let error = train(2, 9, |_| 2, "refused").unwrap_err();
        assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
        for part in ["replica 1 (", "step 3", "minimize: n is 2", "has no rows", "labels.dim(0)?", "skip"] {
            assert!(error.to_string().contains(part), "{part:?} is not in {error}");
        }
        train(2, 9, |rows| rows, "right").unwrap();
        // The same for the program's own gradients, and for micro-batches.
        let strategy = mirrored(2);
        let model = vectors(&strategy, &["w"]);
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        let batches = strategy.distribute_dataset(Dataset::range(1).batch(2)).unwrap();
        for kind in 0..2 {
            let batch = batches.iter().next().unwrap().unwrap();
            let error = strategy.run((&model, batch), |ctx, (model, _)| match kind {
                0 => optimizer.minimize_each(ctx, [Ok((model[0].sum_all()?, 1))]).map(drop),
                _ => optimizer.apply_gradients(ctx, distribute::optimizer::Gradients::new(&optimizer), 1),
            });
            assert!(
                error.unwrap_err().to_string().contains("n is 1, but this per-replica batch has no rows")
            );
        }
    });
}

#[test]
fn one_number_for_all_batches_is_warned_of_once() {
    watched(|| {
        let log = Log::of_process();
        let told =
            || log.lines("n is 2 on every replica, but their per-replica batches have 2, 1, 1 rows").len();
        // 2, 1 and 1 rows.
        train(3, 12, |_| 2, "constant").unwrap();
        assert_eq!(told(), 1);
        train(3, 12, |rows| rows, "rows").unwrap();
        // Numbers of tokens.
        train(3, 12, |rows| [0, 5, 13][rows], "tokens").unwrap();
        assert_eq!(told(), 1);
        assert_eq!(log.lines("is the number of examples that this replica's loss is a mean over").len(), 1);
    });
}

#[test]
fn losses_of_tokens_are_the_same_for_each_number_of_replicas() {
    watched(|| {
        let one = train(1, 11, |rows| 7 * rows, "one").unwrap();
        let three = train(3, 11, |rows| 7 * rows, "three").unwrap();
        assert!(one.iter().zip(&three).all(|(one, three)| (one - three).abs() < 1e-12), "{one:?} {three:?}");
    });
}
