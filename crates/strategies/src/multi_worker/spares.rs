//! Spares: processes of the cluster that wait until a worker is lost, or is too slow.

use super::builder::MultiWorkerMirroredStrategyBuilder;
use distribute_core::strategy::StragglerPolicy;

impl MultiWorkerMirroredStrategyBuilder {
    /// Sets the number of spares; 0 by default. The cluster lists workers and spares alike, so the number of workers
    /// that train is that of the cluster minus this number.
    ///
    /// A process for which there is no place among the workers is a spare. It builds its model, optimizer and datasets,
    /// and waits in `Training::new`. When a worker is lost, the spare replaces it at once, and receives the state of
    /// the others. A process that is started later in the place of the lost one is the next spare. If the training ends
    /// before a spare was needed, `Training::new` on the spare returns
    /// [`Error::UnusedSpare`](distribute_base::Error::UnusedSpare). Ranks of workers change when a spare replaces one.
    /// The first worker of the cluster cannot be replaced by a spare, because the others connect to its address.
    ///
    /// The program must use a `Training`. The state of an optimizer can only be sharded with copies, and tables and
    /// local steps are refused. The default can be set with the environment variable `DISTRIBUTE_SPARES`, which
    /// `distribute launch --spares` sets.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let error = builder.spares(1).build().unwrap_err(); // no worker is left
    /// assert!(error.to_string().contains("list all workers and spares in the cluster"));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "hot_spare")]
    #[doc(alias = "standby")]
    pub fn spares(mut self, spares: usize) -> Self {
        self.spares = Some(spares);
        self
    }

    /// Sets the reaction to a worker that makes the others wait; [`StragglerPolicy::Warn`] by default. With
    /// [`StragglerPolicy::Replace`], a [spare](Self::spares) takes the place of such a worker when a step begins. No
    /// step is lost, and the spare receives the state of the others, so the results are bit-identical. The replaced
    /// worker waits in its `Training`, as a spare. The setting must be the same on all workers.
    ///
    /// With [`StragglerPolicy::Rebalance`], such a worker gets fewer of the
    /// [logical replicas](Self::logical_replicas), in proportion to its speed, and the results are bit-identical as
    /// well. The program must use a `Training`.
    ///
    /// A worker is not replaced if no spare waits, if it is the chief or leads the rendezvous, or if the spare would
    /// probably be slow for the same reason.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// use distribute::strategy::StragglerPolicy;
    /// use std::time::Duration;
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let strategy = builder.stragglers(StragglerPolicy::Replace { after: Duration::from_secs(60) }).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn stragglers(mut self, policy: StragglerPolicy) -> Self {
        self.stragglers = policy;
        self
    }
}
