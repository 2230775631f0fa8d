//! Logical replicas: workers share a number of replicas, possibly unevenly, and train bit-identically to one process
//! that has all of them.

use super::training::{ALL, Micro, Outcome, Parts, Plan, train};
use distribute::cluster::Job;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::optimizer::rules::{Adafactor, Adam, Rule};
use distribute::strategy::{Compression, Links, TableHosts, TableOptions};
use distribute::{
    Checkpoint, Dataset, Error, HostTensor, MirroredStrategy, MultiWorkerMirroredStrategy, PerReplica,
    ReduceOp, Result, Strategy,
};
use distribute_testing::{Port, watched};
use std::time::Duration;

/// Numbers of logical replicas, and of workers.
const WORLDS: [(usize, usize); 9] = [(5, 1), (5, 2), (5, 3), (5, 5), (4, 3), (4, 2), (7, 3), (3, 2), (6, 4)];

fn on_threads<R: Send>(
    replicas: usize,
    workers: usize,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Vec<R> {
    let links = super::links(workers, replicas);
    let builder = MultiWorkerMirroredStrategy::builder().logical_replicas(replicas);
    builder.on_threads(links, workers, worker).unwrap()
}

fn assert_same(found: &Outcome, expected: &Outcome, world: (usize, usize), plan: Plan) {
    assert_eq!(found.0, expected.0, "losses of {world:?}: {plan:?}");
    for (mine, theirs) in found.1.iter().zip(&expected.1) {
        assert!(mine == theirs, "{} of {world:?}: {plan:?}", mine.0);
    }
}

fn assert_trains_like_one_process<R: Rule + Clone + 'static>(plan: Plan, rule: R) {
    for (replicas, workers) in WORLDS {
        let expected = train(&MirroredStrategy::cpus(replicas).unwrap(), plan, &rule).unwrap();
        for outcome in on_threads(replicas, workers, |strategy| train(strategy, plan, &rule)) {
            assert_same(&outcome, &expected, (replicas, workers), plan);
        }
    }
}

// INV-7, INV-27
#[test]
fn uneven_workers_train_the_bits_of_one_process() {
    watched(|| {
        for rows in [1, 13, 31] {
            assert_trains_like_one_process(Plan { parts: ALL, ..Plan::new(rows, 16) }, Adam::default());
        }
    });
}

#[test]
fn micro_batches_and_clipping_on_uneven_workers_give_the_same_bits() {
    watched(|| {
        let table = Parts { table: true, ..Parts::default() };
        for micro in [Micro::Halves, Micro::Uneven] {
            let plan = Plan { parts: table, clip: true, decay: true, micro, ..Plan::new(21, 16) };
            assert_trains_like_one_process(plan, Adam::default());
        }
        assert_trains_like_one_process(
            Plan { parts: ALL, clip: true, ..Plan::new(21, 16) },
            Adafactor::default(),
        );
    });
}

/// Checks gradients of more than 64 KiB, of which each worker sums a range.
#[test]
fn large_gradients_of_uneven_workers_give_the_same_bits() {
    watched(|| {
        assert_trains_like_one_process(
            Plan { width: 3001, parts: ALL, clip: true, ..Plan::new(5, 4) },
            Adam::default(),
        );
    });
}

// INV-40
#[test]
fn a_state_that_uneven_workers_shard_gives_the_same_bits() {
    watched(|| {
        let table = Parts { table: true, ..Parts::default() };
        let plan =
            Plan { parts: table, width: 2500, words: 3300, clip: true, sharded: true, ..Plan::new(11, 8) };
        assert_trains_like_one_process(plan, Adam::default());
    });
}

// INV-86
#[test]
fn tables_on_uneven_workers_give_the_same_bits() {
    watched(|| {
        let plan = Plan { parts: Parts { table: true, ..Parts::default() }, words: 33, ..Plan::new(23, 12) };
        for (replicas, workers) in WORLDS {
            let expected = train(&MirroredStrategy::cpus(replicas).unwrap(), plan, &Adam::lazy()).unwrap();
            let tables = TableOptions { min_bytes: 0, ..TableHosts::Workers.into() };
            let builder = MultiWorkerMirroredStrategy::builder().logical_replicas(replicas).tables(tables);
            let train = |strategy: &Strategy| train(strategy, plan, &Adam::lazy());
            for outcome in builder.on_threads(super::links(workers, replicas), workers, train).unwrap() {
                assert_same(&outcome, &expected, (replicas, workers), plan);
            }
        }
    });
}

// INV-7
#[test]
fn gradients_in_half_precision_have_the_same_bits_on_any_number_of_workers() {
    watched(|| {
        let plan = Plan { parts: ALL, clip: true, ..Plan::new(23, 12) };
        for replicas in [4, 5] {
            let mut outcomes = Vec::new();
            for workers in 1..=replicas {
                let builder = MultiWorkerMirroredStrategy::builder()
                    .logical_replicas(replicas)
                    .compression(Compression::Bf16);
                let links = super::links(workers, replicas);
                let train = |strategy: &Strategy| train(strategy, plan, &Adam::default());
                outcomes.extend(builder.on_threads(links, workers, train).unwrap());
            }
            assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{replicas} replicas");
        }
    });
}

#[test]
fn collectives_combine_the_values_of_all_replicas() {
    watched(|| {
        for (replicas, workers) in WORLDS {
            for len in [3, 40_000] {
                let of =
                    |id: usize| HostTensor::vector((0..len).map(|i| ((id * len + i) as f32).sin()).collect());
                let program = |strategy: &Strategy| {
                    let all = strategy.run((), |ctx, ()| {
                        let mine = of(ctx.replica_id_in_sync_group());
                        let sum = ctx.all_reduce(ReduceOp::Sum, mine.clone())?;
                        let mean = ctx.all_reduce(ReduceOp::Mean, mine.clone())?;
                        Ok((sum, mean, ctx.all_gather(mine, 0)?))
                    })?;
                    let values = strategy
                        .distribute_values_from_function(|ctx| Ok(of(ctx.replica_id_in_sync_group)))?;
                    let reduced = strategy.reduce(ReduceOp::Sum, values.clone(), None)?;
                    let over_axis = strategy.reduce(ReduceOp::Mean, values.clone(), 0)?;
                    let gathered = strategy.gather(values, 0)?;
                    Ok((all.into_values().remove(0), reduced, over_axis, gathered))
                };
                let expected = program(&MirroredStrategy::cpus(replicas).unwrap()).unwrap();
                for found in on_threads(replicas, workers, program) {
                    assert!(
                        format!("{found:?}") == format!("{expected:?}"),
                        "{workers} workers of {replicas}"
                    );
                }
            }
        }
    });
}

/// Checks that a value that is not distributed counts once per worker, even on a worker with a single replica.
#[test]
fn plain_values_count_once_per_worker() {
    watched(|| {
        let gathered = on_threads(5, 3, |strategy| {
            let plain = HostTensor::vector(vec![strategy.world().worker() as f32]);
            let sum = strategy.reduce(ReduceOp::Sum, plain.clone(), None)?.to_vec::<f32>()?;
            Ok((strategy.gather(plain, 0)?.to_vec::<f32>()?, sum))
        });
        assert!(gathered.iter().all(|all| *all == (vec![0., 1., 2.], vec![3.])), "{gathered:?}");
    });
}

#[test]
fn batches_and_positions_are_those_of_one_process() {
    watched(|| {
        let batches = |strategy: &Strategy, function: bool| {
            let ids = Dataset::range(23).shuffle(23, 5);
            if function {
                strategy.distribute_datasets_from_function(move |context| {
                    Ok(ids.clone().batch(context.get_per_replica_batch_size(10)?))
                })
            } else {
                strategy.distribute_dataset(ids.batch(7))
            }
        };
        let ids = |steps: Vec<PerReplica<HostTensor>>| -> Vec<Vec<Vec<i64>>> {
            let of = |step: PerReplica<HostTensor>| step.iter().map(|ids| ids.to_vec().unwrap()).collect();
            steps.into_iter().map(of).collect()
        };
        for function in [false, true] {
            let one = MirroredStrategy::cpus(5).unwrap();
            let all = batches(&one, function).unwrap();
            let expected = ids(all.iter().collect::<Result<_>>().unwrap());
            for (workers, next) in [(1, 2), (2, 3), (3, 5), (5, 1)] {
                // A pass that is begun by one number of workers, and continued by another.
                let begun = on_threads(5, workers, |strategy| {
                    let batches = batches(strategy, function)?;
                    let first = batches.iter().take(2).collect::<Result<Vec<_>>>()?;
                    Ok((strategy.world().local_replicas(), ids(first), batches.position()))
                });
                for (own, first, _) in &begun {
                    let expected: Vec<_> =
                        expected[..2].iter().map(|step| step[own.clone()].to_vec()).collect();
                    assert_eq!(*first, expected, "{workers} workers, by a function: {function}");
                }
                let position = begun[0].2.clone();
                assert!(begun.iter().all(|(.., other)| *other == position));
                let resumed = on_threads(5, next, |strategy| {
                    let batches = batches(strategy, function)?;
                    batches.resume(position.clone())?;
                    let rest = batches.iter().collect::<Result<Vec<_>>>()?;
                    Ok((strategy.world().local_replicas(), ids(rest)))
                });
                for (own, rest) in resumed {
                    let expected: Vec<_> =
                        expected[2..].iter().map(|step| step[own.clone()].to_vec()).collect();
                    assert_eq!(rest, expected, "{next} workers, by a function: {function}");
                }
            }
        }
    });
}

#[test]
fn a_checkpoint_of_one_number_of_workers_is_restored_by_another() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let variable = |strategy: &Strategy| {
            strategy.scope(|| {
                distribute::Variable::builder("own", 0f32)
                    .synchronization(distribute::variables::VariableSynchronization::OnRead)
                    .aggregation(distribute::variables::VariableAggregation::Sum)
                    .create()
            })
        };
        on_threads(5, 3, |strategy| {
            let own = variable(strategy)?;
            strategy
                .run((), |ctx, ()| own.assign_add(1. + ctx.replica_id_in_sync_group() as f32).map(drop))?;
            Checkpoint::new().part("own", &own).save(&path).map(drop)
        });
        for workers in [1, 2, 5] {
            on_threads(5, workers, |strategy| {
                let own = variable(strategy)?;
                Checkpoint::new().part("own", &own).restore(&path)?;
                let expected: Vec<_> = strategy.world().local_replicas().map(|id| 1. + id as f32).collect();
                assert_eq!(own.copies::<f32>()?, expected);
                assert_eq!(own.read::<f32>()?, 15.);
                Ok(())
            });
        }
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let builder = || MultiWorkerMirroredStrategy::builder().logical_replicas(2);
    let text = |result: Result<Vec<()>>| result.unwrap_err().to_string();
    let too_few = text(builder().on_threads(Links::Memory, 3, |_| Ok(())));
    assert!(too_few.contains("3 workers cannot share 2 logical replicas"), "{too_few}");
    let both = text(builder().replicas(2).on_threads(Links::Memory, 2, |_| Ok(())));
    assert!(both.contains("leave out replicas and devices"), "{both}");
    let feedback = builder().compression(Compression::EightBits);
    let feedback = text(feedback.on_threads(Links::Memory, 2, |_| Ok(())));
    assert!(feedback.contains("without error feedback"), "{feedback}");
    let devices = builder().devices(["cpu:0"]).build().unwrap_err();
    assert!(matches!(devices, Error::InvalidArgument { .. }), "{devices}");
}

/// Checks that the error of a replica names the replica's worker.
#[test]
fn a_failed_replica_is_found_on_its_worker() {
    watched(|| {
        let builder = MultiWorkerMirroredStrategy::builder().logical_replicas(5);
        let failed = builder.on_threads(Links::Memory, 3, |strategy| {
            strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
                2 => Err(Error::other("no luck")),
                _ => ctx.all_reduce(ReduceOp::Sum, 1f32),
            })
        });
        let error = failed.unwrap_err().to_string();
        assert!(error.starts_with("worker 1 failed") && error.contains("no luck"), "{error}");
    });
}

/// Builds the strategy of the first of two workers, with three logical replicas. The second worker is missing, and the
/// first begins alone.
fn alone_of_two() -> Strategy {
    let port = Port::reserve();
    let cluster = format!(r#"{{"worker": ["127.0.0.1:{}", "127.0.0.1:0"]}}"#, port.number());
    let resolver = SimpleClusterResolver::new(cluster.parse().unwrap()).with_task(Job::Worker.task(0));
    let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).logical_replicas(3);
    let strategy = builder.min_workers(1).shrink_after(Duration::from_secs(1)).build().unwrap();
    assert_eq!(strategy.world().to_string(), "3 logical replicas");
    strategy
}

// INV-88
#[test]
fn running_statistics_are_refused_if_workers_may_be_lost() {
    watched(|| {
        let strategy = alone_of_two();
        let refused =
            strategy.replicate(|vb| distribute::nn::batch_norm(4, 1e-5, vb.pp("norm"))).unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("norm.running") && refused.contains("leave out logical_replicas"),
            "{refused}"
        );
    });
}

#[test]
fn a_dataset_that_a_second_worker_could_not_share_is_refused_before_one_joins() {
    watched(|| {
        let strategy = alone_of_two();
        let unordered = || Dataset::range(6).map_unordered(2, |id| id).batch(3);
        let dataset = strategy.distribute_dataset(unordered());
        let function = strategy.distribute_datasets_from_function(move |_| Ok(unordered()));
        for refused in [dataset, function] {
            let refused = refused.map(drop).unwrap_err();
            assert!(matches!(&refused, Error::Data(distribute::data::Error::Unordered { .. })), "{refused}");
        }
    });
}
