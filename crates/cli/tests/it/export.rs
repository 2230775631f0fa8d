//! Runs `distribute serve` and `distribute export` as users do. Changed rows must be in files soon after a push,
//! exactly once, even if the server is killed. `DISTRIBUTE_TEST_KILLS=20 cargo test -p distribute-cli --test it export
//! -- --nocapture` kills the server more often, and prints the time from a push until a reader has the rows.

use distribute::cluster::{ClusterSpec, Deadline, Job, Stopwatch, Task};
use distribute::net::Credentials;
use distribute_ps_server::Connection;
use distribute_ps_tables::{Channel, Request, Response, TableSpec};
use distribute_rpc::ClientBuilder;
use distribute_tensor::{HostTensor, Write};
use distribute_testing::child::Killed;
use distribute_testing::{Port, SplitMix, watched_for};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

const ROWS: usize = 500;

fn serve(address: &str, folder: &Path) -> Killed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.args(["serve", "--servers", address, "--folder"]).arg(folder).stderr(Stdio::null());
    Killed(command.spawn().unwrap())
}

fn export(address: &str, folder: &Path) -> Killed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command
        .args(["export", "--servers", address, "--every", "0.01", "--variable", "n", "--folder"])
        .arg(folder);
    Killed(command.stdout(Stdio::null()).spawn().unwrap())
}

/// A reader of exported files, which knows only the folder.
#[derive(Default)]
struct Reader {
    next: u64,
    values: BTreeMap<i64, i64>,
    versions: BTreeMap<i64, u64>,
}

impl Reader {
    /// Reads the new files, and checks that a row is in them again only with a later version and a larger value.
    fn read(&mut self, folder: &Path) {
        while let Ok(bytes) = std::fs::read(folder.join(format!("n/{:010}.safetensors", self.next))) {
            let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
            let (header, body) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let header: serde_json::Value = serde_json::from_slice(header).unwrap();
            let numbers = |name: &str| -> Vec<i64> {
                let [begin, end] = [0, 1].map(|i| header[name]["data_offsets"][i].as_u64().unwrap() as usize);
                body[begin..end].as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
            };
            let complete = header["__metadata__"]["complete"] == "true";
            assert_eq!(complete, self.next == 0, "only the first file has all rows");
            for ((row, version), value) in
                numbers("rows").into_iter().zip(numbers("versions")).zip(numbers("values"))
            {
                let before = self.versions.insert(row, version as u64);
                assert!(
                    before.is_none_or(|before| before < version as u64),
                    "row {row} again, with {version}"
                );
                let before = self.values.insert(row, value);
                assert!(before.is_none_or(|before| before < value), "row {row} has not changed from {value}");
            }
            self.next += 1;
        }
    }

    /// Reads new files until `is` returns `true`.
    fn until(&mut self, folder: &Path, is: impl Fn(&Self) -> bool) {
        let deadline = Deadline::after(PATIENCE);
        loop {
            self.read(folder);
            if is(self) {
                return;
            }
            assert!(!deadline.has_passed(), "it has not come after {} files", self.next);
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

// INV-89
#[test]
fn changed_rows_are_exported_soon_and_once_also_if_the_server_is_killed() {
    let kills: usize = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(3, |kills| kills.parse().unwrap());
    let mut times = watched_for(PATIENCE + Duration::from_secs(20) * kills as u32, move || {
        let folder = tempfile::tempdir().unwrap();
        let (tables, out) = (folder.path().join("tables"), folder.path().join("out"));
        let port = Port::reserve();
        let address = port.address().to_string();
        let mut server = Some(serve(&address, &tables));
        let cluster = ClusterSpec::from_lists([("ps", [&address])]).unwrap();
        let clients =
            ClientBuilder::new(cluster, Task::new("test", 0)).credentials(Credentials::new().any_job());
        let ps = Connection::new(clients, Job::Ps.task(0));
        let spec = TableSpec::values("n", HostTensor::vector(vec![0i64; ROWS]));
        ps.call(Request::Create(spec), PATIENCE).unwrap();
        let mut exporter = Some(export(&address, &out));
        let mut reader = Reader::default();
        reader.until(&out, |reader| reader.next > 0);
        let (mut random, mut counts, mut times) = (SplitMix(1), vec![0i64; ROWS], Vec::new());
        for round in 0..=kills {
            for _ in 0..50 {
                let rows: Vec<i64> = (0..3).map(|_| random.below(ROWS) as i64).collect();
                rows.iter().for_each(|row| counts[*row as usize] += 1);
                let (values, last) = (HostTensor::vector(vec![1i64; 3]), rows[2]);
                let pushed = Stopwatch::start();
                ps.call(Request::WriteRows { table: "n".into(), how: Write::Add, rows, values }, PATIENCE)
                    .unwrap();
                reader.until(&out, |reader| reader.values[&last] == counts[last as usize]);
                times.push(pushed.elapsed());
            }
            if round < kills {
                // The next changes are made while it starts again.
                drop(server.take());
                server = Some(serve(&address, &tables));
                if round % 2 == 1 {
                    drop(exporter.take());
                    exporter = Some(export(&address, &out));
                }
            }
        }
        let read =
            ps.call(Request::ReadRows { table: "n".into(), rows: (0..ROWS as i64).collect() }, PATIENCE);
        assert_eq!(read.unwrap(), Response::Rows(HostTensor::vector(counts.clone())));
        assert_eq!(reader.values.into_values().collect::<Vec<_>>(), counts);
        times
    });
    times.sort();
    let of = |part: usize| times[(times.len() - 1) * part / 100];
    eprintln!(
        "{kills} kills: from a push to a reader: p50 {:?}, p99 {:?}, at most {:?}",
        of(50),
        of(99),
        of(100)
    );
    assert!(of(50) < Duration::from_secs(1), "{:?}", of(50));
}

#[test]
fn a_table_that_cannot_be_exported_does_not_end_the_others() {
    watched_for(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let (tables, out) = (folder.path().join("tables"), folder.path().join("out"));
        let port = Port::reserve();
        let address = port.address().to_string();
        let _server = serve(&address, &tables);
        let cluster = ClusterSpec::from_lists([("ps", [&address])]).unwrap();
        let clients =
            ClientBuilder::new(cluster, Task::new("test", 0)).credentials(Credentials::new().any_job());
        let ps = Connection::new(clients, Job::Ps.task(0));
        let numbers = || HostTensor::vector(vec![0i64; 2]);
        for name in ["half/part_1", "n", "n/"] {
            ps.call(Request::Create(TableSpec::values(name, numbers())), PATIENCE).unwrap();
        }
        let strings = HostTensor::vector(vec![b"ab".to_vec()]);
        ps.call(Request::Create(TableSpec::values("strings", strings)), PATIENCE).unwrap();
        let once = |arguments: &[&str]| -> (bool, String, String) {
            let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
            command.args(["export", "--once", "--servers", &address, "--folder"]).arg(&out).args(arguments);
            let Output { status, stdout, stderr } = command.output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (status.success(), text(stdout), text(stderr))
        };
        let files = |folder: &str| std::fs::read_dir(out.join(folder)).unwrap().count();
        let (succeeded, lines, errors) = once(&[]);
        assert!(!succeeded && lines.lines().count() == 2, "{lines}{errors}");
        assert!(
            errors.contains("variable half is not exported: the servers have part 1 of 2 rows"),
            "{errors}"
        );
        assert!(errors.contains("not everything is exported"), "{errors}");
        // With the file that is locked; `n/` has a folder of its own.
        assert_eq!((files("n"), files("n/%")), (3, 2));
        ps.call(Request::Remove { table: "half/part_1".into() }, PATIENCE).unwrap();
        assert_eq!(once(&[]), (true, String::new(), String::new()));
        let (succeeded, _, errors) = once(&["--variable", "strings"]);
        assert!(!succeeded && errors.contains("table strings has the dtype string"), "{errors}");
    });
}
