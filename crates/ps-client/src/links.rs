//! The parameter servers, asked several things at once.

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

/// Requests go together in one message up to so many bytes, theirs or those of their answers.
const TOGETHER: usize = 1 << 20;

/// And so many of them.
const MOST_TOGETHER: usize = 1024;

/// The ways to all servers, by their numbers.
pub struct Links {
    channels: Vec<Arc<dyn Channel>>,
    timeout: Duration,
    /// Of the closure whose changes are started.
    closure: Mutex<Option<Numbering>>,
}

/// What one server is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The index of the server.
    pub server: usize,
    /// The request.
    pub request: Request,
    /// About how many bytes it or its answer has.
    pub bytes: usize,
}

impl Links {
    pub(crate) fn new(channels: Vec<Arc<dyn Channel>>, timeout: Duration) -> Self {
        Self { channels, timeout, closure: Mutex::new(None) }
    }

    /// From now on changes are those of a closure, or of none. Says whether they are: one that is run ends before
    /// another.
    pub(super) fn run(&self, closure: Option<Numbering>) -> bool {
        let mut running = lock(&self.closure);
        let can = running.is_none() || closure.is_none();
        if can {
            *running = closure;
        }
        can
    }

    /// A step was made, which `finished` has counted.
    pub(super) fn made_step(&self, finished: &Arc<AtomicU64>) {
        lock(&self.closure).iter_mut().for_each(|closure| closure.made_step(finished));
    }

    /// The closure has ended well: its steps are made.
    pub(super) fn keep_steps(&self) {
        lock(&self.closure).iter_mut().for_each(Numbering::keep_steps);
    }

    pub(crate) fn count(&self) -> usize {
        self.channels.len()
    }

    /// Asks all servers the same, and gives for each what it says, within so long.
    pub(crate) fn ask_each(
        &self,
        request: &Request,
        timeout: Duration,
    ) -> Vec<std::result::Result<Response, ChannelError>> {
        // All at once: each waits while the others answer.
        let started: Vec<_> =
            self.channels.iter().map(|channel| channel.start(request.clone(), timeout)).collect();
        started.into_iter().map(|started| started.and_then(Started::wait)).collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks all servers at once, and waits for all answers. What is asked of one table is asked in this order.
    ///
    /// # Errors
    /// Those of [`Underway::wait`].
    pub fn ask(&self, operation: &'static str, asks: Vec<Ask>) -> Result<Vec<Response>> {
        self.start(asks).wait(operation)
    }

    /// Asks all servers at once, and leaves it to the caller when to wait. What is asked of one table is asked in this
    /// order.
    ///
    /// All have one deadline. A server that could not be sent something is sent nothing more.
    pub(crate) fn start(&self, mut asks: Vec<Ask>) -> Underway {
        self.mark(&mut asks);
        self.start_marked(asks)
    }

    // INV-59
    /// Where a closure is run, its changes are numbered, once each however often they are sent.
    pub(super) fn mark(&self, asks: &mut [Ask]) {
        lock(&self.closure).iter_mut().for_each(|closure| closure.mark(asks));
    }

    /// As [`start`](Self::start), for what has been marked.
    pub(super) fn start_marked(&self, asks: Vec<Ask>) -> Underway {
        let (count, mut sent) = (asks.len(), Vec::new());
        let deadline = Deadline::after(self.timeout);
        let mut servers: Vec<_> = self
            .channels
            .iter()
            .zip(self.messages(asks))
            .map(|(channel, messages)| (channel, messages.into_iter(), None::<ChannelError>))
            .collect();
        // In turn, so that no server waits until another one has room for all that it is sent.
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

    /// For each server its messages.
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

/// What one server is asked, in messages.
#[derive(Default)]
struct Messages {
    all: Vec<Message>,
    /// The one that small questions join.
    open: usize,
    /// In which message each table was asked for last.
    last: HashMap<String, usize>,
    /// From which message on the order counts for all tables.
    barrier: usize,
}

impl Messages {
    fn add(&mut self, position: usize, request: Request, bytes: usize) {
        let table = request.table().map(str::to_owned);
        // Large ones of other tables may have been asked meanwhile, but none of this table.
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

/// Questions whose answers are still to come.
pub(crate) struct Underway {
    count: usize,
    messages: Vec<Sent>,
}

/// A message that a server was sent, with where its answers belong.
struct Sent {
    channel: Arc<dyn Channel>,
    positions: Vec<usize>,
    call: Result<Started, ChannelError>,
}

impl Underway {
    /// Waits for all answers, which come in the order of the questions.
    ///
    /// # Errors
    /// The first in that order, when all have answered: what others were asked to change has been changed.
    pub(crate) fn wait(self, operation: &'static str) -> Result<Vec<Response>> {
        let answers = self.wait_each().into_iter();
        answers.map(|answer| answer.map_err(|source| failed(operation, source))).collect()
    }

    /// Waits for all answers, which come in the order of the questions, also where some have failed.
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

/// The error of an operation for which a server has not done what it was asked.
pub(super) fn failed(operation: &'static str, source: ChannelError) -> Error {
    Error::Server { operation, source: Box::new(explained(source)) }
}

/// Adds to a refusal what to do if a server has forgotten a table that a variable is in.
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

/// What one server is asked at once, and where the answers belong.
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

/// The answers to so many requests that went together.
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
        // The error is that of each of them.
        Err(error) => vec![Err(error); count],
        Ok(only) => vec![Ok(only)],
    }
}

/// An answer that is none to the question.
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
        // A small one goes with those before a large one, unless that is of its table; what is of no table keeps its
        // place.
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

    /// A server that nothing can be sent to, and how much time each attempt had.
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
