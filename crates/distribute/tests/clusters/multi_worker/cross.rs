//! Operations that run once for the values of all replicas: `reduce`, `gather`, `reduce_to`, `batch_reduce_to`.

use crate::multi_worker::support::{
    LARGE, WORLDS, bits, number, one_message, rows, same_as_one_process, vector,
};
use candle_core::{Device, Tensor};
use candle_nn::Init;
use distribute::strategy::Destinations;
use distribute::tensor::{DType, Leaf};
use distribute::values::Mirrored;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

const OPS: [ReduceOp; 2] = [ReduceOp::Sum, ReduceOp::Mean];

/// Returns one leaf for each replica, computed from the replica's global id.
fn each(strategy: &Strategy, value: impl Fn(usize) -> Leaf) -> Result<PerReplica<Leaf>> {
    strategy.distribute_values_from_function(|ctx| Ok(value(ctx.replica_id_in_sync_group)))
}

// RED-3, MW-9
// INV-27
#[test]
fn dense_values_are_reduced_over_the_replicas_of_all_workers() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        // In a single call for all dtypes, which saves time. The long vectors have more than 64 KiB together.
        for lens in [&[0, 1, 7][..], &[LARGE / 4 + 11, 3]] {
            for op in OPS {
                let of = |id| {
                    let dtypes = [DType::F32, DType::F64, DType::I32].into_iter();
                    dtypes
                        .flat_map(|dtype| lens.iter().map(move |len| vector(dtype, id, *len)))
                        .collect::<Vec<_>>()
                };
                let values =
                    strategy.distribute_values_from_function(|ctx| Ok(of(ctx.replica_id_in_sync_group)))?;
                all.extend(strategy.reduce(op, values, None)?.into_iter().map(bits));
            }
        }
        let candle = each(strategy, |id| Tensor::new(&[number(id, 0), 1.], &Device::Cpu).unwrap().into())?;
        let mean = strategy.reduce(ReduceOp::Mean, candle, None)?;
        assert!(matches!(mean, Leaf::Candle(_)));
        all.push(bits(mean));
        Ok(all)
    });
}

// SPARSE-1, SPARSE-2, SPARSE-3
#[test]
fn rows_are_merged_over_all_workers_and_become_dense_next_to_dense_values() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        for op in OPS {
            all.push(bits(strategy.reduce(op, each(strategy, |id| rows(id).into())?, None)?));
            let mixed = each(strategy, |id| match id % 2 {
                0 => rows(id).into(),
                _ => vector(DType::F32, id, 10).reshape([5, 2]).unwrap().into(),
            })?;
            all.push(bits(strategy.reduce(op, mixed, None)?));
        }
        Ok(all)
    });
}

// RED-4, RED-5, RED-7
#[test]
fn axes_count_the_elements_of_all_workers() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        for dtype in [DType::F32, DType::I32] {
            for op in OPS {
                // Some replicas have no elements.
                let uneven = each(strategy, |id| vector(dtype, id, (id * 5) % 4).into())?;
                all.push(bits(strategy.reduce(op, uneven, 0)?));
                let matrix = |id| vector(dtype, id, 6 * (id + 1)).reshape([id + 1, 3, 2]).unwrap().into();
                all.push(bits(strategy.reduce(op, each(strategy, matrix)?, [0, -1])?));
                // A value that is not distributed counts once for each replica.
                all.push(bits(strategy.reduce(op, vector(dtype, 3, 5), 0)?));
            }
        }
        Ok(all)
    });
}

// GA-1, GA-5
#[test]
fn gather_concatenates_the_parts_of_all_workers_in_the_order_of_ids() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        for len in [1, 3, LARGE / 2] {
            let uneven = |id: usize| vector(DType::F32, id, 2 * len * (id % 3)).reshape([2, len * (id % 3)]);
            all.push(bits(strategy.gather(each(strategy, |id| uneven(id).unwrap().into())?, 1)?));
        }
        let words = strategy.distribute_values_from_function(|ctx| {
            Ok(HostTensor::vector(vec![format!("replica {}", ctx.replica_id_in_sync_group).into_bytes()]))
        })?;
        let words = strategy.gather(words, 0)?.to_vec::<Vec<u8>>()?;
        assert_eq!(words.len(), strategy.num_replicas_in_sync());
        assert_eq!(words[words.len() - 1], format!("replica {}", words.len() - 1).into_bytes());
        let mirrored = strategy.broadcast_to(HostTensor::vector(vec![1f32, 2.]), Destinations::replicas())?;
        all.push(bits(strategy.gather(mirrored, 0)?));
        Ok(all)
    });
}

// GA-1, GA-3, GA-4, GA-6
#[test]
fn a_value_of_each_worker_is_gathered_over_the_workers() {
    watched(|| {
        for (workers, replicas) in WORLDS.into_iter().filter(|(workers, _)| *workers > 1) {
            let all = crate::multi_worker::on_threads(workers, replicas, |strategy| {
                let worker = strategy.world().worker();
                // As many elements as the worker's number, and one more.
                let mine = HostTensor::vector(vec![worker as f32; worker + 1]);
                let host = strategy.gather(&mine, 0)?.to_vec::<f32>()?;
                let candle = strategy.gather(Tensor::new(&[[worker as f32]], &Device::Cpu)?, 1)?;
                assert_eq!(candle.to_vec2::<f32>()?, [(0..workers).map(|w| w as f32).collect::<Vec<_>>()]);
                // A value that each worker has for all of its replicas.
                let copies = strategy.broadcast_to(Leaf::from(mine), Destinations::replicas())?;
                let copies = strategy.gather(copies, 0)?.to_host().map_err(Error::other)?.to_vec::<f32>()?;
                let scalar = strategy.gather(1f32, 0).unwrap_err().to_string();
                assert!(scalar.contains("unsqueeze"), "{scalar}");
                let axis = strategy.gather(HostTensor::vector(vec![1f32]), 5).unwrap_err().to_string();
                assert!(axis.contains("axis 5 is outside [0, 1)"), "{axis}");
                Ok((host, copies))
            });
            let of_all = |times: usize| -> Vec<f32> {
                (0..workers).flat_map(|worker| vec![worker as f32; times * (worker + 1)]).collect()
            };
            assert_eq!(all.unwrap(), vec![(of_all(1), of_all(replicas)); workers]);
        }
    });
}

// RTO-2, RTO-4, RTO-6, RTO-7
#[test]
fn batches_are_reduced_in_one_call_with_the_requested_copies() {
    same_as_one_process(|strategy| {
        let dense = each(strategy, |id| vector(DType::F32, id, LARGE).into())?;
        let sparse = each(strategy, |id| rows(id).into())?;
        let mut all = Vec::new();
        for op in OPS {
            let here = strategy.reduce_to(op, &dense, "cpu:0")?;
            assert_eq!(here.copies().len(), 1);
            all.push(bits(here.into_inner()));
            let everywhere = Destinations::replicas();
            let pairs = [(&dense, "cpu:0".into()), (&sparse, everywhere.clone()), (&dense, everywhere)];
            let batch = strategy.batch_reduce_to(op, pairs)?;
            assert_eq!(batch[1].copies().len(), strategy.world().replicas());
            all.extend(batch.iter().flat_map(|reduced| reduced.copies()).take(2).cloned().map(bits));
        }
        let mirrored = strategy.broadcast_to(HostTensor::vector(vec![5f32]), Destinations::replicas())?;
        for op in OPS {
            all.push(bits(strategy.reduce_to(op, &mirrored, "cpu:0")?.into_inner()));
        }
        assert!(strategy.batch_reduce_to(ReduceOp::Sum, Vec::<(Leaf, Destinations)>::new())?.is_empty());
        Ok(all)
    });
}

#[test]
fn nests_keep_their_structure() {
    same_as_one_process(|strategy| {
        let nests = strategy.distribute_values_from_function(|ctx| {
            let id = ctx.replica_id_in_sync_group;
            Ok((number(id, 0), vec![vector(DType::F32, id, 3), vector(DType::F32, id + 1, 2)]))
        })?;
        let (number, tensors) = strategy.reduce(ReduceOp::Sum, &nests, None)?;
        assert_eq!(tensors.len(), 2);
        let (more, _) = strategy.reduce_to(ReduceOp::Mean, nests, "cpu:0")?.into_inner();
        Ok((number.to_bits(), more.to_bits(), tensors.into_iter().map(bits).collect::<Vec<_>>()))
    });
}

// RED-13
#[test]
fn a_plain_value_is_reduced_over_workers() {
    watched(|| {
        for (workers, replicas) in WORLDS.into_iter().filter(|(workers, _)| *workers > 1) {
            let all = crate::multi_worker::on_threads(workers, replicas, |strategy| {
                let worker = strategy.world().worker();
                let total = strategy.reduce(ReduceOp::Sum, 2f32, None)?;
                let to = strategy.reduce_to(ReduceOp::Sum, number(worker, 1), "cpu:0")?.into_inner();
                let mean = strategy.reduce(ReduceOp::Mean, number(worker, 1), None)?;
                // The mean of equal values is the value, for any type.
                assert_eq!(strategy.reduce(ReduceOp::Mean, 0.1f32 + 0.2, None)?, 0.1f32 + 0.2);
                assert_eq!(strategy.reduce(ReduceOp::Mean, 5i32, None)?, 5);
                assert_eq!(strategy.reduce(ReduceOp::Mean, "same".to_string(), None)?, "same");
                Ok((total, to.to_bits(), mean.to_bits()))
            });
            let numbers: Vec<_> = (0..workers).map(|worker| HostTensor::scalar(number(worker, 1))).collect();
            let of = |op| HostTensor::reduce(op, &numbers.iter().collect::<Vec<_>>()).unwrap();
            let bits = |op| of(op).item::<f64>().unwrap().to_bits();
            let expected = (2. * workers as f32, bits(ReduceOp::Sum), bits(ReduceOp::Mean));
            assert_eq!(all.unwrap(), vec![expected; workers]);
        }
    });
}

// RED-10, RED-13
#[test]
fn a_nest_of_values_of_each_kind_goes_over_all_workers_leaf_by_leaf() {
    watched(|| {
        let all = crate::multi_worker::on_threads(3, 2, |strategy| {
            let worker = strategy.world().worker() as f32;
            let ids = each(strategy, |id| HostTensor::vector(vec![id as f32]).into())?;
            let mine = HostTensor::vector(vec![worker]);
            let (ids_sum, [mine_sum], same) =
                strategy.reduce(ReduceOp::Sum, (&ids, [&mine], Mirrored::new(1f32)), None)?;
            let (joined, [workers]) = strategy.gather((&ids, [&mine]), 0)?;
            Ok((bits(ids_sum), mine_sum.to_vec::<f32>()?, same, bits(joined), workers.to_vec::<f32>()?))
        });
        let vector = |numbers: &[f32]| bits(HostTensor::vector(numbers.to_vec()));
        let expected = (vector(&[15.]), vec![3.], 6., vector(&[0., 1., 2., 3., 4., 5.]), vec![0., 1., 2.]);
        assert_eq!(all.unwrap(), vec![expected; 3]);
    });
    let text = one_message(2, 2, |strategy| {
        let ones = each(strategy, |_| HostTensor::scalar(1f32).into())?;
        match strategy.world().worker() {
            0 => {
                strategy.reduce(ReduceOp::Sum, (&ones, Leaf::from(HostTensor::scalar(1f32))), None).map(drop)
            }
            _ => strategy.reduce(ReduceOp::Sum, (&ones, &ones), None).map(drop),
        }
    });
    assert!(text.contains("which are of each replica, of each worker"), "{text}");
}

#[test]
fn merge_functions_of_all_workers_call_reduce_to_together() {
    same_as_one_process(|strategy| {
        let weight = strategy.scope(|| Variable::new("weight", HostTensor::vector(vec![1f32; 5])))?;
        for _ in 0..2 {
            strategy.run((), |ctx, ()| {
                let mine = vector(DType::F32, ctx.replica_id_in_sync_group(), 5);
                ctx.merge_call(mine, |strategy, gradients| {
                    // The values are those of the replicas of this worker.
                    assert_eq!(gradients.len(), strategy.world().replicas());
                    let total = strategy.reduce_to(ReduceOp::Mean, &gradients, &weight)?;
                    strategy.update(&weight, total, |weight, total| weight.assign_sub(total))?;
                    let joined = strategy.gather(&gradients, 0)?;
                    assert_eq!(joined.dims(), [5 * strategy.num_replicas_in_sync()]);
                    Ok(())
                })
            })?;
        }
        assert!(weight.copies_agree()?);
        Ok(bits(weight.read::<Leaf>()?))
    });
}

// Faults

#[test]
fn another_operation_is_one_error_on_all_workers() {
    let text = one_message(3, 2, |strategy| {
        let ones = each(strategy, |_| HostTensor::scalar(1f32).into())?;
        let op = if strategy.world().worker() == 1 { ReduceOp::Mean } else { ReduceOp::Sum };
        strategy.reduce(op, ones, None).map(drop)
    });
    assert!(text.contains("replicas 2 and 3 called reduce (reduce MEAN float32[])"), "{text}");
    assert!(text.contains("replicas 0, 1, 4 and 5") && text.contains("cross.rs"), "{text}");
}

#[test]
fn another_shape_of_one_replica_is_one_error_on_all_workers() {
    let text = one_message(2, 3, |strategy| {
        let values = each(strategy, |id| vector(DType::F32, 0, if id == 4 { 3 } else { 2 }).into())?;
        strategy.reduce_to(ReduceOp::Sum, values, "cpu:0").map(drop)
    });
    assert!(text.contains("replica 4 called reduce (reduce_to SUM float32[3])"), "{text}");
    let text = one_message(2, 2, |strategy| {
        let rank = |id| if id == 1 { vec![1, 2] } else { vec![2] };
        let values = each(strategy, |id| vector(DType::F32, 0, 2).reshape(rank(id)).unwrap().into())?;
        strategy.gather(values, 0).map(drop)
    });
    assert!(text.contains("replica 1 called gather (axis 0 of float32[*, 2])"), "{text}");
}

#[test]
fn another_call_is_one_error_on_all_workers() {
    let text = one_message(2, 2, |strategy| {
        let ones = each(strategy, |_| HostTensor::vector(vec![1f32]).into())?;
        match strategy.world().worker() {
            0 => strategy.gather(ones, 0).map(drop),
            _ => strategy.reduce(ReduceOp::Sum, ones, None).map(drop),
        }
    });
    assert!(text.contains("gather (axis 0 of float32[*])") && text.contains("reduce SUM"), "{text}");
    // One worker passes a value for each replica, the other a single value.
    let text = one_message(2, 2, |strategy| {
        let one = HostTensor::vector(vec![1f32]);
        match strategy.world().worker() {
            0 => strategy.gather(each(strategy, |_| one.clone().into())?, 0).map(drop),
            _ => strategy.gather(Leaf::from(one), 0).map(drop),
        }
    });
    assert!(text.contains("gather (axis 0 of float32[*] of each worker)"), "{text}");
}

#[test]
fn merge_functions_with_different_reductions_are_one_error_on_all_workers() {
    let text = one_message(2, 2, |strategy| {
        let run = strategy.run((), |ctx, ()| {
            ctx.merge_call(1f32, |strategy, ones| {
                let op = if strategy.world().worker() == 1 { ReduceOp::Mean } else { ReduceOp::Sum };
                strategy.reduce_to(op, ones, "cpu:0")
            })
        });
        run.map(drop)
    });
    assert!(text.contains("step 1, call 1") && text.contains("reduce_to SUM float32[]"), "{text}");
    assert!(text.contains("replicas 2 and 3"), "{text}");
}

#[test]
fn a_worker_that_cannot_make_the_call_notifies_the_others() {
    watched(|| {
        let texts = crate::multi_worker::on_threads(3, 2, |strategy| {
            let values = match strategy.world().worker() {
                1 => PerReplica::from_values(vec![1f32]),
                _ => PerReplica::from_values(vec![1f32, 2.]),
            };
            let error = strategy.reduce(ReduceOp::Sum, values, None).unwrap_err();
            let ids =
                strategy.distribute_values_from_function(|ctx| Ok(ctx.replica_id_in_sync_group as f32))?;
            assert_eq!(strategy.reduce(ReduceOp::Sum, ids, None)?, 15.);
            Ok(error.to_string())
        });
        let texts = texts.unwrap();
        assert!(texts[1].contains("1 parts for 2 replicas"), "{texts:#?}");
        assert_eq!(texts[0], texts[2]);
        assert!(texts[0].contains("replicas 2 and 3 failed"), "{texts:#?}");
    });
}

#[test]
fn a_worker_that_ends_is_named_by_all_others() {
    watched(|| {
        let texts = crate::multi_worker::on_threads(3, 2, |strategy| {
            let ones = strategy.distribute_values_from_function(|_| Ok(1f32))?;
            assert_eq!(strategy.reduce(ReduceOp::Sum, &ones, None)?, 6.);
            if strategy.world().worker() == 2 {
                return Ok(None);
            }
            let error = strategy.reduce(ReduceOp::Sum, &ones, None).unwrap_err();
            assert!(matches!(error, Error::Collective(_)), "{error}");
            Ok(Some(error.to_string()))
        });
        let texts = texts.unwrap();
        assert_eq!(texts[0], texts[1]);
        assert!(texts[0].as_ref().unwrap().contains("worker 2"), "{texts:#?}");
    });
}

#[test]
fn workers_with_different_learning_rates_get_an_error_before_their_weights_differ() {
    let said = watched(|| {
        crate::multi_worker::on_threads(2, 2, |strategy| {
            let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.)))?;
            let optimizer = Sgd::new(&model.variables, 0.125)?;
            let step = || strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).map(drop);
            step()?;
            if strategy.world().worker() == 1 {
                optimizer.set_learning_rate(0.5)?;
            }
            let error = step().expect_err("the weights would differ");
            assert_eq!(model.variables.get("w")?.to_vec1::<f32>()?, [0.875]);
            optimizer.set_learning_rate(0.25)?;
            step()?;
            assert_eq!(model.variables.get("w")?.to_vec1::<f32>()?, [0.625]);
            Ok(error.root_cause().to_string())
        })
        .unwrap()
    });
    assert!(said[0].contains("different learning rates (0.125, 0.5, by worker)"), "{}", said[0]);
    assert_eq!(said[0], said[1]);
}
