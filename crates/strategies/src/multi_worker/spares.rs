//! Spares: processes of the cluster that wait until a worker is lost.

use super::builder::MultiWorkerMirroredStrategyBuilder;

impl MultiWorkerMirroredStrategyBuilder {
    /// Sets the number of spares; 0 by default. The cluster lists workers and spares alike, so the number of workers
    /// that train is that of the cluster minus this number.
    ///
    /// A process for which there is no place among the workers is a spare. It builds its model, optimizer and datasets,
    /// and waits in `Training::new`. When a worker is lost, the spare replaces it at once, and receives the state of
    /// the others. A process that is started later in the place of the lost one is the next spare. If the training ends
    /// before a spare was needed, `Training::new` on the spare returns
    /// [`Error::UnusedSpare`](distribute_base::Error::UnusedSpare). Ranks of workers change when a spare replaces one.
    /// A spare can replace any worker, also the first one, unless [`min_workers`](Self::min_workers) is set: then the
    /// others need the first one, because they connect to its address.
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
}
