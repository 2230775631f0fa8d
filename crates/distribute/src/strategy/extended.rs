//! What an author of a strategy implements.

use super::{CommunicationOptions, CrossDeviceOps, DeviceName};
use crate::{ReplicaContext, Result, Strategy};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_collective::threads::Team;
use std::fmt::Debug;
use std::time::Duration;

/// The part of a strategy that its author writes. Users call [`Strategy`], which does everything else with it.
///
/// Only [`kind`](Self::kind) and [`worker_devices`](Self::worker_devices) have to be given: one replica for each
/// device, on a thread each, in step.
#[doc(alias = "tf.distribute.StrategyExtended")]
pub trait StrategyExtended: Debug + Send + Sync + 'static {
    /// The name of the strategy, for messages: `MirroredStrategy`.
    fn kind(&self) -> &'static str;

    /// The devices of this process's replicas, one for each.
    #[doc(alias = "tf.distribute.StrategyExtended.worker_devices")]
    fn worker_devices(&self) -> &[DeviceName];

    /// How many replicas this process has.
    fn local_replicas(&self) -> usize {
        self.worker_devices().len()
    }

    /// How many replicas are in sync, those of all processes together.
    fn num_replicas_in_sync(&self) -> usize {
        self.local_replicas()
    }

    /// The global id of this process's first replica.
    fn first_replica_id(&self) -> usize {
        0
    }

    /// How the replicas' collectives communicate, where a call doesn't say otherwise.
    fn communication_options(&self) -> CommunicationOptions {
        CommunicationOptions::default()
    }

    /// How long a replica waits for the others in one call.
    fn timeout(&self) -> Duration {
        self.communication_options().timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// The algorithm that combines values across devices. None: collectives are shared by the replicas' threads, and
    /// everything else is reduced to one device.
    fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
        None
    }

    /// Whether step functions need shapes that never change. False for all strategies here.
    #[doc(alias = "tf.distribute.StrategyExtended.experimental_require_static_shapes")]
    fn require_static_shapes(&self) -> bool {
        false
    }

    /// Calls `body` once for each local replica, all at once, with its context, as step number `step` of `strategy`.
    /// `body` tells whether it succeeded. Returns when all have returned.
    ///
    /// # Errors
    /// If the system refuses a thread.
    #[doc(alias = "tf.distribute.StrategyExtended.call_for_each_replica")]
    fn call_for_each_replica(
        &self,
        strategy: &Strategy,
        step: u64,
        body: &(dyn Fn(ReplicaContext) -> bool + Sync),
    ) -> Result<()> {
        let replicas = self.local_replicas();
        if replicas == 1 {
            body(ReplicaContext::new(strategy.clone(), 0, step, None));
            return Ok(());
        }
        Team::borrow(replicas, |team| {
            team.run(step, self.timeout(), &|member| {
                body(ReplicaContext::new(strategy.clone(), member.rank(), step, Some(member)))
            });
        })
        .map_err(|source| crate::Error::Io {
            operation: format!("starting {replicas} replica threads"),
            source,
        })
    }
}
