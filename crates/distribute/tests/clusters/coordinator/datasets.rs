//! Datasets of workers that are killed.

use crate::coordinator::support::strategy;
use crate::support::cluster::{Cluster, is_task};
use distribute::remote::{Batches, WorkerContext};
use distribute::{ClusterCoordinator, Dataset, HostTensor, Result};
use distribute_testing::watched;

#[distribute::remote]
fn count_up(worker: &WorkerContext, n: i64) -> Result<Dataset<HostTensor>> {
    let context = worker.input_context();
    Ok(Dataset::range(n).shard(context.num_input_pipelines, context.input_pipeline_id).batch(1))
}

#[distribute::remote]
fn draw(worker: &WorkerContext, data: &Batches<HostTensor>) -> Result<(usize, Option<i64>)> {
    let Some(batch) = data.next_or_end()? else { return Ok((worker.index(), None)) };
    let numbers = batch.get(0).map(HostTensor::to_vec::<i64>).transpose()?;
    Ok((worker.index(), numbers.and_then(|numbers| numbers.first().copied())))
}

// INV-61
#[test]
fn t6_a_restarted_worker_resumes_its_dataset() {
    if is_task() {
        return;
    }
    watched(|| {
        let mut cluster =
            Cluster::start("coordinator::datasets::t6_a_restarted_worker_resumes_its_dataset", 2, 1);
        let strategy = strategy(cluster.spec());
        let coordinator = ClusterCoordinator::new(&strategy).unwrap();
        let data = coordinator.create_per_worker_dataset(count_up, (60,)).unwrap();
        let mut drawn = Vec::<i64>::new();
        for round in 0.. {
            let draws: Vec<_> = (0..8).map(|_| coordinator.schedule(draw, (&data,)).unwrap()).collect();
            if round < 2 {
                cluster.restart(round);
            }
            let numbers: Vec<_> =
                coordinator.fetch(draws).unwrap().into_iter().map(|(_, drawn)| drawn).collect();
            drawn.extend(numbers.iter().flatten());
            let is_over = |worker: usize| {
                let status = coordinator.status();
                status.workers[worker].disconnect_reason.is_none()
            };
            // The passes of both workers have ended, and no worker is disconnected.
            if numbers.iter().all(Option::is_none) && (0..2).all(is_over) && drawn.len() == 60 {
                break;
            }
            assert!(round < 2000, "{} of 60 were drawn", drawn.len());
        }
        drawn.sort_unstable();
        assert_eq!(drawn, (0..60).collect::<Vec<i64>>());
        drop((coordinator, data));
        strategy.end_servers().unwrap();
        cluster.wait_for_exit();
    });
}
