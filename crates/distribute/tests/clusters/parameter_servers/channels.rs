//! Channels that record messages for tests.

use distribute::{LocalCluster, ParameterServerStrategy};
use distribute_ps_tables::{
    Channel, ChannelError, LocalChannel, Request, Response, Started, Tables, WaitForResponse,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The requests to servers, and their responses.
#[derive(Debug, Default)]
pub struct Log {
    pub asked: Mutex<Vec<(String, Request)>>,
    pub answered: Mutex<Vec<Response>>,
    /// The name of the server that no longer responds; `None` if all do.
    pub down: Mutex<Option<String>>,
    /// The kind of request that no server responds to any more; `None` if they respond to all.
    pub lost: Mutex<Option<&'static str>>,
}

impl Log {
    /// Returns the requests since the last call. The requests of a batch are returned separately.
    pub fn take(&self) -> Vec<(String, Request)> {
        let mut all = Vec::new();
        for (server, request) in std::mem::take(&mut *self.asked.lock().unwrap()) {
            match request {
                Request::Batch(requests) => all.extend(requests.into_iter().map(|one| (server.clone(), one))),
                one => all.push((server, one)),
            }
        }
        all
    }

    /// Returns the responses since the last call. The responses of a batch are returned separately.
    pub fn answers(&self) -> Vec<Response> {
        let mut all = Vec::new();
        for response in std::mem::take(&mut *self.answered.lock().unwrap()) {
            match response {
                Response::Batch(responses) => all.extend(responses.into_iter().map(|one| one.unwrap())),
                one => all.push(one),
            }
        }
        all
    }
}

/// A channel that adds requests and responses to a log.
#[derive(Debug)]
struct Logged {
    channel: LocalChannel,
    log: Arc<Log>,
}

impl Channel for Logged {
    fn server(&self) -> &str {
        self.channel.server()
    }

    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
        let server = self.server().to_string();
        let is_lost = |one: &Request| *self.log.lost.lock().unwrap() == Some(one.operation());
        let lost = match &request {
            Request::Batch(requests) => requests.iter().any(is_lost),
            one => is_lost(one),
        };
        if lost || self.log.down.lock().unwrap().as_ref() == Some(&server) {
            let (request, reason) = (request.describe(), "it is down; start it again".to_string());
            return Err(ChannelError::TimedOut { server, request, timeout, reason });
        }
        self.log.asked.lock().unwrap().push((server, request.clone()));
        let answer = self.channel.start(request, timeout)?.wait()?;
        self.log.answered.lock().unwrap().push(answer.clone());
        Ok(Started::new(Answered(answer)))
    }
}

struct Answered(Response);

impl WaitForResponse for Answered {
    fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
        Ok(self.0)
    }
}

/// Returns channels to servers whose log can be read.
pub fn channels(servers: usize) -> (Vec<Arc<dyn Channel>>, Arc<Log>) {
    let log: Arc<Log> = Arc::default();
    let channel = |server| {
        let channel = LocalChannel::new(server, Arc::new(Tables::new()));
        Arc::new(Logged { channel, log: log.clone() }) as Arc<dyn Channel>
    };
    ((0..servers).map(channel).collect(), log)
}

/// Returns a strategy over servers whose log can be read, without a partitioner.
pub fn logged(servers: usize) -> (distribute::parameter_server::ParameterServerStrategyBuilder, Arc<Log>) {
    let (channels, log) = channels(servers);
    let cluster = LocalCluster::new(1, servers).unwrap();
    let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).channels(channels);
    (builder, log)
}
