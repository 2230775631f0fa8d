//! Reports on a strategy and a coordinator, for the monitor.

use super::waits::{self, WaitingCall};
use distribute_cluster::{RecordedCall, Stopwatch};
use distribute_collective::group::Group;
use distribute_coordinator::{Status, WorkerStatus};
use distribute_core::Strategy;
use distribute_core::internal::WeakStrategy;
use distribute_core::strategy::WorkerTimes;
use distribute_monitor::{
    Activity, Coordinator, HotRows, ParameterServer, Prefetch, Progress, Replacements, Replica, Report,
    RowCache, Shard, Source, StepTimes, Straggler, Worker, World,
};
use distribute_parameter_server::ClusterCoordinator;
use distribute_parameter_server::internal::Scheduler;
use distribute_ps_client::{HotRowUsage, ParameterServers, RowCacheUsage};
use distribute_ps_tables::{Copies, PrefetchUsage, RowReads};
use distribute_trace::internal::Watch;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

/// The time within which a server must report its usage. If a server is slower, its report is computed from the
/// placement.
const USAGE_TIMEOUT: Duration = Duration::from_millis(300);

/// The maximum number of shards of a server in a report.
const MAX_SHARDS: usize = 20;

/// The watched job. It does not keep the strategy or the coordinator alive.
pub(super) struct Job {
    strategy: WeakStrategy,
    coordinator: Option<Weak<Scheduler>>,
    watch: Watch,
    /// The coordinator's missing workers by name, with the time since each was first seen to be missing.
    away: BTreeMap<String, Stopwatch>,
    /// The coordinator's status in the last report that found newly ended closures; before that, the status in the
    /// first report.
    status: Option<Status>,
    /// The average staleness of values, as measured by the last report that found newly ended closures; `None` before
    /// closures have ended.
    staleness: Option<f64>,
    /// The last report. After the strategy has been dropped, it is repeated without current calls and waits.
    last: Report,
}

impl Job {
    pub(super) fn new(strategy: &Strategy, coordinator: Option<&ClusterCoordinator>) -> Self {
        Self {
            strategy: strategy.downgrade(),
            coordinator: coordinator.map(ClusterCoordinator::downgrade),
            watch: Watch::begin(),
            away: BTreeMap::new(),
            status: None,
            staleness: None,
            last: Report::default(),
        }
    }

    fn replicas(&self, strategy: &Strategy) -> Vec<Replica> {
        let devices = strategy.devices();
        let of = |(replica, device): (usize, _)| {
            let doing = self.watch.replica(strategy.number(), replica).unwrap_or_default();
            let now = doing.now.map(|(what, call, time)| Activity {
                what: what.into(),
                call,
                seconds: time.as_secs_f64(),
            });
            let spent =
                doing.spent.into_iter().map(|(what, time)| (what.into(), time.as_secs_f64())).collect();
            Replica { replica, device, now, spent }
        };
        strategy.world().local_replicas().zip(devices.iter().map(ToString::to_string)).map(of).collect()
    }

    fn coordinator(&mut self) -> Option<Coordinator> {
        let scheduler = self.coordinator.as_ref()?.upgrade()?;
        let status = scheduler.status();
        self.away.retain(|name, _| {
            status.workers.iter().any(|it| it.name == *name && it.disconnect_reason.is_some())
        });
        for worker in status.workers.iter().filter(|worker| worker.disconnect_reason.is_some()) {
            self.away.entry(worker.name.clone()).or_insert_with(Stopwatch::start);
        }
        let worker = |worker: &WorkerStatus| self.worker(worker);
        let workers = status.workers.iter().map(worker).collect();
        let staleness = self.status.as_ref().and_then(|earlier| status.staleness_since(earlier));
        let (queued, ended) = (status.queued as u64, status.ended);
        // Update only if closures have ended since the last look: staleness is measured over that time.
        if staleness.is_some() || self.status.is_none() {
            self.status = Some(status);
            self.staleness = staleness;
        }
        Some(Coordinator { queued, ended, ended_per_second: 0., staleness: self.staleness, workers })
    }

    fn worker(&self, worker: &WorkerStatus) -> Worker {
        let running = worker.running.as_ref();
        let does = running.map(|(function, task, _)| format!("{} ({task})", function.name));
        let makes = || worker.missing.first().map(|first| format!("has to create {first}"));
        let since = || self.away.get(&worker.name).map(Stopwatch::seconds);
        Worker {
            name: worker.name.clone(),
            address: None,
            away: worker.disconnect_reason.clone(),
            does: does.or_else(makes).or_else(|| Some("nothing to do".into())),
            seconds: running.map(|(.., time)| time.as_secs_f64()).or_else(since),
            closures: Some(worker.closures as u64),
            losses: Some(worker.losses),
            ..Worker::default()
        }
    }
}

impl Source for Job {
    fn report(&mut self) -> Report {
        let Some(strategy) = self.strategy.upgrade() else {
            // The training is over, but its results can still be read.
            self.last.replicas.iter_mut().for_each(|replica| replica.now = None);
            self.last.waits.clear();
            return self.last.clone();
        };
        let group = strategy.extended().group();
        let awaited = group.and_then(Group::awaited);
        let replicas = self.replicas(&strategy);
        let coordinator = self.coordinator();
        let servers = strategy.extended().parameter_servers();
        let row_cache = servers.and_then(|servers| row_cache(servers));
        let prefetch = servers.and_then(|servers| prefetch(servers));
        let hot_rows = servers.and_then(|servers| hot_rows(servers));
        let servers = servers.map(|servers| server_reports(servers));
        let step_stats = strategy.step_stats();
        let (examples, loss) = (step_stats.examples(), step_stats.loss());
        let world = world(&strategy, group, awaited.as_ref());
        let of_group = awaited.as_ref().map(|(call, workers)| WaitingCall {
            me: world.worker,
            workers,
            call: call.call.to_string(),
            seconds: call.began.as_secs_f64(),
        });
        let report = Report {
            strategy: strategy.extended().kind().into(),
            progress: Progress {
                steps: strategy.steps().max(step_stats.steps()),
                examples,
                loss: loss.filter(|loss| loss.is_finite()),
                diverged: loss.is_some_and(|loss| !loss.is_finite()),
                ..Progress::default()
            },
            straggler: straggler(&strategy, &world),
            replacements: replacements(&strategy),
            waits: waits::all(&replicas, of_group.as_ref(), coordinator.as_ref()),
            world,
            replicas,
            coordinator,
            servers: servers.unwrap_or_default(),
            row_cache,
            prefetch,
            hot_rows,
            ..Report::default()
        };
        self.last = report.clone();
        report
    }
}

/// Returns reports on all workers of the world. `awaited` contains the current call of this worker, and the workers
/// that it waits for.
pub(super) fn world(
    strategy: &Strategy,
    group: Option<&Group>,
    awaited: Option<&(RecordedCall, Vec<usize>)>,
) -> World {
    let world = group.map_or_else(|| strategy.world(), Group::world);
    let times = strategy.worker_times();
    let worker = |worker: usize| {
        let times = times.get(worker).map(|&WorkerTimes { computing, input, outside, waiting, .. }| {
            StepTimes { computing, input, outside, waiting }
        });
        let awaited = awaited.filter(|(_, workers)| workers.contains(&worker));
        let me = worker == world.worker();
        let does = awaited.map(|_| "awaited").or(me.then_some("this process"));
        let process = group.and_then(|group| group.process(worker));
        Worker {
            name: process.as_ref().map_or(format!("worker {worker}"), |process| process.task.to_string()),
            address: process.map(|process| process.address.to_string()),
            away: group.and_then(|group| group.lost(worker)),
            does: does.map(Into::into),
            seconds: awaited.map(|(call, _)| call.began.as_secs_f64()),
            times,
            ..Worker::default()
        }
    };
    World {
        worker: world.worker(),
        replicas: world.num_replicas_in_sync(),
        workers: (0..world.workers()).map(worker).collect(),
    }
}

/// Returns a report on the worker for which the others wait in each step, if there is one.
fn straggler(strategy: &Strategy, world: &World) -> Option<Straggler> {
    let straggler = strategy.straggler()?;
    let name = world.workers.get(straggler.worker)?.name.clone();
    let why = straggler.cause.to_string();
    Some(Straggler { name, why, seconds: straggler.seconds_per_step, share: straggler.share })
}

/// Returns a report on the slow workers whose places spares have taken, if there are any.
fn replacements(strategy: &Strategy) -> Option<Replacements> {
    let (count, last) = strategy.straggler_replacements();
    Some(Replacements { count, last: last? })
}

/// Returns a report on the caches of rows, if this process has read rows through them.
fn row_cache(servers: &ParameterServers) -> Option<RowCache> {
    let RowCacheUsage { hits, misses, saved_bytes, max_age, rows, .. } = servers.row_cache_usage();
    (hits > 0 || misses > 0).then_some(RowCache { hits, misses, saved_bytes, max_age, rows })
}

/// Returns a report on prefetched rows, if this process prefetches rows.
fn prefetch(servers: &ParameterServers) -> Option<Prefetch> {
    let PrefetchUsage { prefetched, late, .. } = servers.prefetch_usage();
    (prefetched > 0 || late > 0).then_some(Prefetch { prefetched, late })
}

/// Returns a report on the copies of hot rows, if this process has looked up rows of tables with hot rows.
fn hot_rows(servers: &ParameterServers) -> Option<HotRows> {
    let HotRowUsage { hits, misses, sent_rows, sent_bytes, rows, .. } = servers.hot_row_usage();
    (hits > 0 || misses > 0).then_some(HotRows { hits, misses, sent_rows, sent_bytes, rows })
}

/// Returns a report on the contents of each server. Waits for the servers' own figures for at most [`USAGE_TIMEOUT`].
fn server_reports(servers: &ParameterServers) -> Vec<ParameterServer> {
    let (placement, usages) = servers.placement_and_usage_within(USAGE_TIMEOUT);
    let mut all: Vec<_> = (0..placement.servers())
        .map(|server| ParameterServer { name: format!("ps {server}"), ..ParameterServer::default() })
        .collect();
    for placed in placement.placed() {
        if let Some(server) = all.get_mut(placed.server) {
            server.tables += 1;
            server.rows += placed.shape.first().map_or(1, |rows| *rows as u64);
            server.bytes += placed.bytes;
            if let Some(RowReads { rows: rows_read, bytes: bytes_read }) = placed.reads {
                server.shards.push(Shard { name: placed.name.clone(), rows_read, bytes_read });
            }
        }
    }
    for (server, usage) in all.iter_mut().zip(usages) {
        server.shards = most_read(std::mem::take(&mut server.shards));
        let Some(usage) = usage else { continue };
        // Includes tables of ids, and tables of other tasks.
        (server.tables, server.rows, server.bytes) = (usage.tables, usage.rows, usage.bytes);
        (server.rows_read, server.rows_pushed) = (Some(usage.rows_read), Some(usage.rows_pushed));
        server.copies = match usage.copies {
            Copies::Starting => Some(0),
            Copies::Alone => Some(1),
            Copies::Two => Some(2),
            _ => None,
        };
    }
    all
}

/// Returns the shards from which most rows were read, at most [`MAX_SHARDS`], in the order of their names.
fn most_read(mut shards: Vec<Shard>) -> Vec<Shard> {
    shards.retain(|shard| shard.rows_read > 0);
    shards.sort_by(|a, b| b.rows_read.cmp(&a.rows_read).then_with(|| a.name.cmp(&b.name)));
    shards.truncate(MAX_SHARDS);
    shards.sort_by(|a, b| a.name.cmp(&b.name));
    shards
}
