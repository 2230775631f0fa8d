//! The reports of a running job.

use candle_core::{Device, Module, Tensor};
use candle_nn::Init;
use distribute::cluster::Deadline;
use distribute::monitor::{Monitor, Report};
use distribute::parameter_server::{FixedShardsPartitioner, HotRows, RowCacheOptions, RowReads};
use distribute::remote::WorkerContext;
use distribute::strategy::{Links, TableHosts, TableOptions};
use distribute::{ClusterCoordinator, Error, LocalCluster, prelude::*};
use distribute_testing::watched;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

/// A timeout that is shorter than the watchdog's, so that a failed test prints the last report.
const PATIENCE: Duration = Duration::from_secs(30);

fn monitor(strategy: &Strategy) -> Monitor {
    Monitor::builder(strategy).address("127.0.0.1:0").start().unwrap()
}

/// Returns the first report for which the condition is true.
fn until(monitor: &Monitor, is_so: impl Fn(&Report) -> bool) -> Report {
    let deadline = Deadline::after(PATIENCE);
    loop {
        let report = monitor.report().unwrap();
        if is_so(&report) {
            return report;
        }
        assert!(!deadline.has_passed(), "{report:#?}");
        std::thread::yield_now();
    }
}

fn get(monitor: &Monitor, path: &str) -> String {
    ask(monitor.address().unwrap(), path).split_once("\r\n\r\n").unwrap().1.to_string()
}

/// Requests a path from the server at `address`, and returns the complete response.
fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn steps_examples_and_loss_equal_those_of_the_training() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let monitor = monitor(&strategy);
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(2.))).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        for _ in 0..5 {
            let step = strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sqr()?.sum_all()?, 3));
            step.unwrap();
        }
        let report = until(&monitor, |report| report.progress.examples == 30.);
        // Squares of 2, 1.6, …: each step multiplies the weight by 0.8.
        let loss = (2. * 0.8f64.powi(4)).powi(2);
        assert!((report.progress.loss.unwrap() - loss).abs() < 1e-5, "{:?}", report.progress);
        assert_eq!((report.progress.steps, report.progress.diverged), (5, false));
        assert_eq!((report.world.replicas, report.world.workers.len()), (2, 1));
        assert_eq!(report.strategy, "MirroredStrategy");
        assert_eq!(report.replicas.len(), 2);
        for replica in &report.replicas {
            assert!(
                replica.spent.contains_key("forward") && replica.spent.contains_key("update"),
                "{replica:?}"
            );
            assert!(!replica.spent.contains_key("step"));
        }
        let json: Report = serde_json::from_str(&get(&monitor, "/status.json")).unwrap();
        assert_eq!((json.progress.steps, json.process), (5, std::process::id()));
        assert!(get(&monitor, "/metrics").contains("\ndistribute_examples_total 30\n"));
        let page = get(&monitor, "/");
        assert!(page.contains("<!doctype html>") && page.contains("status.json"));

        monitor.record(7, f64::NAN);
        let report = until(&monitor, |report| report.progress.diverged);
        assert_eq!((report.progress.examples, report.progress.loss), (37., None));
        // After the end of the job, the last report can still be read.
        drop((model, optimizer, strategy));
        assert_eq!(until(&monitor, |report| report.progress.examples == 37.).progress.steps, 6);
    });
}

#[test]
fn a_replica_that_others_wait_for_is_named_with_the_call() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let monitor = monitor(&strategy);
        let (go_on, held) = mpsc::channel();
        let held = Mutex::new(held);
        std::thread::scope(|scope| {
            let step = scope.spawn(|| {
                strategy.run((), |ctx, ()| {
                    if ctx.replica_id_in_sync_group() == 1 {
                        held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                    }
                    ctx.all_reduce(ReduceOp::Sum, 1f32)
                })
            });
            let report = until(&monitor, |report| !report.waits.is_empty());
            go_on.send(()).unwrap();
            step.join().unwrap().unwrap();
            let [wait] = &report.waits[..] else { panic!("{:?}", report.waits) };
            assert_eq!((&*wait.who, &*wait.awaits), ("replica 0", "replica 1 (in forward)"));
            assert!(wait.why.contains("all_reduce (SUM float32[]) at "), "{}", wait.why);
            assert!(wait.seconds >= 0.5);
        });
        until(&monitor, |report| {
            report.waits.is_empty() && report.replicas.iter().all(|it| it.now.is_none())
        });
    });
}

#[test]
fn a_worker_that_others_wait_for_is_named_and_the_chief_alone_shows_it() {
    watched(|| {
        let (go_on, held) = mpsc::channel();
        let (go_on, held) = (Mutex::new(go_on), Mutex::new(held));
        let shown = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            let monitor = monitor(strategy);
            if strategy.world().worker() == 1 {
                held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
                return Ok(monitor.report().map(|report| report.waits));
            }
            std::thread::scope(|scope| {
                let step = scope.spawn(|| strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)));
                let report = until(&monitor, |report| !report.waits.is_empty());
                go_on.lock().unwrap().send(()).unwrap();
                step.join().unwrap()?;
                assert_eq!(report.world.workers[1].does.as_deref(), Some("awaited"));
                Ok(Some(report.waits))
            })
        });
        let shown = shown.unwrap();
        let [Some(waits), None] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!((&*waits[0].who, &*waits[0].awaits), ("worker 0", "worker 1"));
        assert!(waits[0].why.starts_with("run"), "{}", waits[0].why);
    });
}

// INV-62
#[test]
fn each_worker_answers_probes_at_an_address_without_the_status() {
    watched(|| {
        let pages = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            let monitor = Monitor::builder(strategy).address("127.0.0.1:0").health("127.0.0.1:0").start()?;
            let address = monitor.health_address().unwrap();
            let deadline = Deadline::after(PATIENCE);
            while !ask(address, "/readyz").starts_with("HTTP/1.1 200 ") {
                assert!(!deadline.has_passed(), "{}", ask(address, "/readyz"));
                std::thread::yield_now();
            }
            assert!(ask(address, "/healthz").starts_with("HTTP/1.1 200 "));
            assert!(ask(address, "/status.json").starts_with("HTTP/1.1 404 "));
            // The other worker may have left only after both have asked.
            strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
            Ok(monitor.address().is_some())
        });
        assert_eq!(pages.unwrap(), [true, false]);
    });
}

/// The channel that delays closures until a message arrives.
static HELD: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);

#[distribute::remote]
fn hold(_worker: &WorkerContext) -> distribute::Result<()> {
    let held = HELD.lock().unwrap().take();
    held.map_or(Ok(()), |held| held.recv_timeout(PATIENCE).map_err(Error::other))
}

#[test]
fn the_queue_of_a_coordinator_and_the_rows_on_servers_are_shown() {
    watched(|| {
        let cluster = LocalCluster::new(1, 2).unwrap();
        let partitioner = FixedShardsPartitioner::new(2).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let table = Tensor::zeros((10, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
        let table = strategy.scope(|| Variable::new("table", table)).unwrap();
        let rows = table.gather(&[7, 1, 9]).unwrap();
        assert_eq!(rows.dims(), [3, 4]);
        let coordinator = ClusterCoordinator::builder(&strategy).window(1).build().unwrap();
        let monitor =
            Monitor::builder(&strategy).coordinator(&coordinator).address("127.0.0.1:0").start().unwrap();
        let (go_on, held) = mpsc::channel();
        *HELD.lock().unwrap() = Some(held);
        for _ in 0..5 {
            coordinator.schedule(hold, ()).unwrap();
        }
        let report = until(&monitor, |report| {
            let Some(shown) = &report.coordinator else { return false };
            let does = shown.workers.first().and_then(|it| it.does.as_deref());
            shown.queued == 4 && does.is_some_and(|does| does.contains("hold"))
        });
        let shown = report.coordinator.unwrap();
        assert_eq!((shown.queued, shown.ended, shown.workers.len()), (4, 0, 1));
        assert_eq!(shown.workers[0].closures, Some(1));
        let rows: Vec<_> =
            report.servers.iter().map(|it| (&*it.name, it.tables, it.rows, it.bytes)).collect();
        assert_eq!(rows, [("ps 0", 1, 5, 80), ("ps 1", 1, 5, 80)]);
        let read: Vec<_> = report.servers.iter().map(|it| (it.rows_read, it.rows_pushed)).collect();
        assert_eq!(read, [(Some(1), Some(0)), (Some(2), Some(0))]);
        let shards = report.servers.iter().flat_map(|it| &it.shards);
        let shards: Vec<_> = shards.map(|it| (&*it.name, it.rows_read, it.bytes_read)).collect();
        assert_eq!(shards, [("table/part_0", 1, 16), ("table/part_1", 2, 32)]);
        let placed = strategy.placement();
        let reads: Vec<_> = placed.placed().iter().map(|shard| shard.reads.unwrap()).collect();
        assert_eq!(reads, [RowReads { rows: 1, bytes: 16 }, RowReads { rows: 2, bytes: 32 }]);
        assert!(placed.to_string().contains("server 1: 1 variable, 80 bytes, 2 rows read"), "{placed}");
        go_on.send(()).unwrap();
        coordinator.join().unwrap();
        let report = until(&monitor, |report| report.coordinator.as_ref().is_some_and(|it| it.ended == 5));
        let shown = report.coordinator.unwrap();
        assert_eq!((shown.queued, shown.staleness), (0, Some(0.)), "one worker alone");
        // The monitor does not keep the coordinator alive.
        drop(coordinator);
        until(&monitor, |report| report.coordinator.is_none());
    });
}

// INV-87
#[test]
fn the_use_of_cached_rows_is_shown() {
    watched(|| {
        let cluster = LocalCluster::new(1, 2).unwrap();
        let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        let strategy = builder.row_cache(RowCacheOptions::default()).build().unwrap();
        let monitor = monitor(&strategy);
        assert_eq!(monitor.report().unwrap().row_cache, None);
        let words = strategy.replicate(|vb| distribute::nn::embedding(50, 4, vb)).unwrap();
        let ids = Tensor::new(&[7u32, 1, 9], &Device::Cpu).unwrap();
        let twice = |_: &ReplicaContext, words: &distribute::nn::Embedding| {
            words.forward(&ids)?;
            Ok(words.forward(&ids)?)
        };
        strategy.run(&words, twice).unwrap();
        let shown = until(&monitor, |report| report.row_cache.is_some()).row_cache.unwrap();
        let all = (shown.hits, shown.misses, shown.saved_bytes, shown.max_age, shown.rows);
        assert_eq!(all, (3, 3, 3 * 4 * 4, 0, 3));
        assert!(get(&monitor, "/metrics").contains("distribute_row_cache_saved_bytes_total 48\n"));
    });
}

// INV-110
#[test]
fn the_use_of_hot_rows_is_shown() {
    watched(|| {
        let hot_rows = Some(HotRows::named([("weight", [2, 7])]));
        let tables = TableOptions { min_bytes: 0, hot_rows, ..TableHosts::Workers.into() };
        let builder = MultiWorkerMirroredStrategy::builder().tables(tables);
        let train = |strategy: &Strategy| {
            let monitor = monitor(strategy);
            let words = strategy.replicate(|vb| distribute::nn::embedding(50, 4, vb))?;
            let optimizer = Sgd::new(&words.variables, 0.1)?;
            let ids = Tensor::new(&[7u32, 2, 9], &Device::Cpu)?;
            for _ in 0..3 {
                strategy.run(&words, |ctx, words: &distribute::nn::Embedding| {
                    optimizer.minimize(ctx, words.forward(&ids)?.sqr()?.mean_all()?, 3)
                })?;
            }
            if !strategy.world().is_chief() {
                return Ok(());
            }
            // Row 9, except in the first step, in which there are no copies.
            let all_steps = |report: &Report| report.hot_rows.is_some_and(|hot| hot.misses == 2);
            let shown = until(&monitor, all_steps).hot_rows.unwrap();
            // Worker 1 sends row 7.
            assert_eq!((shown.hits, shown.rows, shown.sent_rows), (4, 2, 3));
            assert!(shown.sent_bytes > 3 * 4 * 4, "{shown:?}");
            assert!(get(&monitor, "/metrics").contains("distribute_hot_row_sent_rows_total 3\n"));
            distribute::Ok(())
        };
        builder.on_threads(Links::Memory, 2, train).unwrap();
    });
}

#[test]
fn an_address_that_is_taken_or_that_others_reach_is_refused() {
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    let one = monitor(&strategy);
    let taken = Monitor::builder(&strategy).address(one.address().unwrap().to_string()).start().unwrap_err();
    assert!(matches!(taken, Error::Monitor(_)) && taken.to_string().contains("cannot listen at"), "{taken}");
    let open = Monitor::builder(&strategy).address("0.0.0.0:0").start().unwrap_err();
    assert!(open.to_string().contains("allow_plain_text_on_the_network"), "{open}");
}
