//! Training in a worker's process, one replica in each.

use super::super::figure::Effort;
use super::super::training::timed_as;
use super::super::work::{Model, RATE, Training};
use super::place::Place;
use distribute::{ClusterSpec, Job, MultiWorkerMirroredStrategy, Result, SimpleClusterResolver};
use std::hint::black_box;

/// Steps per second of all workers together on a global batch.
pub fn steps_per_second<M: Model>(place: &Place, effort: Effort) -> Result<f64> {
    let cluster = ClusterSpec::from_lists([(Job::Worker, place.addresses())])?;
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(place.world.worker()));
    let strategy = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).build()?;
    let mut training = Training::<M>::by(strategy.into(), RATE, M::BATCH)?;
    let agree = training.agreement();
    let sample = timed_as(effort, agree, || {
        black_box(training.step()?);
        Ok(())
    })?;
    Ok(sample.value)
}
