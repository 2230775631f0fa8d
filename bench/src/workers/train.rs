//! Training in a worker's process, with one replica per worker.

use super::place::{Communication, Place};
use super::saving::Saving;
use super::sent::sent;
use crate::figure::Effort;
use crate::sample::Sample;
use crate::training::{steps_per_second, timed, warmed_up};
use crate::work::{Model, RATE, Training};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::net::Credentials;
use distribute::strategy::{CommunicationImplementation, CommunicationOptions};
use distribute::{MultiWorkerMirroredStrategy, Result};
use std::hint::black_box;

/// Measures the steps per second that all workers together make on a global batch. Without communication, measures a
/// single worker on its part of the batch. Over sockets, the sample also contains the number of bytes that this host
/// has sent per step.
pub fn sample<M: Model>(
    place: &Place,
    communication: Communication,
    saving: Saving,
    effort: Effort,
) -> Result<Sample> {
    let builder = saving.apply(MultiWorkerMirroredStrategy::builder());
    let builder = match communication {
        Communication::Auto => builder,
        Communication::Sockets => {
            let implementation = CommunicationImplementation::Ring;
            let options = CommunicationOptions { implementation, ..Default::default() };
            // The peers encrypt nothing, and no other machine is in the network.
            let credentials = Credentials::new().allow_plain_text_on_the_network();
            builder.communication_options(options).credentials(credentials)
        }
        Communication::Nothing => {
            let mut training = Training::<M>::with(1, RATE, M::BATCH / place.world.workers())?;
            return timed(effort, || training.step().map(|loss| drop(black_box(loss))));
        }
    };
    let cluster = ClusterSpec::from_lists([(Job::Worker, place.addresses.clone())])?;
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(place.world.worker()));
    let strategy = builder.cluster_resolver(resolver).build()?;
    let mut training = Training::<M>::by(strategy, RATE, M::BATCH)?;
    let agree = training.agreement();
    let mut step = || training.step().map(|loss| drop(black_box(loss)));
    // Complete rounds of local steps, of which only the last step sends much.
    let calls = warmed_up(effort, agree, &mut step)?.next_multiple_of(saving.period());
    if communication == Communication::Auto {
        return steps_per_second(calls, step).map(Sample::from);
    }
    let before = sent()?;
    let value = steps_per_second(calls, step)?;
    let sent = sent()?.saturating_sub(before) as f64 / calls as f64;
    Ok(Sample { sent: Some(sent), ..Sample::from(value) })
}
