//! The order in which a server receives requests when connections are lost.

use super::*;
use crate::SERVICE;
use crate::codec::{self, encode_answer};
use distribute_cluster::{ClusterSpec, Job};
use distribute_net::{Identity, Settings};
use distribute_ps_tables::{Response, TableSpec};
use distribute_rpc::{Call, Reply, Server};
use distribute_tensor::{HostTensor, Write};
use distribute_testing::{Port, watched};
use parking_lot::Mutex;
use std::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(50);

/// Returns a server, and a receiver that gets the sequence number of the first change of each call. The server only
/// responds if `answers` is `true`.
fn server(cluster: &ClusterSpec, answers: bool) -> (Server, mpsc::Receiver<u64>) {
    let (come, comes) = mpsc::channel();
    let come = Mutex::new((come, Vec::new()));
    let service = move |call: Call, reply: Reply| {
        let (come, kept) = &mut *come.lock();
        come.send(codec::Call::decode(call.message).unwrap().first).unwrap();
        if answers {
            let answer = encode_answer(vec![Ok(Response::Done)], false, &[], |_| None).unwrap();
            reply.answer(answer.head, answer.body);
        } else {
            kept.push(reply);
        }
    };
    let builder = Server::builder(cluster.clone()).task(Job::Ps.task(0)).credentials(Identity::None);
    (builder.service(SERVICE, service).start().unwrap(), comes)
}

fn add() -> Request {
    Request::Write { table: "n".into(), how: Write::Add, value: HostTensor::scalar(1i64) }
}

// INV-58
#[test]
fn lost_calls_are_resent_in_order_before_new_ones() {
    watched(|| {
        let port = Port::reserve();
        let at = format!("127.0.0.1:{}", port.number());
        let cluster =
            ClusterSpec::from_lists([("ps", vec![at]), ("worker", vec!["127.0.0.1:0".into()])]).unwrap();
        let settings = Settings { silence: Duration::from_secs(30), ..Settings::default() };
        let clients = ClientBuilder::new(cluster.clone(), Job::Worker.task(0)).credentials(Identity::None);
        let ps = Connection::new(clients.settings(settings), Job::Ps.task(0));
        let (first, comes) = server(&cluster, false);
        let start = |request| ps.start(request, PATIENCE).unwrap();
        let mut calls: Vec<Started> = (0..5).map(|_| start(add())).collect();
        assert_eq!(comes.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        drop(first);
        let (second, comes) = server(&cluster, true);
        // The last request is waited for first, and another thread starts a new one.
        std::thread::scope(|scope| {
            let last = calls.pop().unwrap();
            scope.spawn(move || last.wait().unwrap());
            scope.spawn(|| {
                ps.call(Request::Create(TableSpec::values("m", HostTensor::scalar(0i64))), PATIENCE)
            });
        });
        calls.into_iter().rev().for_each(|call| drop(call.wait().unwrap()));
        let come: Vec<u64> = comes.try_iter().collect();
        assert_eq!(come.iter().copied().filter(|first| *first < 5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(come.last(), Some(&5));
        drop(second);
    });
}

// INV-3
#[test]
fn a_call_whose_deadline_passes_while_the_server_is_gone_ends_after_a_later_call_has_reconnected() {
    watched(|| {
        let port = Port::reserve();
        let at = format!("127.0.0.1:{}", port.number());
        let cluster =
            ClusterSpec::from_lists([("ps", vec![at]), ("worker", vec!["127.0.0.1:0".into()])]).unwrap();
        let clients = ClientBuilder::new(cluster.clone(), Job::Worker.task(0)).credentials(Identity::None);
        let ps = Connection::new(clients, Job::Ps.task(0));
        let (first, comes) = server(&cluster, false);
        ps.start(add(), PATIENCE).map(drop).unwrap();
        comes.recv_timeout(PATIENCE).unwrap();
        let early = ps.start(add(), Duration::from_millis(1)).unwrap();
        drop(first);
        let (_second, _comes) = server(&cluster, true);
        let later = ps.start(add(), PATIENCE).unwrap();
        later.wait().unwrap();
        // It is answered if it was sent again before its deadline.
        if let Err(error) = early.wait() {
            assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
        }
    });
}
