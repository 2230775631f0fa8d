use super::*;
use crate::internal::PushRequests;
use crate::{HotRows, ParameterServers, PlacementRequest, Sharded, sharded::Initial};
use distribute_cluster::World;
use distribute_optim::{RuleSpec, Sgd, Step};
use distribute_ps_tables::{
    Channel, ChannelError, LocalChannel, PartitionStrategy, Push, Refusal, RefusalKind, Request, Response,
    Started, TablePolicy, Tables, WaitForResponse,
};
use distribute_tensor::DType;
use distribute_testing::watched;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const ROWS: usize = 6;
const TIMEOUT: Duration = Duration::from_secs(1);

/// A server with a fault.
#[derive(Debug)]
struct Flaky(LocalChannel, Arc<Mutex<Fault>>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Reads of rows are refused. The other requests of their message are answered.
    Unreadable,
    /// The rules of tables are lost, until they are sent again.
    Forgetful,
}

impl Flaky {
    /// Answers the requests of a message, except those for which `refusal` returns the reason of a refusal.
    fn answer(
        &self,
        all: Vec<Request>,
        timeout: Duration,
        refusal: impl Fn(&Request) -> Option<RefusalKind>,
    ) -> Result<Started, ChannelError> {
        let answers: Vec<_> = all
            .into_iter()
            .map(|one| match refusal(&one) {
                Some(kind) => Err(Refusal::new(kind, "no".to_owned())),
                None => Ok(self.0.call(one, timeout).unwrap()),
            })
            .collect();
        Ok(Started::new(Answered(Response::Batch(answers))))
    }
}

impl Channel for Flaky {
    fn server(&self) -> &str {
        self.0.server()
    }

    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
        let is_read = |request: &Request| matches!(request, Request::ReadRows { .. });
        let is_push = |request: &Request| matches!(request, Request::PushRows { .. });
        let is_rule = |request: &Request| matches!(request, Request::SetRule { .. });
        let fault = *lock(&self.1);
        match (fault, request) {
            (Fault::Unreadable, Request::Batch(all)) if all.iter().any(is_read) => {
                self.answer(all, timeout, |request| is_read(request).then_some(RefusalKind::Busy))
            }
            (Fault::Unreadable, request) if is_read(&request) => {
                panic!("a server without changes is read: {request:?}")
            }
            (Fault::Forgetful, Request::Batch(all)) if !all.iter().any(is_rule) => {
                self.answer(all, timeout, |request| is_push(request).then_some(RefusalKind::Rule))
            }
            (_, request) => self.0.start(request, timeout),
        }
    }
}

struct Answered(Response);

impl WaitForResponse for Answered {
    fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
        Ok(self.0)
    }
}

/// Two workers that store a table together, each on its own server, and the fault of the servers.
struct Cluster {
    workers: Vec<(ParameterServers, RemoteVariable)>,
    fault: Arc<Mutex<Fault>>,
    step: u64,
}

impl Cluster {
    fn new(rows: HotRows) -> Self {
        let fault = Arc::new(Mutex::new(Fault::None));
        let tables = [(); 2].map(|()| Arc::new(Tables::new()));
        let worker = |number| {
            let channel = |server: usize| {
                Arc::new(Flaky(LocalChannel::new(server, tables[server].clone()), fault.clone()))
                    as Arc<dyn Channel>
            };
            let policy = TablePolicy { min_bytes: 0, partition: PartitionStrategy::Mod, all_weights: false };
            let world = World::new(2, number, 1).unwrap();
            let channels = vec![channel(0), channel(1)];
            let servers = ParameterServers::of_tables(channels, (TIMEOUT, TIMEOUT), policy, world).unwrap();
            let servers = servers.with_hot_rows(Some(rows.clone()));
            let initial = HostTensor::new((0..2 * ROWS).map(|x| x as f32).collect(), [ROWS, 2]).unwrap();
            let to = servers.location(ROWS, Some(48), PlacementRequest::Anywhere);
            let variable = ("t", &[ROWS, 2][..], DType::F32);
            let tables = Sharded::create(&servers, variable, &Initial::Value(initial), to, None).unwrap();
            let hot = servers.hot_table("t", &tables);
            (servers, RemoteVariable::new(tables, None).with_hot_rows(hot))
        };
        Self { workers: (0..2).map(worker).collect(), fault, step: 0 }
    }

    /// Subtracts 1 from the given rows, as a step of both workers.
    fn step(&mut self, rows: &[usize]) {
        self.step += 1;
        let (results, barrier) = (Mutex::new(vec![Vec::new(); 2]), Barrier::new(2));
        let make = |number: usize, (servers, variable): &(ParameterServers, RemoteVariable)| {
            // Only the sender of a row's changes knows in which gradients it is.
            let own: Vec<usize> = rows.iter().copied().filter(|row| row % 2 == number).collect();
            (0..2).for_each(|_| variable.count_rows([&own[..]]));
            let push = Push::at(Step::after(self.step - 1, 1.));
            let gradient =
                |rows: &[usize]| Ok(HostTensor::new(vec![1f32; 2 * rows.len()], [rows.len(), 2]).unwrap());
            let rule = RuleSpec::Sgd(Sgd);
            let gradients =
                PushRequests::rows(variable, rule, push, rows, gradient, false).map(|one| vec![one]);
            let agree = |mine: Result<Vec<u8>>| {
                lock(&results)[number] = mine?;
                barrier.wait();
                Ok(lock(&results).clone())
            };
            let session = servers.session();
            session.push_in_lock_step("step", &[variable], gradients, agree).unwrap();
        };
        std::thread::scope(|threads| {
            let make = &make;
            self.workers.iter().enumerate().for_each(|(number, worker)| {
                threads.spawn(move || make(number, worker));
            });
        });
    }

    /// Looks up rows on both workers. Returns the first elements and the number of rows that were requested.
    fn look_up(&self, ids: &[i64]) -> (Vec<f32>, u64) {
        let before = self.requested();
        let all = self.workers.iter().map(|(_, variable)| {
            let rows = variable.row_read("look up", ids, true).unwrap().send("look up").unwrap();
            let rows = rows.in_order().unwrap().to_vec::<f32>().unwrap();
            rows.chunks(2).map(|row| row[0]).collect::<Vec<_>>()
        });
        let all: Vec<_> = all.collect();
        assert_eq!(all[0], all[1]);
        (all[0].clone(), self.requested() - before)
    }

    fn requested(&self) -> u64 {
        self.workers[0].0.usage().unwrap().iter().map(|server| server.rows_read).sum()
    }
}

// INV-110
#[test]
fn hot_rows_are_not_requested_and_have_all_changes() {
    watched(|| {
        let mut cluster = Cluster::new(HotRows::named([("t", vec![3, 0])]));
        assert_eq!(cluster.look_up(&[0, 3, 5]), (vec![0., 6., 10.], 6));
        cluster.step(&[0, 5]);
        // Each worker requests the row that is not hot.
        assert_eq!(cluster.look_up(&[0, 3, 5, 0]), (vec![-1., 6., 9., -1.], 2));
        assert_eq!(cluster.look_up(&[3, 0]), (vec![6., -1.], 0));
        cluster.step(&[3]);
        assert_eq!(cluster.look_up(&[0, 3]), (vec![-1., 5.], 0));
        let usage = cluster.workers[1].0.hot_row_usage();
        assert_eq!((usage.hits, usage.misses, usage.rows), (6, 1, 2));
        // Row 3, twice, and nothing that has not changed.
        assert_eq!(usage.sent_rows, 2);
        // Outside of runs, and after a write, rows are requested.
        let variable = &cluster.workers[0].1;
        assert_eq!(variable.row_read("read", &[3], false).unwrap().send("read").unwrap().rows.len(), 2);
        cluster.workers.iter().for_each(|(_, variable)| variable.invalidate_rows());
        assert_eq!(cluster.look_up(&[0, 3]).1, 4);
        // Each server's rows are read after its next change.
        cluster.step(&[5]);
        assert_eq!(cluster.look_up(&[0, 3]).1, 2);
        cluster.step(&[0]);
        assert_eq!(cluster.look_up(&[0, 3]).1, 0);
        let (servers, variable) = cluster.workers.remove(0);
        assert_eq!(servers.hot_row_usage().rows, 2);
        drop(variable);
        assert_eq!(servers.hot_row_usage().rows, 0);
    });
}

#[test]
fn the_rows_that_are_measured_are_hot_and_nothing_is_sent_before() {
    watched(|| {
        let mut cluster = Cluster::new(HotRows::measured(2));
        for step in 0..16 {
            cluster.step(&[1, 2, 3 + step % 3]);
        }
        // The ids and counts of the rows that each worker proposes.
        let sent = |cluster: &Cluster| cluster.workers[0].0.hot_row_usage();
        assert_eq!((sent(&cluster).sent_rows, sent(&cluster).sent_bytes), (0, 1 + 4 + 12));
        assert_eq!(cluster.look_up(&[1, 2, 4, 5]).1, 8);
        cluster.step(&[1, 2]);
        assert_eq!(cluster.look_up(&[1, 2, 4, 5]), (vec![-15., -13., 3., 5.], 4));
        assert_eq!(sent(&cluster).sent_bytes, (1 + 4 + 12) + (1 + 8 + 4 + 1 + 4));
    });
}

/// Checks that workers request the rows of a server that cannot be read, and that a server without changes is not
/// read, so that a step does not wait for it.
// INV-3, INV-86, INV-110
#[test]
fn a_step_whose_hot_rows_cannot_be_read_is_made() {
    watched(|| {
        let mut cluster = Cluster::new(HotRows::named([("t", vec![0, 1, 3])]));
        cluster.step(&[0, 1]);
        cluster.step(&[3]);
        assert_eq!(cluster.look_up(&[0, 1, 3]), (vec![-1., 1., 5.], 0));
        // Of both servers, and of the one with rows 1 and 3.
        for (rows, found, requested) in [(&[0, 1][..], [-2., 0., 5.], 6), (&[5][..], [-3., -1., 4.], 4)] {
            *lock(&cluster.fault) = Fault::Unreadable;
            cluster.step(rows);
            *lock(&cluster.fault) = Fault::None;
            assert_eq!(cluster.look_up(&[0, 1, 3]), (found.to_vec(), requested), "{rows:?}");
            cluster.step(&[0, 1]);
            cluster.step(&[3]);
            assert_eq!(cluster.look_up(&[0, 1, 3]).1, 0);
        }
    });
}

/// A server that has lost its rules gets the gradients again. The reads that followed the refused gradients lack them.
// INV-110
#[test]
fn hot_rows_that_were_read_before_a_repeated_gradient_are_not_used() {
    watched(|| {
        let mut cluster = Cluster::new(HotRows::named([("t", vec![0, 1, 3])]));
        cluster.step(&[0, 1]);
        *lock(&cluster.fault) = Fault::Forgetful;
        cluster.step(&[0, 1]);
        *lock(&cluster.fault) = Fault::None;
        assert_eq!(cluster.look_up(&[0, 1, 3]), (vec![-2., 0., 6.], 6));
        cluster.step(&[0, 1]);
        assert_eq!(cluster.look_up(&[0, 1, 3]), (vec![-3., -1., 6.], 0));
    });
}

#[test]
fn a_named_row_that_does_not_exist_is_refused() {
    let cluster = Cluster::new(HotRows::measured(1));
    let (servers, variable) = cluster.workers.into_iter().next().unwrap();
    let servers = servers.with_hot_rows(Some(HotRows::named([("t", vec![2, ROWS as i64])])));
    let error = servers.require_hot_rows("create", "t", ROWS).unwrap_err().to_string();
    assert!(
        error.contains("create") && error.contains("hot_rows names row 6 of t, which has 6 rows"),
        "{error}"
    );
    servers.require_hot_rows("create", "t", ROWS + 1).unwrap();
    servers.require_hot_rows("create", "other", 1).unwrap();
    assert!(servers.hot_table("other", variable.tables()).is_none());
    assert!(servers.hot_table("t", variable.tables()).is_some());
}
