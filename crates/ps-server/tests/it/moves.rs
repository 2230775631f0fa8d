//! Variables that are saved on some servers and loaded on fewer or more, with slots and dynamic rows.

use distribute_checkpoint::{Reader, Writer};
use distribute_optim::{Adam, Momentum, RuleSpec, Step};
use distribute_ps_tables::{
    Channel, Contents, DynamicOptions, DynamicState, HashPartition, Initializer, LocalChannel, Push, Request,
    Response, RowPartition, State, TableKind, TableSpec, Tables, shard_name,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ROWS: usize = 13;
const WIDTH: usize = 2;
const COUNTS: [usize; 5] = [1, 2, 3, 5, 8];

/// Servers with a dense variable `w` and a dynamic one `ids`, sharded over all of them.
struct Servers(Vec<LocalChannel>);

impl Servers {
    fn new(count: usize) -> Self {
        let servers: Vec<_> = (0..count).map(|i| LocalChannel::new(i, Arc::new(Tables::new()))).collect();
        let normal = |name| Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 7, name);
        let servers = Self(servers);
        for shard in 0..count {
            let dense = Contents::Initialized {
                shape: vec![ROWS, WIDTH],
                dtype: DType::F32,
                initializer: normal("w"),
                partition: RowPartition::div(ROWS, count),
                shard,
            };
            let dynamic = Contents::Dynamic {
                row_shape: vec![WIDTH],
                dtype: DType::F32,
                initializer: normal("ids"),
                options: DynamicOptions::default(),
            };
            let specs = [
                ("w", dense, RuleSpec::Adam(Adam::default())),
                ("ids", dynamic, RuleSpec::Momentum(Momentum::nesterov(0.9))),
            ];
            for (name, contents, rule) in specs {
                let name = shard_name(name, shard);
                servers.ask(
                    shard,
                    Request::Create(TableSpec { name, contents, rule: Some(rule), rounding: None }),
                );
            }
        }
        servers
    }

    fn ask(&self, shard: usize, request: Request) -> Response {
        self.0[shard].call(request, Duration::from_secs(10)).unwrap()
    }

    /// Returns the rows of `w` on each server.
    fn ranges(&self) -> Vec<Range<usize>> {
        RowPartition::div(ROWS, self.0.len()).ranges().collect()
    }

    fn train(&self, steps: Range<u64>) {
        for step in steps {
            let push = Push::at(Step::after(step, 0.1));
            let gradient: Vec<f32> =
                (0..ROWS * WIDTH).map(|i| (i as f32 - 9.) * (step as f32 + 1.)).collect();
            for (shard, rows) in self.ranges().into_iter().enumerate() {
                let part = gradient[rows.start * WIDTH..rows.end * WIDTH].to_vec();
                let gradient = HostTensor::new(part, [rows.len(), WIDTH]).unwrap();
                self.ask(shard, Request::Push { table: shard_name("w", shard), push, gradient });
            }
            let ids: Vec<i64> = (0..20).map(|i| (i * 37 + step as i64 * 11) % 50 - 25).collect();
            let gradient: Vec<f32> = ids.iter().flat_map(|id| [*id as f32, step as f32]).collect();
            let split = HashPartition::new(self.0.len()).split(&ids);
            for shard in 0..self.0.len() {
                let part = split.take(shard, &gradient, WIDTH);
                let gradient = HostTensor::new(part, [split.of(shard).len(), WIDTH]).unwrap();
                let (table, rows) = (shard_name("ids", shard), split.of(shard).to_vec());
                self.ask(shard, Request::PushRows { table, push, rows, gradient });
            }
        }
    }

    fn save(&self, path: &Path) {
        let mut writer = Writer::new();
        let (mut ids, mut used, mut rows) = (Vec::new(), Vec::new(), vec![Vec::new(); 2]);
        for (shard, range) in self.ranges().into_iter().enumerate() {
            // A few rows at a time.
            for first in (0..range.len()).step_by(3) {
                let some = first..range.len().min(first + 3);
                let request = Request::StateRows { table: shard_name("w", shard), rows: some };
                let Response::State(State::Rows { first, values, slots }) = self.ask(shard, request) else {
                    panic!("no rows")
                };
                let first = range.start + first;
                writer.insert_slice("w", [ROWS, WIDTH], first, values).unwrap();
                for (name, slot) in slots {
                    writer.insert_slice(format!("w/{name}"), [ROWS, WIDTH], first, slot).unwrap();
                }
            }
            let Response::Tables(tables) = self.ask(shard, Request::List) else { panic!("no list") };
            let table = tables.iter().find(|info| info.kind == TableKind::Dynamic).unwrap();
            for part in 0..table.parts {
                let request = Request::StatePart { table: table.name.clone(), part };
                let Response::State(State::Ids(state)) = self.ask(shard, request) else { panic!("no ids") };
                ids.extend(state.ids);
                used.extend(state.used);
                rows[0].extend_from_slice(state.values.as_slice::<f32>().unwrap());
                rows[1].extend_from_slice(state.slots[0].1.as_slice::<f32>().unwrap());
            }
        }
        let count = ids.len();
        writer.insert("ids", HostTensor::vector(ids)).unwrap();
        writer.insert("ids/used", HostTensor::vector(used)).unwrap();
        for (name, rows) in ["ids/values", "ids/accum"].into_iter().zip(rows) {
            writer.insert(name, HostTensor::new(rows, [count, WIDTH]).unwrap()).unwrap();
        }
        writer.save(path, 2).unwrap();
    }

    fn load(&self, path: &Path) {
        let reader = Reader::open(path).unwrap();
        let tensor = |name: &str| reader.tensor(name).unwrap();
        let all = DynamicState {
            ids: tensor("ids").into_vec().unwrap(),
            used: tensor("ids/used").into_vec().unwrap(),
            values: tensor("ids/values"),
            slots: vec![("accum".to_owned(), tensor("ids/accum"))],
        };
        let split = HashPartition::new(self.0.len()).split(&all.ids);
        for (shard, range) in self.ranges().into_iter().enumerate() {
            let rows = |name: &str| reader.rows(name, range.clone()).unwrap();
            let slots = ["m", "v"].map(|name| (name.to_owned(), rows(&format!("w/{name}")))).to_vec();
            let state = State::Rows { first: 0, values: rows("w"), slots };
            self.ask(shard, Request::Restore { table: shard_name("w", shard), state });
            let state = State::Ids(all.take(split.positions(shard)).unwrap());
            self.ask(shard, Request::Restore { table: shard_name("ids", shard), state });
        }
    }

    /// Returns the bits of all values of `w` and `ids`, in an order that does not depend on the number of servers.
    fn values(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let mut put = |rows: Response| match rows {
            Response::Rows(rows) => all.extend(rows.as_slice::<f32>().unwrap().iter().map(|x| x.to_bits())),
            other => panic!("{other:?}"),
        };
        for (shard, range) in self.ranges().into_iter().enumerate() {
            let rows = (0..range.len() as i64).collect();
            put(self.ask(shard, Request::ReadRows { table: shard_name("w", shard), rows }));
        }
        for id in -30..30 {
            let shard = HashPartition::new(self.0.len()).shard(id);
            put(self.ask(shard, Request::ReadRows { table: shard_name("ids", shard), rows: vec![id] }));
        }
        all
    }
}

// CKPT-4
#[test]
fn ckpt_4_a_checkpoint_resumes_bit_identically_on_any_number_of_servers() {
    let whole = Servers::new(1);
    whole.train(0..6);
    let before = whole.values();
    whole.train(6..12);
    let after = whole.values();
    assert_ne!(before, after);
    for from in COUNTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let servers = Servers::new(from);
        servers.train(0..6);
        assert_eq!(servers.values(), before, "{from}");
        servers.save(&path);
        for to in COUNTS {
            let servers = Servers::new(to);
            servers.load(&path);
            assert_eq!(servers.values(), before, "{from} to {to}");
            servers.train(6..12);
            assert_eq!(servers.values(), after, "{from} to {to}");
        }
    }
}
