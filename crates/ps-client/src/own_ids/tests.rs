//! The requests of workers that each save their own rows.

use super::*;
use crate::{ParameterServers, PlacementRequest, Sharded, sharded::Initial};
use distribute_cluster::World;
use distribute_optim::{Momentum, RuleSpec};
use distribute_ps_tables::{
    Channel, ChannelError, DynamicOptions, Initializer, LocalChannel, PartitionStrategy, Started,
    TablePolicy, Tables,
};
use distribute_tensor::DType;
use distribute_tensor::random::Distribution;
use distribute_testing::watched;
use std::sync::Arc;
use std::time::Duration;

const WORKERS: usize = 3;
const SERVERS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(5);

type Log = Arc<Mutex<Vec<(usize, Request)>>>;

/// A channel that records each request with the index of the server.
#[derive(Debug)]
struct Logged(usize, LocalChannel, Log);

impl Channel for Logged {
    fn server(&self) -> &str {
        self.1.server()
    }

    fn start(&self, request: Request, timeout: Duration) -> std::result::Result<Started, ChannelError> {
        lock(&self.2).push((self.0, request.clone()));
        self.1.start(request, timeout)
    }
}

/// Returns the servers as each worker sees them.
fn workers() -> Vec<(ParameterServers, Log)> {
    let tables = [(); SERVERS].map(|()| Arc::new(Tables::new()));
    let worker = |number| {
        let log = Log::default();
        let channel = |server: usize| {
            let local = LocalChannel::new(server, tables[server].clone());
            Arc::new(Logged(server, local, log.clone())) as Arc<dyn Channel>
        };
        let policy = TablePolicy { min_bytes: 0, partition: PartitionStrategy::Mod, all_weights: false };
        let world = World::new(WORKERS, number, 1).unwrap();
        let channels = (0..SERVERS).map(channel).collect();
        let servers = ParameterServers::of_tables(channels, (TIMEOUT, TIMEOUT), policy, world).unwrap();
        (servers, log)
    };
    (0..WORKERS).map(worker).collect()
}

/// Returns the requests for states since the last call, after a check that they are for own servers.
fn states(worker: usize, log: &Log) -> Vec<Request> {
    let all = std::mem::take(&mut *lock(log)).into_iter().filter(|(_, one)| one.operation() == "state");
    all.map(|(server, request)| {
        assert_eq!(server % WORKERS, worker, "{request:?}");
        request
    })
    .collect()
}

fn set_rule(tables: &Sharded) {
    let rule = RuleSpec::Momentum(Momentum::new(0.5));
    let ask = |shard: &crate::sharded::Shard| {
        let request = Request::SetRule { table: shard.table.clone(), rule: rule.clone() };
        crate::channels::ServerRequest { server: shard.server, request, bytes: 0 }
    };
    tables.channels().ask("test", tables.shards().iter().map(ask).collect()).unwrap();
}

// INV-111
#[test]
fn each_worker_reads_the_columns_of_its_own_rows_once_and_no_rows_of_others() {
    watched(|| {
        let ids: Vec<i64> = (0..5000).map(|id| id * 7 - 900).collect();
        let mut saved = Vec::new();
        let all = workers();
        for (servers, _) in &all {
            let initial = Initializer::new(Distribution::Constant(1.), 7, "ids");
            let (variable, to) = (("ids", &[2][..], DType::F32), PlacementRequest::Anywhere);
            let options = (initial, DynamicOptions::default());
            let dynamic = Dynamic::create(servers, variable, options, to, None).unwrap();
            set_rule(dynamic.tables());
            let own: Vec<i64> = ids.iter().copied().filter(|id| dynamic.is_own(*id)).collect();
            let used: Vec<u64> = own.iter().map(|id| (id + 900) as u64).collect();
            let row = |some: &[usize]| {
                let values = some.iter().flat_map(|at| [own[*at] as f32, 0.5]).collect();
                Ok(HostTensor::new(values, [some.len(), 2])?)
            };
            assert_eq!(dynamic.set_values("test", &own, &used, row).unwrap(), 0);
            saved.push((dynamic, own));
        }
        let mut found = Vec::new();
        for (worker, ((_, log), (dynamic, expected))) in all.iter().zip(saved).enumerate() {
            states(worker, log);
            let (own, mut ids, used) = OwnIds::read(&dynamic, "test").unwrap();
            let shards = dynamic.tables().own_shards().count();
            let uses = |one: &Request| matches!(one, Request::StateColumn { column: StateColumn::Uses, .. });
            let requests = states(worker, log);
            assert!(requests.len() == 64 * shards && requests.iter().all(uses));
            assert!(ids.iter().zip(used).all(|(id, used)| used == (id + 900) as u64));
            // In ranges that are no multiples of parts. An empty part is not read.
            for slot in [None, Some("accum")] {
                let mut read = Vec::new();
                for start in (0..ids.len()).step_by(7) {
                    let rows = start..ids.len().min(start + 7);
                    read.extend(own.rows("test", rows, slot).unwrap().into_vec::<f32>().unwrap());
                }
                let value = |id: &i64| if slot.is_none() { [*id as f32, 0.5] } else { [0., 0.] };
                assert_eq!(read, ids.iter().flat_map(value).collect::<Vec<_>>());
                assert!(states(worker, log).len() <= 64 * shards);
            }
            let error = own.rows("test", 0..1, Some("nothing")).unwrap_err().to_string();
            assert!(error.contains("nothing"), "{error}");
            ids.sort_unstable();
            assert_eq!(ids, expected);
            found.append(&mut ids);
        }
        found.sort_unstable();
        assert_eq!(found, ids);
    });
}

// INV-111
#[test]
fn each_worker_reads_its_own_shards_of_numbered_rows() {
    watched(|| {
        let mut found = vec![0f32; 30];
        let values = HostTensor::new((0..30).map(|x| x as f32).collect(), [15, 2]).unwrap();
        let create = |(servers, _): &(ParameterServers, Log)| {
            let to = servers.location(15, Some(120), PlacementRequest::Anywhere);
            let variable = ("t", &[15, 2][..], DType::F32);
            Sharded::create(servers, variable, &Initial::Value(values.clone()), to, None).unwrap()
        };
        let all = workers();
        let tables: Vec<_> = all.iter().map(create).collect();
        for (worker, ((_, log), tables)) in all.iter().zip(&tables).enumerate() {
            states(worker, log);
            for shard in tables.own_shards() {
                let ((first, step), count) = (tables.rows_of(shard), tables.shards()[shard].rows());
                let rows = tables.read_shard("test", shard, 0..count, None).unwrap();
                for (row, values) in rows.into_vec::<f32>().unwrap().chunks(2).enumerate() {
                    let at = 2 * (first + row * step);
                    found[at..at + 2].copy_from_slice(values);
                }
                assert_eq!(states(worker, log).len(), 1);
            }
        }
        assert_eq!(HostTensor::new(found, [15, 2]).unwrap(), values);
    });
}
