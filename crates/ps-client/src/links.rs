//! Requests to several parameter servers at once.

use super::closure::Numbering;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::Deadline;
use distribute_ps_tables::{Channel, ChannelError, Refusal, RefusalKind, Request, Response, Started};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The largest number of bytes of requests, or of their answers, that share a message.
const TOGETHER: usize = 1 << 20;

/// The largest number of requests in one message.
const MOST_TOGETHER: usize = 1024;

/// The connections to all servers, by index.
pub struct Links {
    channels: Vec<Arc<dyn Channel>>,
    timeout: Duration,
    /// The closure that changes belong to.
    closure: Mutex<Option<Numbering>>,
}

/// A request to one server.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The index of the server.
    pub server: usize,
    /// The request.
    pub request: Request,
    /// The approximate number of bytes of the request or of its answer.
    pub bytes: usize,
}

impl Links {
    pub(crate) fn new(channels: Vec<Arc<dyn Channel>>, timeout: Duration) -> Self {
        Self { channels, timeout, closure: Mutex::new(None) }
    }

    /// Assigns changes to a closure, or to none, from now on. Returns whether that was possible: closures run one
    /// after another.
    pub(super) fn run(&self, closure: Option<Numbering>) -> bool {
        let mut running = lock(&self.closure);
        let can = running.is_none() || closure.is_none();
        if can {
            *running = closure;
        }
        can
    }

    /// Records that `finished` has counted a step.
    pub(super) fn made_step(&self, finished: &Arc<AtomicU64>) {
        lock(&self.closure).iter_mut().for_each(|closure| closure.made_step(finished));
    }

    /// Keeps the steps of the closure, which has succeeded.
    pub(super) fn keep_steps(&self) {
        lock(&self.closure).iter_mut().for_each(Numbering::keep_steps);
    }

    pub(crate) fn count(&self) -> usize {
        self.channels.len()
    }

    /// Sends the same request to all servers, and returns each answer or the error of its server after this timeout.
    pub(crate) fn ask_each(
        &self,
        request: &Request,
        timeout: Duration,
    ) -> Vec<std::result::Result<Response, ChannelError>> {
        // All at once: the others answer while one is awaited.
        let started: Vec<_> =
            self.channels.iter().map(|channel| channel.start(request.clone(), timeout)).collect();
        started.into_iter().map(|started| started.and_then(Started::wait)).collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends requests to all servers at once, and waits for all answers. Requests for the same table keep their order.
    ///
    /// # Errors
    /// Returns the errors of [`Underway::wait`].
    pub fn ask(&self, operation: &'static str, asks: Vec<Ask>) -> Result<Vec<Response>> {
        self.start(asks).wait(operation)
    }

    /// Sends requests to all servers at once, without waiting for the answers. Requests for the same table keep their
    /// order.
    ///
    /// All requests have one deadline. After a request cannot be sent to a server, nothing more is sent to that
    /// server.
    pub(crate) fn start(&self, mut asks: Vec<Ask>) -> Underway {
        self.mark(&mut asks);
        self.start_marked(asks)
    }

    // INV-59
    /// Numbers the changes of the running closure, if there is one. Each gets one number, even if it is sent again.
    pub(super) fn mark(&self, asks: &mut [Ask]) {
        lock(&self.closure).iter_mut().for_each(|closure| closure.mark(asks));
    }

    /// Sends requests like [`start`](Self::start), after their changes have been numbered.
    pub(super) fn start_marked(&self, asks: Vec<Ask>) -> Underway {
        let (count, mut sent) = (asks.len(), Vec::new());
        let deadline = Deadline::after(self.timeout);
        let mut servers: Vec<_> = self
            .channels
            .iter()
            .zip(self.messages(asks))
            .map(|(channel, messages)| (channel, messages.into_iter(), None::<ChannelError>))
            .collect();
        // In turn, so that no server waits until another one has room for all its messages.
        loop {
            let before = sent.len();
            for (channel, messages, failed) in &mut servers {
                let Some(Message { positions, requests, .. }) = messages.next() else { continue };
                let call = match failed {
                    Some(error) => Err(error.clone()),
                    None => channel.start(together(requests), deadline.remaining()),
                };
                *failed = call.as_ref().err().cloned();
                sent.push(Sent { channel: Arc::clone(channel), positions, call });
            }
            if sent.len() == before {
                return Underway { count, messages: sent };
            }
        }
    }

    /// Returns the messages for each server.
    fn messages(&self, asks: Vec<Ask>) -> Vec<Vec<Message>> {
        let mut of_servers: Vec<Messages> = self.channels.iter().map(|_| Messages::default()).collect();
        for (position, Ask { server, request, bytes }) in asks.into_iter().enumerate() {
            if let Some(messages) = of_servers.get_mut(server) {
                messages.add(position, request, bytes);
            }
        }
        of_servers.into_iter().map(|messages| messages.all).collect()
    }
}

/// The messages to one server.
#[derive(Default)]
struct Messages {
    all: Vec<Message>,
    /// The index of the message that small requests join.
    open: usize,
    /// The index of the last message with a request for each table.
    last: HashMap<String, usize>,
    /// The index of the first message that later requests may join, whatever their table.
    barrier: usize,
}

impl Messages {
    fn add(&mut self, position: usize, request: Request, bytes: usize) {
        let table = request.table().map(str::to_owned);
        // Large requests for other tables may come in between, but none for this table.
        let earliest = match &table {
            Some(table) => self.last.get(table).copied().unwrap_or_default().max(self.barrier),
            None => self.all.len().saturating_sub(1),
        };
        let open = self.all.get_mut(self.open).filter(|open| {
            self.open >= earliest
                && open.bytes.saturating_add(bytes) <= TOGETHER
                && open.requests.len() < MOST_TOGETHER
        });
        let number = match open {
            Some(open) => {
                open.positions.push(position);
                open.requests.push(request);
                open.bytes += bytes;
                self.open
            }
            None => {
                self.all.push(Message { positions: vec![position], requests: vec![request], bytes });
                let number = self.all.len() - 1;
                if bytes < TOGETHER {
                    self.open = number;
                }
                number
            }
        };
        match table {
            Some(table) => drop(self.last.insert(table, number)),
            None => self.barrier = number,
        }
    }
}

/// Requests whose answers have not arrived yet.
pub(crate) struct Underway {
    count: usize,
    messages: Vec<Sent>,
}

/// A message that was sent, with the positions of its answers.
struct Sent {
    channel: Arc<dyn Channel>,
    positions: Vec<usize>,
    call: Result<Started, ChannelError>,
}

impl Underway {
    /// Waits for all answers, and returns them in the order of the requests.
    ///
    /// # Errors
    /// Returns the first error in that order, after all servers have answered. The other servers have made their
    /// changes.
    pub(crate) fn wait(self, operation: &'static str) -> Result<Vec<Response>> {
        let answers = self.wait_each().into_iter();
        answers.map(|answer| answer.map_err(|source| failed(operation, source))).collect()
    }

    /// Waits for all answers, and returns them in the order of the requests. Some of them may be errors.
    pub(super) fn wait_each(self) -> Vec<Result<Response, ChannelError>> {
        let mut answers: Vec<Option<Result<Response, ChannelError>>> =
            (0..self.count).map(|_| None).collect();
        for Sent { channel, positions, call } in self.messages {
            let answer = call.and_then(Started::wait);
            for (position, answer) in positions.iter().zip(apart(&*channel, answer, positions.len())) {
                answers[*position] = Some(answer);
            }
        }
        let nothing = || ChannelError::Unreachable {
            server: "a server".into(),
            request: "a request".into(),
            reason: "there is no such server".into(),
        };
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(nothing()))).collect()
    }
}

/// Returns the error of an operation whose request a server has not fulfilled.
pub(super) fn failed(operation: &'static str, source: ChannelError) -> Error {
    Error::Server { operation, source: Box::new(explained(source)) }
}

/// Adds advice to a refusal if a server has lost the table of a variable.
fn explained(error: ChannelError) -> ChannelError {
    match error {
        ChannelError::Refused { server, refusal } if refusal.kind == RefusalKind::NoSuchTable => {
            let text = format!(
                "{}; it came back without its tables: it has no folder, or what was in it is gone. Give each server a folder, in which it \
                 keeps them, and start the chief again from a checkpoint",
                refusal.text
            );
            ChannelError::Refused { server, refusal: Refusal::new(refusal.kind, text) }
        }
        other => other,
    }
}

/// A message to one server, with the positions of its answers.
struct Message {
    positions: Vec<usize>,
    requests: Vec<Request>,
    bytes: usize,
}

fn together(mut requests: Vec<Request>) -> Request {
    match (requests.len(), requests.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            requests.extend(last);
            Request::Batch(requests)
        }
    }
}

/// Splits the answer to this number of requests in one message.
fn apart(
    channel: &dyn Channel,
    answer: Result<Response, ChannelError>,
    count: usize,
) -> Vec<Result<Response, ChannelError>> {
    let server = || channel.server().to_string();
    match answer {
        Ok(Response::Batch(all)) if count > 1 && all.len() == count => {
            let one = |answer: Result<Response, _>| {
                answer.map_err(|refusal| ChannelError::Refused { server: server(), refusal })
            };
            all.into_iter().map(one).collect()
        }
        Ok(other) if count > 1 => {
            let found = other.name().to_string();
            let request = format!("batch of {count}");
            vec![Err(ChannelError::Answer { server: server(), request, found }); count]
        }
        // Each request gets the error.
        Err(error) => vec![Err(error); count],
        Ok(only) => vec![Ok(only)],
    }
}

/// Returns the error of an answer that does not match its request.
pub fn unexpected(operation: &'static str, server: usize, found: &Response) -> Error {
    let (server, request, found) = (format!("ps {server}"), operation.to_string(), found.name().to_string());
    Error::Server { operation, source: Box::new(ChannelError::Answer { server, request, found }) }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Links({} servers)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::{LocalChannel, TableSpec, Tables};
    use distribute_tensor::HostTensor;

    fn links(servers: usize) -> Links {
        let channel =
            |server| Arc::new(LocalChannel::new(server, Arc::new(Tables::new()))) as Arc<dyn Channel>;
        Links::new((0..servers).map(channel).collect(), Duration::from_secs(60))
    }

    fn create(server: usize, name: &str, bytes: usize) -> Ask {
        let spec = TableSpec::values(name, HostTensor::scalar(server as f32));
        Ask { server, request: Request::Create(spec), bytes }
    }

    #[test]
    fn small_questions_to_a_server_go_together_and_large_ones_alone() {
        let asks = vec![
            create(0, "a", 10),
            create(1, "b", 10),
            create(0, "c", TOGETHER - 10),
            create(0, "d", 1),
            create(0, "e", 2 * TOGETHER),
            create(0, "f", usize::MAX),
        ];
        let messages = links(2).messages(asks);
        let positions = |messages: &Vec<Message>| {
            messages.iter().map(|message| message.positions.clone()).collect::<Vec<_>>()
        };
        assert_eq!(positions(&messages[0]), [vec![0, 2], vec![3], vec![4], vec![5]]);
        assert_eq!(positions(&messages[1]), [vec![1]]);
        // A small request joins those before a large one, unless that is for the same table. A request without a table
        // keeps its position.
        let asks = vec![
            create(0, "a", 10),
            create(0, "b", 2 * TOGETHER),
            create(0, "c", 10),
            create(0, "b", 10),
            create(0, "a", 10),
            Ask { server: 0, request: Request::List, bytes: 0 },
            create(0, "d", 2 * TOGETHER),
            Ask { server: 0, request: Request::List, bytes: 0 },
            create(0, "e", 10),
        ];
        let messages = links(1).messages(asks);
        assert_eq!(positions(&messages[0]), [vec![0, 2], vec![1], vec![3, 4, 5], vec![6], vec![7, 8]]);
        let many = links(1).messages((0..MOST_TOGETHER + 1).map(|_| create(0, "a", 0)).collect());
        assert_eq!(
            many[0].iter().map(|message| message.requests.len()).collect::<Vec<_>>(),
            [MOST_TOGETHER, 1]
        );
    }

    /// A server that is unreachable, and the timeout of each attempt.
    #[derive(Debug, Default)]
    struct Away(std::sync::Mutex<Vec<Duration>>);

    impl Channel for Away {
        fn server(&self) -> &str {
            "ps 0"
        }

        fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
            lock(&self.0).push(timeout);
            let (server, request) = (self.server().to_string(), request.describe());
            Err(ChannelError::Unreachable { server, request, reason: "it is away".into() })
        }
    }

    #[test]
    fn nothing_more_is_sent_to_a_server_that_something_could_not_be_sent_to() {
        let (away, here) = (Arc::new(Away::default()), Arc::new(Tables::new()));
        let timeout = Duration::from_secs(60);
        let local = Arc::new(LocalChannel::new(1, here.clone()));
        let links = Links::new(vec![away.clone(), local], timeout);
        let large = |server, name| create(server, name, 2 * TOGETHER);
        let asks = vec![large(0, "a"), large(0, "b"), large(1, "c"), large(0, "d"), large(1, "e")];
        let error = links.ask("create", asks).unwrap_err().to_string();
        assert!(error.contains("ps 0") && error.contains("table a"), "{error}");
        let attempts = lock(&away.0).clone();
        assert!(attempts.len() == 1 && attempts[0] <= timeout, "{attempts:?}");
        assert_eq!(here.names(), ["c", "e"]);
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions_and_the_first_error_is_told() {
        let links = links(2);
        let made =
            links.ask("create", vec![create(1, "a", 1), create(0, "b", 1), create(1, "c", 1)]).unwrap();
        assert_eq!(
            made,
            [Response::Made { new: true }, Response::Made { new: true }, Response::Made { new: true }]
        );
        let read = |server, table: &str| {
            let request = Request::ReadRows { table: table.into(), rows: vec![0] };
            Ask { server, request, bytes: 4 }
        };
        let rows = links.ask("read", vec![read(1, "a"), read(0, "b"), read(1, "c")]).unwrap();
        let rows: Vec<_> = rows
            .into_iter()
            .map(|answer| match answer {
                Response::Rows(rows) => {
                    rows.cast(distribute_tensor::DType::F32).and_then(HostTensor::into_vec::<f32>).unwrap()[0]
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(rows, [1., 0., 1.]);
        let error =
            links.ask("read", vec![read(1, "a"), read(1, "x"), read(0, "y")]).unwrap_err().to_string();
        assert!(error.contains("ps 1") && error.contains('x') && !error.contains('y'), "{error}");
        assert!(links.ask("read", vec![read(7, "a")]).is_err());
        assert!(links.ask("nothing", Vec::new()).unwrap().is_empty());
    }
}
