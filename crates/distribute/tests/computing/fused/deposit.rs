//! Checks that the gradients that layers write into an optimizer's bucket stay with that optimizer and that step.

use crate::fused::{assert_same, numbers};
use crate::support::mirrored;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Module, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use distribute::optimizer::rules::Momentum;
use distribute::optimizer::{Gradient, Gradients, Weighting};
use distribute::{Optimizer, Replicated, nn};
use distribute_testing::watched;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Creates two layers. The backward pass of the second one runs first.
fn two(vb: VarBuilder<'_>) -> Result<[nn::Linear; 2]> {
    let vb = vb.to_dtype(DType::F64);
    Ok([nn::linear(3, 4, vb.pp("a"))?, nn::linear(4, 2, vb.pp("b"))?])
}

fn weights<M>(model: &Replicated<M>) -> Vec<Tensor> {
    model.variables.names().iter().map(|name| model.variables.get(name).unwrap()).collect()
}

fn assert_equal(a: &[Tensor], b: &[Tensor]) {
    assert_eq!(
        a.iter().map(crate::fused::flat).collect::<Vec<_>>(),
        b.iter().map(crate::fused::flat).collect::<Vec<_>>()
    );
}

/// An operation that returns its argument, and whose backward pass fails while the flag is set.
struct Fails(Arc<AtomicBool>);

impl CustomOp1 for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let CpuStorage::F64(all) = storage else { bail!("f64") };
        Ok((CpuStorage::F64(all.clone()), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        if self.0.load(Ordering::SeqCst) { bail!("as ordered") } else { Ok(Some(upstream.clone())) }
    }
}

#[test]
fn a_backward_that_fails_leaves_nothing_for_the_next_step() {
    watched(|| {
        for n in [1, 2, 3] {
            // The last replica's backward fails in these steps, after its second layer has left its gradients.
            let train = |failing: &[bool]| {
                let strategy = mirrored(n);
                let model = strategy.replicate_seeded(2, two).unwrap();
                let optimizer = Optimizer::with_rule(Momentum::new(0.9), &model.variables, 0.1).unwrap();
                let mut good = 0;
                for &fail in failing {
                    let flag = Arc::new(AtomicBool::new(fail));
                    let run = strategy.run(&model, |ctx, [a, b]| {
                        let replica = ctx.replica_id_in_sync_group();
                        let hidden = a.forward(&numbers(&[2, 3], DType::F64, good * 5 + replica))?;
                        let hidden =
                            if replica + 1 == n { hidden.apply_op1(Fails(flag.clone()))? } else { hidden };
                        optimizer.minimize(ctx, b.forward(&hidden)?.sqr()?.mean_all()?, 2)
                    });
                    if fail {
                        assert!(run.unwrap_err().to_string().contains("as ordered"))
                    } else {
                        good += usize::from(run.is_ok())
                    }
                }
                assert_eq!(good, failing.iter().filter(|fail| !**fail).count());
                weights(&model)
            };
            assert_equal(&train(&[true, false, true, true, false]), &train(&[false, false]));
        }
    });
}

#[test]
fn two_optimizers_train_two_parts_of_one_graph() {
    watched(|| {
        // One after the other, each by a loss of both parts. The gradients of the other optimizer's part are not used.
        let train = |by_hand: bool| {
            let strategy = mirrored(2);
            let (one, other) =
                (strategy.replicate_seeded(2, two).unwrap(), strategy.replicate_seeded(3, two).unwrap());
            let make =
                |model: &Replicated<_>| Optimizer::with_rule(Momentum::new(0.9), &model.variables, 0.1);
            let (first, second) = (make(&one).unwrap(), make(&other).unwrap());
            for step in 0..3 {
                let run = strategy.run((&one, &other), |ctx, ([a, b], [c, d])| {
                    let x = numbers(&[2, 3], DType::F64, step * 5 + ctx.replica_id_in_sync_group());
                    let loss = || -> Result<Tensor> {
                        let y = b.forward(&a.forward(&x)?)?.matmul(&d.forward(&c.forward(&x)?)?.t()?)?;
                        y.tanh()?.mean_all()
                    };
                    for optimizer in [&first, &second] {
                        if by_hand {
                            let gradients = Gradients::of(optimizer, &loss()?)?;
                            optimizer.apply_gradients(ctx, gradients, Weighting::MeanOver(2))?;
                        } else {
                            drop(optimizer.minimize(ctx, loss()?, 2)?)
                        }
                    }
                    Ok(())
                });
                run.unwrap();
            }
            [weights(&one), weights(&other)].concat()
        };
        assert_same(&train(false), &train(true), "two optimizers");
    });
}

#[test]
fn outside_minimize_gradients_are_candles() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy.replicate_seeded(2, two).unwrap();
        let optimizer = Optimizer::with_rule(Momentum::new(0.9), &model.variables, 0.1).unwrap();
        let x = numbers(&[2, 3], DType::F64, 1);
        let run = strategy.run(&model, |ctx, [a, b]| {
            let loss = || b.forward(&a.forward(&x)?)?.sqr()?.mean_all();
            let store = loss()?.backward()?;
            let found = Gradients::of(&optimizer, &loss()?)?;
            for (name, layer) in [("a", a), ("b", b)] {
                for (part, tensor) in [("weight", layer.weight()), ("bias", layer.bias().unwrap())] {
                    let Some(Gradient::Dense(gradient)) = found.get(&format!("{name}.{part}")) else {
                        panic!("{name}.{part} has no gradient");
                    };
                    let candles = store.get(tensor).unwrap();
                    assert_same(std::slice::from_ref(gradient), std::slice::from_ref(candles), name);
                }
            }
            // After a step, the bucket is closed as well.
            optimizer.minimize(ctx, loss()?, 2)?;
            assert!(loss()?.backward()?.get(a.weight()).is_some());
            Ok(())
        });
        run.unwrap();
    });
}

/// Returns a loss that depends on a table, which is the table of an embedding. Depending on `uses`, it is also the
/// weight of a layer, the table of a bag or an operand of candle's.
fn of_table(table: &Tensor, ids: &Tensor, uses: usize) -> Result<Tensor> {
    let rows = nn::Embedding::new(table.clone(), 3).forward(ids)?;
    let mut y = match uses % 2 {
        0 => rows.sqr()?.mean_all()?,
        _ => nn::Linear::new(table.clone(), None).forward(&rows)?.tanh()?.mean_all()?,
    };
    if uses & 2 > 0 {
        y = (y + nn::EmbeddingBag::new(table.clone(), nn::BagMode::Mean)
            .forward(ids)?
            .tanh()?
            .mean_all()?)?;
    }
    if uses & 4 > 0 {
        y = (y + table.tanh()?.mean_all()?)?;
    }
    Ok(y)
}

#[test]
fn rows_and_dense_gradients_of_one_table_add_up_over_uses_micro_batches_and_replicas() {
    watched(|| {
        let train = |uses: &[usize], by_hand: bool| {
            let strategy = mirrored(uses.len());
            let build = |vb: VarBuilder| {
                vb.to_dtype(DType::F64).get_with_hints(
                    (7, 3),
                    "table",
                    candle_nn::Init::Randn { mean: 0., stdev: 1. },
                )
            };
            let model = strategy.replicate_seeded(5, build).unwrap();
            let optimizer = Optimizer::with_rule(Momentum::new(0.9), &model.variables, 0.5).unwrap();
            for step in 0..3 {
                let run = strategy.run(&model, |ctx, table| {
                    let replica = ctx.replica_id_in_sync_group();
                    let losses = [0, 1].map(|part| {
                        let ids: Vec<u32> =
                            (0..4 + part).map(|i| ((i * 5 + step + replica) % 4) as u32).collect();
                        let ids =
                            Tensor::new(ids.as_slice(), &candle_core::Device::Cpu)?.reshape((1, 4 + part))?;
                        Ok((of_table(table, &ids, uses[replica] >> (3 * part))?, 1 + part))
                    });
                    if !by_hand {
                        return optimizer.minimize_each(ctx, losses).map(drop);
                    }
                    let [one, other] = losses.map(|loss: distribute::Result<_>| loss.unwrap());
                    let sum = ((one.0 * one.1 as f64)? + (other.0 * other.1 as f64)?)?;
                    let gradients = Gradients::of(&optimizer, &sum)?;
                    optimizer.apply_gradients(ctx, gradients, Weighting::SumOver(one.1 + other.1))
                });
                run.unwrap();
            }
            weights(&model)
        };
        for seed in 0..60usize {
            let uses: Vec<usize> = (0..1 + seed % 3).map(|replica| (seed * 37 + replica * 29) % 64).collect();
            assert_same(&train(&uses, false), &train(&uses, true), &format!("{uses:?}"));
        }
    });
}
