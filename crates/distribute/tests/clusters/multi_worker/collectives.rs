//! Calls of replicas of all workers inside `run`: collectives, their gradients, batch-norm, masks of dropout.

use crate::multi_worker::support::{
    LARGE, bits, number, one_message, replicas_as_in_one_process, rows, vector,
};
use candle_core::{Device, Tensor, Var};
use candle_nn::{BatchNormConfig, ModuleT};
use distribute::nn::{Dropout, batch_norm};
use distribute::prelude::*;
use distribute::strategy::CommunicationOptions;
use distribute::tensor::{DType, Leaf};
use distribute_testing::watched;

// INV-27
#[test]
fn reductions_and_gathers_have_the_bits_of_one_process() {
    replicas_as_in_one_process(|strategy| {
        let all = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id_in_sync_group();
            let mut all = Vec::new();
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                for lens in [&[1, 7][..], &[LARGE / 4 + 11, 3]] {
                    let dtypes = [DType::F32, DType::F64, DType::I32].into_iter();
                    let of = dtypes.flat_map(|dtype| lens.iter().map(move |len| vector(dtype, id, *len)));
                    let values: Vec<HostTensor> = of.collect();
                    all.extend(ctx.all_reduce(op, values.clone())?.into_iter().map(bits));
                    let packs = CommunicationOptions { bytes_per_pack: 64, ..Default::default() };
                    all.extend(ctx.with_options(packs)?.all_reduce(op, values)?.into_iter().map(bits));
                }
                all.push(bits(Leaf::Slices(ctx.all_reduce(op, rows(id))?)));
            }
            for len in [1, LARGE / 2] {
                let uneven = vector(DType::F32, id, len * (id % 3));
                all.push(bits(ctx.all_gather(uneven, 0)?));
            }
            Ok(all)
        });
        Ok(all?.into_values())
    });
}

// GA-9, GR-1
#[test]
fn gradients_go_back_to_the_replicas_of_all_workers() {
    replicas_as_in_one_process(|strategy| {
        let gradients = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id_in_sync_group();
            let x = Var::from_tensor(&Tensor::new(&[number(id, 0), number(id, 1)], &Device::Cpu)?)?;
            let sum = ctx.all_reduce(ReduceOp::Mean, x.as_tensor().sqr()?)?;
            let parts = ctx.all_gather(x.as_tensor().repeat(id % 2 + 1)?, 0)?;
            let weights: Vec<f64> = (0..parts.dim(0)?).map(|i| number(id, i)).collect();
            let loss = ((sum * number(id, 2))?.sum_all()?
                + (parts * Tensor::new(weights, &Device::Cpu)?)?.sum_all()?)?;
            let gradients = loss.backward()?;
            let gradient = gradients.get(&x).expect("the loss depends on x").clone();
            Ok((loss.to_scalar::<f64>()?.to_bits(), bits(Leaf::Candle(gradient))))
        });
        Ok(gradients?.into_values())
    });
}

/// Checks values of which only some have a graph. The other replicas still participate in the gradient.
#[test]
fn replicas_without_a_graph_participate_in_the_gradients_of_other_workers() {
    for with_graph in [0, 1] {
        replicas_as_in_one_process(move |strategy| {
            let gradients = strategy.run((), |ctx, ()| {
                let id = ctx.replica_id_in_sync_group();
                let x = Var::from_tensor(&Tensor::new(&[number(id, 0)], &Device::Cpu)?)?;
                let has_graph = id % 2 == with_graph || ctx.num_replicas_in_sync() == 1;
                let mine = if has_graph { x.as_tensor().clone() } else { x.as_tensor().detach() };
                let sum = ctx.all_reduce(ReduceOp::Sum, mine)?;
                let loss = (sum * number(id, 2))?.sum_all()?;
                let gradients = loss.backward()?;
                Ok(gradients.get(&x).map(|gradient| bits(Leaf::Candle(gradient.clone()))))
            });
            Ok(gradients?.into_values())
        });
    }
}

#[test]
fn batch_norm_normalises_by_the_moments_of_all_workers() {
    replicas_as_in_one_process(|strategy| {
        let model = strategy.replicate(|vb| batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))?;
        let all = strategy.run(&model, |ctx, bn| {
            let id = ctx.replica_id_in_sync_group();
            let rows = id % 3 + 1;
            let x: Vec<f64> = (0..2 * rows).map(|i| number(id, i)).collect();
            let x = Var::from_tensor(&Tensor::from_vec(x, (rows, 2), &Device::Cpu)?)?;
            let y = bn.forward_t(x.as_tensor(), true)?;
            let gradients = (y.sqr()? * number(id, 3))?.sum_all()?.backward()?;
            let gradient = gradients.get(&x).expect("the loss depends on x").clone();
            Ok([y, gradient].map(|tensor| bits(Leaf::Candle(tensor.detach()))))
        });
        Ok(all?.into_values())
    });
}

/// Checks that masks depend on rows of the global batch, including those of the workers before this one.
#[test]
fn masks_of_dropout_equal_those_of_one_process() {
    use distribute::data::Dataset;
    replicas_as_in_one_process(|strategy| {
        let dropout = Dropout::new(0.5, 42, "hidden")?;
        let ones = Tensor::ones((23, 4), candle_core::DType::F32, &Device::Cpu)?;
        let mut all = Vec::new();
        for (step, batch) in
            strategy.distribute_dataset(Dataset::from_slices(ones)?.batch(9))?.iter().enumerate()
        {
            let masks = strategy.run(batch?, |ctx, piece| {
                let rows = ctx.rows().expect("a piece of a batch");
                assert_eq!(rows.len(), piece.dim(0)?);
                let [once, twice] = [dropout.forward(&piece, true)?, dropout.forward(&piece, true)?];
                Ok((step, rows, [once, twice].map(|mask| bits(Leaf::Candle(mask)))))
            })?;
            all.push(masks.into_values());
        }
        // Grouped by replica, so that the replicas of the workers follow each other.
        Ok((0..strategy.world().replicas())
            .map(|local| all.iter().map(|masks| masks[local].clone()).collect::<Vec<_>>())
            .collect())
    });
}

#[test]
fn without_a_per_replica_batch_masks_depend_on_the_replicas_global_id() {
    replicas_as_in_one_process(|strategy| {
        let dropout = Dropout::new(0.5, 42, "hidden")?;
        let masks = strategy.run((), |_, ()| {
            let ones = Tensor::ones((3, 8), candle_core::DType::F32, &Device::Cpu)?;
            Ok(bits(Leaf::Candle(dropout.forward(&ones, true)?)))
        });
        Ok(masks?.into_values())
    });
}

#[test]
fn a_replica_with_another_backward_is_one_error_on_all_workers() {
    let text = one_message(2, 2, |strategy| {
        let run = strategy.run((), |ctx, ()| {
            let x = Var::from_tensor(&Tensor::new(1f32, &Device::Cpu)?)?;
            let sum = ctx.all_reduce(ReduceOp::Sum, x.as_tensor().clone())?;
            if ctx.replica_id_in_sync_group() == 3 {
                ctx.all_gather(HostTensor::vector(vec![1f32]), 0)?;
            }
            Ok(sum.backward()?.get(&x).is_some())
        });
        run.map(drop)
    });
    assert!(text.contains("replica 3 called all_gather"), "{text}");
    assert!(text.contains("the gradient of call 1 leaf 0"), "{text}");
}

#[test]
fn contexts_have_their_global_ids() {
    watched(|| {
        let all = crate::multi_worker::on_threads(3, 2, |strategy| {
            let ids = strategy.run((), |ctx, ()| {
                Ok((ctx.replica_id_in_sync_group(), ctx.num_replicas_in_sync(), ctx.device()?))
            })?;
            Ok(ids.into_values())
        });
        let ids: Vec<usize> = all
            .unwrap()
            .into_iter()
            .flatten()
            .map(|(id, all, _)| {
                assert_eq!(all, 6);
                id
            })
            .collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    });
}
