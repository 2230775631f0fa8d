//! A server whose disk is full refuses changes with the reason, and continues to run.
//!
//! `DISTRIBUTE_TEST_TMPFS=1 cargo test -p distribute-ps-server --test it disks` fills a small file system of the
//! server. It needs user namespaces. Otherwise a limit on the size of files simulates a full disk.

// Only a part of the module is used here.
#[allow(dead_code)]
#[path = "../../../distribute/tests/clusters/recovery/disk.rs"]
mod disk;

use crate::support::{PATIENCE, clients, cluster, count, counters, ps, rows, server};
use disk::{Disk, TMPFS, small};
use distribute_net::{Identity, SharedMemory};
use distribute_ps_server::{Connection, ParameterServer, ServerOptions};
use distribute_ps_tables::{Channel, ChannelError, RefusalKind};
use distribute_testing::child::{Killed, command, part};
use distribute_testing::{Port, watched};
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

const TEST: &str = "disks::a_server_with_a_full_disk_fails_calls_and_continues_after_space_is_freed";

/// Runs a server in a separate process. On request, the server saves its tables, and its disk becomes full.
fn serve(part: &str) -> ! {
    let (port, folder) = part.split_once(' ').unwrap();
    let disk = Disk::new(0, Some(Path::new(folder)));
    let tables =
        ParameterServer::open(ServerOptions::new(folder).snapshot_every(Duration::from_secs(3600))).unwrap();
    let server = server(cluster(port.parse().unwrap()), tables.clone(), Identity::None);
    println!("answer: at {}", server.address());
    for line in io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "fill" => {
                disk.fill();
                "full".to_owned()
            }
            "free" => {
                disk.free();
                "free".to_owned()
            }
            "save" => tables.snapshot().map_or_else(|error| error.to_string(), |()| "saved".to_owned()),
            other => panic!("{other}"),
        };
        println!("answer: {answer}");
    }
    std::process::exit(0);
}

/// A process that runs this server.
struct Process {
    child: Killed,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(port: u16, folder: &Path) -> Self {
        let mut command = small(command(TEST, &format!("{port} {}", folder.display())), folder);
        let mut child = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let output = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut process = Self { child, output };
        assert!(process.answer().starts_with("at "));
        process
    }

    /// Returns the answer of the process. The watchdog of the test kills a process that prints nothing.
    fn answer(&mut self) -> String {
        let mut lines = self.output.by_ref().map_while(Result::ok);
        let answer = lines.find_map(|line| Some(line.split_once("answer: ")?.1.to_owned()));
        answer.unwrap_or_else(|| panic!("the server has ended"))
    }

    fn request(&mut self, what: &str) -> String {
        writeln!(self.child.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.answer()
    }
}

/// Counts until a change is refused, and returns the refusal. The acknowledged changes are in `counted`.
fn until_refused(ps: &Connection, counted: &mut i64) -> String {
    // At most so many changes fit after the beginning of a log.
    for _ in 0..8192 {
        match ps.call(count("n", 0), PATIENCE) {
            Ok(_) => *counted += 1,
            Err(ChannelError::Refused { refusal, .. }) => {
                assert_eq!(refusal.kind, RefusalKind::Storage, "{refusal}");
                return refusal.text;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the disk is full, and {counted} changes were made")
}

// INV-12, INV-53, INV-54
#[test]
fn a_server_with_a_full_disk_fails_calls_and_continues_after_space_is_freed() {
    if let Some(part) = part() {
        serve(&part);
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let reserved = Port::reserve();
        let known = cluster(reserved.number());
        let mut process = Process::start(reserved.number(), folder.path());
        let connect =
            || Connection::new(clients(&known, 0, Identity::None).shared_memory(SharedMemory::Never), ps());
        let ps = connect();
        let counted_there = |ps: &Connection| rows(ps, "n", vec![0]).to_vec::<i64>().unwrap()[0];
        let cause =
            if std::env::var_os(TMPFS).is_some() { "No space left on device" } else { "File too large" };

        ps.call(counters("n", 1), PATIENCE).unwrap();
        assert_eq!(process.request("save"), "saved");
        // Without a change, there is nothing to save.
        ps.call(count("n", 0), PATIENCE).unwrap();
        let mut counted = 1;

        for _ in 0..2 {
            process.request("fill");
            let text = until_refused(&ps, &mut counted);
            let log = format!("the log in {} cannot be written to: {cause}", folder.path().display());
            assert!(text.contains(&log) && text.contains("nothing was changed. Free space there"), "{text}");
            let text = process.request("save");
            assert!(text.starts_with("snapshot: ") && text.contains(cause), "{text}");
            assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
            // Neither the server nor the connection has ended, and a new connection gets the same counts.
            until_refused(&ps, &mut counted);
            assert_eq!([&ps, &connect()].map(counted_there), [counted; 2]);

            process.request("free");
            ps.call(count("n", 0), PATIENCE).unwrap();
            counted += 1;
            assert_eq!(counted_there(&ps), counted);
            assert_eq!(process.request("save"), "saved");
            ps.call(count("n", 0), PATIENCE).unwrap();
            counted += 1;
        }

        // A small file system is gone with its process.
        if std::env::var_os(TMPFS).is_none() {
            drop(process);
            let _process = Process::start(reserved.number(), folder.path());
            assert_eq!(counted_there(&ps), counted);
        }
    });
}
