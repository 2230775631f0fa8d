//! Requests rows of all variables before the step that looks them up, so that they arrive while this process completes
//! the previous step, takes the next batch, and waits for other workers.

use super::prefetched::PrefetchRead;
use super::{RemoteVariable, Session};
use distribute_base::internal::lock;
use distribute_ps_tables::PrefetchUsage;
use std::sync::{Arc, Weak};

impl Session {
    /// Requests the rows of `ids` after the next push of all workers, so that the next run finds them. Does nothing
    /// unless workers make their changes in lock step, because otherwise other processes could change the rows in
    /// between.
    pub fn prefetch_rows(&self, variable: &Arc<RemoteVariable>, ids: &[i64]) {
        if self.lock_step().is_some() && variable.prefetched.want(ids, &self.prefetch_usage) {
            let mut all = lock(&self.prefetching);
            all.retain(|variable| variable.strong_count() > 0);
            all.push(Arc::downgrade(variable));
        }
    }

    /// Discards all prefetched rows, because tables are about to change.
    pub(crate) fn discard_prefetched(&self) {
        self.prefetching().iter().for_each(|variable| variable.prefetched.discard());
    }

    // INV-102
    /// Requests the rows of the next step, because a change of the tables has ended on all workers. Does not wait for
    /// the responses. If rows cannot be requested, the next step requests them.
    pub(crate) fn request_rows(&self, operation: &'static str) {
        let (mut of, mut reads) = (Vec::new(), Vec::new());
        for variable in self.prefetching() {
            let request = variable.prefetch_request();
            if request.ids.is_empty() {
                continue;
            }
            match variable.detached_read(operation, &request.ids) {
                Ok(read) => {
                    reads.push(read);
                    of.push((variable, request.change));
                }
                Err(error) => tracing::debug!("rows are not prefetched: {error}"),
            }
        }
        if reads.is_empty() {
            return;
        }
        let read = Arc::new(PrefetchRead::start(&self.channels, reads));
        for (index, (variable, change)) in of.into_iter().enumerate() {
            variable.prefetched.set_read(change, index, &read);
        }
    }

    /// Forgets the ids that were announced, because a run has ended.
    pub(crate) fn end_prefetching(&self) {
        self.prefetching().iter().for_each(|variable| variable.prefetched.end_run());
    }

    pub(crate) fn prefetch_usage(&self) -> PrefetchUsage {
        *lock(&self.prefetch_usage)
    }

    fn prefetching(&self) -> Vec<Arc<RemoteVariable>> {
        lock(&self.prefetching).iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CreationPolicy, ParameterServers, PlacementRequest, RowCacheOptions, Sharded,
        sharded::{Initial, RowRead, UniqueRows},
    };
    use distribute_cluster::{Deadline, World};
    use distribute_ps_tables::{
        Channel, ChannelError, LocalChannel, PartitionStrategy, Request, Response, Started, TablePolicy,
        Tables, WaitForResponse,
    };
    use distribute_tensor::{DType, HostTensor, IndexedSlices, Write};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// A server whose next responses to reads of rows are lost, or that is gone.
    #[derive(Debug)]
    struct Lossy(LocalChannel, Arc<Faults>);

    #[derive(Debug, Default)]
    struct Faults {
        /// The number of responses that will be lost.
        lost: AtomicUsize,
        /// The wait in which reads of rows time out.
        gone: Mutex<Option<Gone>>,
        /// The timeouts of the reads that timed out.
        timeouts: Mutex<Vec<Duration>>,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Gone {
        Sending,
        Receiving,
    }

    impl Faults {
        /// Waits until the deadline of a request, and returns its error.
        fn time_out(&self, deadline: Deadline) -> ChannelError {
            let (_sender, never) = std::sync::mpsc::channel::<()>();
            assert!(never.recv_timeout(deadline.remaining()).is_err());
            let timeout = deadline.timeout();
            lock(&self.timeouts).push(timeout);
            let (server, request, reason) = ("ps".into(), "read rows".into(), "gone".into());
            ChannelError::TimedOut { server, request, timeout, reason }
        }
    }

    struct Silent(Arc<Faults>, Deadline);

    impl WaitForResponse for Silent {
        fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
            Err(self.0.time_out(self.1))
        }
    }

    struct Lost;

    impl WaitForResponse for Lost {
        fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
            let (server, request) = ("ps".to_owned(), "read rows".to_owned());
            Err(ChannelError::Unreachable { server, request, reason: "lost".into() })
        }
    }

    impl Channel for Lossy {
        fn server(&self) -> &str {
            self.0.server()
        }

        fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
            let lose = |left: usize| left.checked_sub(1);
            if !matches!(request, Request::ReadRows { .. }) {
                return self.0.start(request, timeout);
            }
            let (gone, deadline) = (*lock(&self.1.gone), Deadline::after(timeout));
            match gone {
                Some(Gone::Sending) => return Err(self.1.time_out(deadline)),
                Some(Gone::Receiving) => return Ok(Started::new(Silent(self.1.clone(), deadline))),
                None => {}
            }
            if self.1.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose).is_ok() {
                return Ok(Started::new(Lost));
            }
            self.0.start(request, timeout)
        }
    }

    /// Returns two servers with a table of six rows, and their faults.
    fn table(
        cache: Option<RowCacheOptions>,
        timeout: Duration,
    ) -> (ParameterServers, Arc<RemoteVariable>, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let channel = |server| {
            let channel = LocalChannel::new(server, Arc::new(Tables::new()));
            Arc::new(Lossy(channel, faults.clone())) as Arc<dyn Channel>
        };
        let policy = TablePolicy { min_bytes: 0, partition: PartitionStrategy::Mod, all_weights: false };
        let channels = vec![channel(0), channel(1)];
        let servers =
            ParameterServers::of_tables(channels, (timeout, timeout), policy, World::default()).unwrap();
        let servers = servers.with_row_cache(cache);
        assert_eq!(servers.creation_policy(), CreationPolicy::CreateMissing);
        let variable = create(&servers, "t");
        (servers, variable, faults)
    }

    /// Returns a new table of six rows.
    fn create(servers: &ParameterServers, name: &str) -> Arc<RemoteVariable> {
        let initial = Initial::Value(HostTensor::new((0..12).map(|x| x as f32).collect(), [6, 2]).unwrap());
        let to = servers.location(6, Some(48), PlacementRequest::Anywhere);
        let tables = Sharded::create(servers, (name, &[6, 2], DType::F32), &initial, to, None).unwrap();
        let cache = servers.row_cache(&tables, false);
        Arc::new(RemoteVariable::new(tables, None).with_row_cache(cache))
    }

    fn look_up(variable: &RemoteVariable, ids: &[i64]) -> Vec<f32> {
        let rows = variable.row_read("look up", ids, true).unwrap().send("look up").unwrap();
        let rows = rows.in_order().unwrap().to_vec::<f32>().unwrap();
        rows.chunks(2).map(|row| row[0]).collect()
    }

    /// Adds `x` to row 1.
    fn add(variable: &RemoteVariable, x: f32) {
        let (values, row) = (HostTensor::new(vec![x; 2], [1, 2]).unwrap(), HostTensor::vector(vec![1i64]));
        let rows = IndexedSlices::new(values, row, None).unwrap();
        variable.numbered().unwrap().write_rows(Write::Add, &rows).unwrap();
    }

    /// Adds 100 to row 1, as a step of all workers.
    fn step(servers: &ParameterServers, variable: &RemoteVariable) {
        let agree = |pushed: distribute_base::Result<Vec<u8>>| {
            add(variable, 100.);
            Ok(vec![pushed?])
        };
        servers.session().push_in_lock_step("step", &[], Ok(Vec::new()), agree).unwrap();
    }

    // INV-102
    #[test]
    fn prefetched_rows_have_the_changes_of_the_step_and_are_read_once() {
        let cached = |staleness| Some(RowCacheOptions { bytes: 1 << 10, staleness });
        for cache in [None, cached(0), cached(9)] {
            let (servers, variable, faults) = table(cache, Duration::from_secs(60));
            let session = servers.session();
            let read = || servers.usage().unwrap().iter().map(|server| server.rows_read).sum::<u64>();
            assert_eq!(look_up(&variable, &[5, 1]), [10., 2.]);
            session.prefetch_rows(&variable, &[1, 3, 1]);
            session.prefetch_rows(&variable, &[0]);
            step(&servers, &variable);
            // A row that may be read from the cache is not requested.
            let is_stale = cache.is_some_and(|cache| cache.staleness > 0);
            assert_eq!(read(), if is_stale { 4 } else { 5 });
            // No request is sent for rows that were prefetched.
            let one = if is_stale { 2. } else { 102. };
            assert_eq!(look_up(&variable, &[3, 1, 3]), [6., one, 6.]);
            assert_eq!(read(), if is_stale { 4 } else { 5 });
            assert_eq!(look_up(&variable, &[4, 0, 3]), [8., 0., 6.]);
            assert_eq!(read(), if is_stale { 5 } else { 6 });

            // Lost responses are requested again, from both servers.
            step(&servers, &variable);
            faults.lost.store(1, Ordering::Relaxed);
            session.prefetch_rows(&variable, &[2, 1]);
            step(&servers, &variable);
            assert_eq!(faults.lost.load(Ordering::Relaxed), 0);
            assert_eq!(look_up(&variable, &[2]), [4.]);
            let one = if is_stale { 2. } else { 302. };
            assert_eq!(look_up(&variable, &[1]), [one]);
            // A write discards rows, and the end of a run discards ids.
            session.prefetch_rows(&variable, &[1]);
            step(&servers, &variable);
            drop(session.begin_step(false).unwrap());
            add(&variable, 1.);
            variable.invalidate_rows();
            assert_eq!(look_up(&variable, &[1]), [403.]);
            let before = read();
            step(&servers, &variable);
            assert_eq!(read(), before);
            let usage = servers.prefetch_usage();
            assert!(usage.prefetched > 0);
            drop(variable);
            assert_eq!(servers.prefetch_usage(), usage);
        }
    }

    /// A lookup copies its own rows, and shares those of the prefetch if no row is late.
    #[test]
    fn a_late_row_does_not_copy_all_prefetched_rows() {
        let (servers, variable, _) = table(None, Duration::from_secs(60));
        let read = |ids: &[i64]| {
            let rows = variable.row_read("look up", ids, true).unwrap().send("look up").unwrap();
            (rows.rows.dims()[0], rows.in_order().unwrap().to_vec::<f32>().unwrap())
        };
        servers.session().prefetch_rows(&variable, &[5, 4, 3, 2]);
        step(&servers, &variable);
        assert_eq!(read(&[2, 4]), (4, vec![4., 5., 8., 9.]));
        assert_eq!(read(&[2, 1, 4, 2, 0]), (4, vec![4., 5., 102., 103., 8., 9., 4., 5., 0., 1.]));
    }

    /// Sending, waiting, rows that are late and a repetition together take one timeout, and at most an eighth more.
    // INV-3
    #[test]
    fn a_server_that_is_gone_costs_a_prefetch_one_timeout() {
        let timeout = Duration::from_millis(400);
        for gone in [Gone::Sending, Gone::Receiving] {
            for ids in [&[1][..], &[1, 3]] {
                let (servers, variable, faults) = table(None, timeout);
                servers.session().prefetch_rows(&variable, &[1]);
                *lock(&faults.gone) = Some(gone);
                step(&servers, &variable);
                let lost = variable.row_read("look up", ids, true).unwrap().send("look up").unwrap_err();
                assert!(matches!(lost.root_cause(), distribute_base::Error::Server { .. }), "{lost}");
                // All of them were waited for, one after another.
                let all: Duration = lock(&faults.timeouts).iter().sum();
                assert!(all < timeout.mul_f64(1.6), "{gone:?}, {ids:?}: {:?}", faults.timeouts);
            }
        }
    }

    // INV-3
    #[test]
    fn a_table_without_prefetched_rows_keeps_its_timeout() {
        let timeout = Duration::from_millis(400);
        let (servers, variable, faults) = table(None, timeout);
        let other = create(&servers, "u");
        let together = || {
            let mine = variable.row_read("look up", &[1, 3], true).unwrap();
            let others = other.row_read("look up", &[1, 5], true).unwrap();
            RowRead::together("look up", vec![Some(mine), None, Some(others)])
        };
        let first = |rows: UniqueRows| rows.in_order().unwrap().to_vec::<f32>().unwrap();
        servers.session().prefetch_rows(&variable, &[1]);
        step(&servers, &variable);
        let all: Vec<_> = together().unwrap().into_iter().map(|rows| rows.map(first)).collect();
        assert_eq!(all, [Some(vec![102., 103., 6., 7.]), None, Some(vec![2., 3., 10., 11.])]);
        // Sending the prefetch takes its timeout, so a late row has an eighth of it.
        servers.session().prefetch_rows(&variable, &[1]);
        *lock(&faults.gone) = Some(Gone::Sending);
        step(&servers, &variable);
        together().unwrap_err();
        let timeouts = lock(&faults.timeouts);
        assert!(timeouts.iter().any(|late| *late < timeout / 4), "{timeouts:?}");
        assert!(timeouts.last().is_some_and(|last| *last > timeout / 2), "{timeouts:?}");
    }
}
