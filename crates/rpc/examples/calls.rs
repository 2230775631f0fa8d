//! A benchmark of calls over loopback, without encryption: `cargo run --release -p distribute-rpc --example calls`.

use distribute_cluster::{Job, Stopwatch};
use distribute_net::Message;
use distribute_rpc::{Call, Client, Reply, Server};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let minute = Duration::from_secs(60);
    let cluster = distribute_cluster::ClusterSpec::from_lists([("ps", ["127.0.0.1:0"])])?;
    let echo = |call: Call, reply: Reply| reply.answer(call.message.head, call.message.body);
    let server = Server::builder(cluster).service("echo", echo).start()?;
    let client = Client::connect(server.cluster(), Job::Chief.task(0), &Job::Ps.task(0), minute)?;
    for size in [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let body = bytes::Bytes::from(vec![0; size]);
        let mut times = Vec::new();
        for _ in 0..if size > 1 << 19 { 50 } else { 2000 } {
            let waited = Stopwatch::start();
            client.call("echo", Message::new("", body.clone()), minute)?;
            times.push(waited.seconds());
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!("{size:>9} bytes there and back: {:9.1} µs", median * 1e6);
    }
    // Many at once.
    let (waited, calls) = (Stopwatch::start(), 20_000);
    let mut started = std::collections::VecDeque::new();
    for _ in 0..calls {
        if started.len() == 32 {
            started.pop_front().map(|call: distribute_rpc::Started| call.wait(minute)).transpose()?;
        }
        started.push_back(client.start("echo", Message::new("", "x"), minute)?);
    }
    for call in started {
        call.wait(minute)?;
    }
    println!("32 calls in flight: {:.0} calls/s", f64::from(calls) / waited.seconds());
    Ok(())
}
