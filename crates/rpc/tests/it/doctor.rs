//! The links between tasks. Some tasks are not there or not admitted.

use crate::support::{PATIENCE, patient};
use distribute_cluster::{ClusterSpec, Job, Task, World};
use distribute_net::{Identity, Listener, Receiver, Rendezvous, Secret};
use distribute_rpc::doctor::{Link, State, examine, participate};
use distribute_rpc::{Client, ClientBuilder, Server};
use distribute_testing::{Port, watched};
use std::sync::Arc;
use std::time::Duration;

fn doctor() -> Task {
    Task::new("doctor", 0)
}

fn secret(digit: &str) -> Identity {
    Identity::Secret(Secret::from_hex(&digit.repeat(64), "a test").unwrap())
}

/// Returns a cluster at ports that are reserved for it.
fn cluster(workers: usize, ps: usize) -> (ClusterSpec, Vec<Port>) {
    let ports: Vec<_> = (0..workers + ps).map(|_| Port::reserve()).collect();
    let all: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
    let cluster = ClusterSpec::from_lists([("worker", &all[..workers]), ("ps", &all[workers..])]).unwrap();
    (cluster, ports)
}

fn server(cluster: &ClusterSpec, task: Task, identity: Identity) -> Server {
    Server::builder(cluster.clone()).task(task).credentials(identity).settings(patient()).start().unwrap()
}

fn clients(cluster: &ClusterSpec, identity: Identity) -> ClientBuilder {
    ClientBuilder::new(cluster.clone(), doctor()).credentials(identity)
}

#[test]
fn all_links_are_measured_including_those_between_other_workers() {
    watched(|| {
        let (cluster, _ports) = cluster(2, 1);
        let _servers: Vec<_> = cluster.tasks().map(|(task, _)| server(&cluster, task, secret("a"))).collect();
        let mut seen = Vec::new();
        let report = examine(&clients(&cluster, secret("a")), &cluster, &doctor(), PATIENCE, &mut |link| {
            seen.push(format!("{} {}", link.from, link.to));
        });
        let expected = [
            "doctor 0 ps 0",
            "doctor 0 worker 0",
            "doctor 0 worker 1",
            "ps 0 worker 0",
            "ps 0 worker 1",
            "worker 0 worker 1",
        ];
        assert_eq!(seen, expected);
        for link in &report.links {
            let State::Open { round_trip, bandwidth } = link.state else { panic!("{link:?}") };
            assert!(round_trip > 0. && bandwidth > 0., "{link:?}");
        }
        assert_eq!(report.table(|word, _| word.to_owned()).len(), 7);
    });
}

#[test]
fn tasks_that_all_run_the_doctor_end_together_and_one_has_the_report() {
    watched(|| {
        let (cluster, _ports) = cluster(3, 1);
        let reports: Vec<_> = std::thread::scope(|scope| {
            let part = |task: Task| {
                let builder = Server::builder(cluster.clone()).task(task.clone()).credentials(secret("a"));
                let clients = ClientBuilder::new(cluster.clone(), task.clone()).credentials(secret("a"));
                scope.spawn(move || {
                    let report = participate(builder, &clients, &task, PATIENCE, &mut |_: &Link| {});
                    (task, report.unwrap())
                })
            };
            let threads: Vec<_> = cluster.tasks().map(|(task, _)| part(task)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (task, report) in reports {
            assert_eq!(report.is_some(), task == Job::Worker.task(0), "{task}");
            if let Some(report) = report {
                assert_eq!(report.links.len(), 6, "{report:?}");
                assert!(report.links.iter().all(|link| link.state.word() == "open"), "{report:?}");
            }
        }
    });
}

struct Nobody;

impl Receiver for Nobody {
    fn deliver(&self, _from: usize, _message: distribute_net::Message) {}
    fn mark_lost(&self, _from: usize, _reason: String) {}
}

#[test]
fn closed_refusing_and_training_processes_are_distinguished() {
    watched(|| {
        let (cluster, _ports) = cluster(4, 0);
        let at = |index| cluster.task_address(&Job::Worker, index).unwrap().to_string();
        let task = |index| Job::Worker.task(index);
        let _open = server(&cluster, task(0), secret("a"));
        let _other_secret = server(&cluster, task(1), secret("b"));
        // Worker 2 trains: it waits for the rest of a world.
        let listener = Listener::bind(&at(2)).unwrap();
        let training = Rendezvous::new(World::new(2, 0, 1).unwrap(), vec![at(2), "127.0.0.1:0".to_owned()])
            .credentials(secret("a"))
            .listener(listener)
            .timeout(Duration::from_secs(6));
        let training = std::thread::spawn(move || training.join(Arc::new(Nobody)).map(drop));
        let patience = Duration::from_secs(2);
        let report =
            examine(&clients(&cluster, secret("a")), &cluster, &doctor(), patience, &mut |_: &Link| {});
        let states: Vec<_> = report.links.iter().map(|link| link.state.word()).collect();
        assert_eq!(states, ["open", "refused", "training", "closed"]);
        let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("doctor 0 → worker 1 is refused: ") && findings[0].contains("secret")
        );
        let closed =
            format!("doctor 0 → worker 3 is closed: no process answers at {} (connection refused)", at(3));
        assert!(findings[1].starts_with(&closed), "{}", findings[1]);
        assert!(training.join().unwrap().is_err());
    });
}

#[test]
fn a_server_measures_only_tasks_of_its_cluster_and_reads_any_bytes() {
    watched(|| {
        let (cluster, _ports) = cluster(1, 1);
        let _server = server(&cluster, Job::Ps.task(0), Identity::None);
        let client: Client = clients(&cluster, Identity::None).connect(&Job::Ps.task(0), PATIENCE).unwrap();
        let ask =
            |head: &'static str| client.call("doctor", distribute_net::Message::new(head, "x"), PATIENCE);
        assert_eq!(ask("anything").unwrap().body, "x");
        for head in ["{", "{}", r#"{"probe": 7, "patience_ms": 1}"#] {
            assert!(ask(head).unwrap_err().to_string().contains("cannot be decoded"), "{head}");
        }
        let none = ask(r#"{"probe": {"type": "ps", "index": 9}, "patience_ms": 100}"#).unwrap();
        let State::Refused { why, .. } = serde_json::from_slice(&none.body).unwrap() else { panic!() };
        assert!(why.contains("the cluster has no ps 9"), "{why}");
        let closed = ask(r#"{"probe": {"type": "worker", "index": 0}, "patience_ms": 100}"#).unwrap();
        assert!(matches!(serde_json::from_slice(&closed.body).unwrap(), State::Closed { .. }));
    });
}
