//! The printed commands for Open MPI, run by Debian's openmpi-bin: `DISTRIBUTE_TEST_MPIRUN=1 cargo test -p
//! distribute-launch --test it mpirun`.

use distribute_cluster::World;
use distribute_cluster::resolver::{ClusterResolver, MpiClusterResolver, MpiOptions};
use distribute_launch::print::{Job, Target};
use distribute_launch::{Layout, parse_hosts};
use distribute_net::{Identity, Message, Receiver, Rendezvous, Secret};
use distribute_testing::{child, watched};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// An environment variable for the ranks: whether they join their world.
const JOINS: &str = "DISTRIBUTE_TEST_JOINS";

/// An environment variable that the mock of ssh sets: the host.
const WHERE: &str = "DISTRIBUTE_TEST_WHERE";

/// A mock of ssh that runs the command on this machine.
const FAKE: &str = "#!/bin/sh\n[ \"$1\" = -x ] && shift\nDISTRIBUTE_TEST_WHERE=$1\nexport DISTRIBUTE_TEST_WHERE\nshift\nexec sh -c \"$*\"\n";

struct Nobody;

impl Receiver for Nobody {
    fn deliver(&self, _from: usize, _message: Message) {}
    fn mark_lost(&self, _from: usize, _reason: String) {}
}

/// Runs in each rank: prints its worker number and its host and, if `joins` is `yes`, joins the others.
fn rank(joins: &str) {
    let resolver = MpiClusterResolver::from_env(MpiOptions::default()).unwrap();
    let (spec, rank) = (resolver.cluster_spec().unwrap(), resolver.task_id().unwrap());
    let here = std::env::var(WHERE).unwrap_or_else(|_| "here".into());
    let addresses: Vec<_> = spec.tasks().map(|(_, address)| address.to_string()).collect();
    println!("rank {rank} {here} {}", addresses.join(" "));
    if joins == "yes" {
        let identity = Identity::Secret(Secret::from_env().unwrap().unwrap());
        let world = World::new(addresses.len(), rank, 1).unwrap();
        let mesh = Rendezvous::new(world, addresses).credentials(identity).join(Arc::new(Nobody));
        println!("rank {rank} joined {}", mesh.unwrap().world().workers());
    }
}

/// Returns the sorted lines of all ranks that the printed commands start for this layout.
fn lines_of_job(layout: &Layout, joins: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let ssh = folder.path().join("ssh");
    std::fs::write(&ssh, FAKE).unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let this = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let command = [&*this, "--exact", "mpirun::printed_commands_run", "--nocapture"].map(str::to_owned);
    let timeout = Some(Duration::from_secs(40));
    let job = Job { timeout, ..Job::new(layout, &command) };
    let mut shell = Command::new("sh");
    shell
        .args(["-euc", &job.print(Target::Mpi).unwrap()])
        .env(JOINS, joins)
        .env("DISTRIBUTE_PORT_BASE", "8888");
    shell.env("OMPI_MCA_plm_rsh_agent", &ssh);
    // Tests are often root, by whom Open MPI is not started otherwise.
    shell.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let (output, _) = child::output(shell, Duration::from_secs(50));
    let mut lines: Vec<_> =
        output.lines().filter(|line| line.starts_with("rank ")).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn on_hosts(workers: usize, hosts: &str) -> Layout {
    Layout::new(workers).hosts(parse_hosts(hosts).unwrap())
}

#[test]
fn printed_commands_run() {
    if let Ok(joins) = std::env::var(JOINS) {
        return rank(&joins);
    }
    if std::env::var_os("DISTRIBUTE_TEST_MPIRUN").is_none() {
        println!("skipped: DISTRIBUTE_TEST_MPIRUN is not set");
        return;
    }
    watched(|| {
        // More ranks than this machine may have cores.
        for (layout, host) in [(Layout::new(3), "127.0.0.1"), (on_hosts(3, "localhost"), "localhost")] {
            let addresses = format!("{host}:8888 {host}:8889 {host}:8890");
            let expected: Vec<_> = (0..3)
                .flat_map(|rank| [format!("rank {rank} here {addresses}"), format!("rank {rank} joined 3")])
                .collect();
            assert_eq!(lines_of_job(&layout, "yes"), expected);
        }
    });
    watched(|| {
        // On several hosts, in their order, although this one, where it is started, is the last.
        let (name, _) = child::output(Command::new("hostname"), Duration::from_secs(10));
        let name = name.trim();
        let addresses = format!("elsewhere:8888 elsewhere:8889 {name}:8888");
        let places = ["elsewhere", "elsewhere", "here"].iter().enumerate();
        let expected: Vec<_> =
            places.map(|(rank, place)| format!("rank {rank} {place} {addresses}")).collect();
        assert_eq!(lines_of_job(&on_hosts(3, &format!("elsewhere,{name}")), "no"), expected);
    });
}
