//! [`Channels`]: the connections to all parameter servers, which send requests to several servers at once.

use super::closure_sequence::ClosureSequence;
use super::lock_step::LockStep;
use super::messages::{Message, batch, messages_to_servers};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::Deadline;
use distribute_ps_tables::{Channel, ChannelError, Refusal, RefusalKind, Request, Response, Started};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The connections to all servers, by the index of the server.
pub struct Channels {
    channels: Vec<Arc<dyn Channel>>,
    timeout: Duration,
    /// The running closure that makes the changes, if there is one.
    closure: Mutex<Option<ClosureSequence>>,
    /// The division of changes among the workers, if all of them make the same changes; `None` if this process sends
    /// all its changes itself.
    lock_step: Option<LockStep>,
}

/// A request to one server.
#[derive(Clone, Debug)]
pub struct ServerRequest {
    /// The index of the server.
    pub server: usize,
    /// The request to send.
    pub request: Request,
    /// The approximate size in bytes of the request, or of its response if that is larger.
    pub bytes: usize,
}

impl Channels {
    pub(crate) fn new(channels: Vec<Arc<dyn Channel>>, timeout: Duration) -> Self {
        Self { channels, timeout, closure: Mutex::new(None), lock_step: None }
    }

    /// Declares that all workers make the same changes in lock step. Each change is then sent by one of them.
    pub(crate) fn in_lock_step(self, lock_step: LockStep) -> Self {
        Self { lock_step: Some(lock_step), ..self }
    }

    pub(crate) fn lock_step(&self) -> Option<LockStep> {
        self.lock_step
    }

    /// Returns `true` if this worker sends the changes of the tables on a server.
    pub(crate) fn sends_changes(&self, server: usize) -> bool {
        self.lock_step.is_none_or(|lock_step| lock_step.is_sender(server))
    }

    /// Assigns later changes to `closure`. `None` ends the running closure; its steps that were not committed no longer
    /// count. Returns `false` and does nothing if another closure is running.
    pub(super) fn run(&self, closure: Option<ClosureSequence>) -> bool {
        let mut running = lock(&self.closure);
        let can = running.is_none() || closure.is_none();
        if can {
            *running = closure;
        }
        can
    }

    /// Records that `finished`, the step counter of an optimizer, has counted a step, so that the running closure can
    /// subtract it.
    pub(super) fn record_step(&self, finished: &Arc<AtomicU64>) {
        lock(&self.closure).iter_mut().for_each(|closure| closure.record_step(finished));
    }

    /// Makes the steps of the running closure permanent, because it has succeeded.
    pub(super) fn commit_steps(&self) {
        lock(&self.closure).iter_mut().for_each(ClosureSequence::commit_steps);
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        self.channels.iter().for_each(|channel| channel.close());
    }

    pub(crate) fn count(&self) -> usize {
        self.channels.len()
    }

    /// Sends the same request to all servers at once. Returns the response of each server, or an error if the request
    /// failed or the server did not answer within `timeout`.
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

    /// Sends all requests at once, each to its server, and waits for all responses. Requests for the same table are
    /// executed in the given order.
    ///
    /// # Errors
    /// Returns the errors of [`PendingReplies::wait`].
    pub fn ask(&self, operation: &'static str, requests: Vec<ServerRequest>) -> Result<Vec<Response>> {
        self.start(requests, self.deadline()).wait(operation)
    }

    /// Returns the deadline of requests that are sent now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Sends all requests at once, each to its server, without waiting for the responses. Requests for the same table
    /// are executed in the given order. All requests have the same deadline. After a request could not be sent to a
    /// server, nothing more is sent to that server.
    pub(crate) fn start(&self, mut requests: Vec<ServerRequest>, deadline: Deadline) -> PendingReplies {
        self.number_changes(&mut requests);
        self.start_numbered(requests, deadline)
    }

    // INV-59
    /// Numbers the changes of the running closure, if there is one. To send them again under the same numbers, call
    /// [`start_numbered`](Self::start_numbered).
    pub(super) fn number_changes(&self, requests: &mut [ServerRequest]) {
        lock(&self.closure).iter_mut().for_each(|closure| {
            closure.number_changes(requests.iter_mut().map(|ask| (ask.server, &mut ask.request)));
        });
    }

    /// Equivalent to [`start`](Self::start), for requests whose changes were already numbered.
    pub(super) fn start_numbered(&self, requests: Vec<ServerRequest>, deadline: Deadline) -> PendingReplies {
        let answers = self.answers_of_others(&requests);
        let unanswered =
            requests.into_iter().enumerate().filter(|(position, _)| answers[*position].is_none());
        let messages = messages_to_servers(self.count(), unanswered);
        let to = self.channels.iter().zip(messages);
        let (here, elsewhere): (Vec<_>, Vec<_>) = to.partition(|(channel, _)| channel.is_local());
        // Other processes work at the same time as this thread, which executes the requests to its own tables.
        let mut sent = in_turn(elsewhere, deadline);
        sent.extend(in_turn(here, deadline));
        PendingReplies { answers, messages: sent }
    }

    /// Returns a substitute for the response to each request that another worker sends, and `None` for each request
    /// that this worker sends.
    fn answers_of_others(&self, requests: &[ServerRequest]) -> Vec<Option<Answer>> {
        let of_other = |ServerRequest { server, request, .. }: &ServerRequest| {
            let is_sent = self.lock_step.is_none_or(|lock_step| lock_step.sends(*server, request));
            (!is_sent).then(|| Ok(Response::repeated(request)))
        };
        requests.iter().map(of_other).collect()
    }
}

/// Sends the messages to each channel. Channels take turns, so that no server waits until another one has room for all
/// its messages. After a message could not be sent, nothing more is sent over its channel.
fn in_turn(messages: Vec<(&Arc<dyn Channel>, Vec<Message>)>, deadline: Deadline) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut servers: Vec<_> = messages
        .into_iter()
        .map(|(channel, messages)| (channel, messages.into_iter(), None::<ChannelError>))
        .collect();
    loop {
        let before = sent.len();
        for (channel, messages, failed) in &mut servers {
            let Some(Message { positions, requests, .. }) = messages.next() else { continue };
            let call = match failed {
                Some(error) => Err(error.clone()),
                None => channel.start(batch(requests), deadline.remaining()),
            };
            *failed = call.as_ref().err().cloned();
            sent.push(Sent { channel: Arc::clone(channel), positions, call });
        }
        if sent.len() == before {
            return sent;
        }
    }
}

/// The response to a request, or the reason why there is none.
pub(super) type Answer = Result<Response, ChannelError>;

/// Requests that have been sent and whose responses may not have arrived yet.
pub(crate) struct PendingReplies {
    /// The substitutes for responses to requests that other workers send; `None` for each request that this worker
    /// sends.
    answers: Vec<Option<Answer>>,
    messages: Vec<Sent>,
}

/// A message that was sent, with the positions of its responses among all responses.
struct Sent {
    channel: Arc<dyn Channel>,
    positions: Vec<usize>,
    call: Result<Started, ChannelError>,
}

impl PendingReplies {
    /// Waits for all responses, and returns them in the order of the requests.
    ///
    /// # Errors
    /// Returns the first error in this order, after all servers have answered or failed. The other requests may have
    /// been executed.
    pub(crate) fn wait(self, operation: &'static str) -> Result<Vec<Response>> {
        let answers = self.wait_each().into_iter();
        answers.map(|answer| answer.map_err(|source| failed(operation, source))).collect()
    }

    /// Waits for all responses. Returns each response or its error, in the order of the requests.
    pub(super) fn wait_each(self) -> Vec<Answer> {
        let mut answers = self.answers;
        for Sent { channel, positions, call } in self.messages {
            let answer = call.and_then(Started::wait);
            for (position, answer) in positions.iter().zip(unbatch(&*channel, answer, positions.len())) {
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

/// Returns the error of an operation of which a request has failed.
pub(super) fn failed(operation: &'static str, source: ChannelError) -> Error {
    Error::Server { operation, source: Box::new(with_advice(source)) }
}

/// Adds advice to the error if a server has lost the table of a variable.
fn with_advice(error: ChannelError) -> ChannelError {
    match error {
        ChannelError::Refused { server, refusal } if refusal.kind == RefusalKind::NoSuchTable => {
            let text = format!(
                "{}; it restarted without its tables: it has no folder, or the folder was emptied. Give \
                 each server a folder for its tables, and start the chief again from a checkpoint",
                refusal.text
            );
            ChannelError::Refused { server, refusal: Refusal::new(refusal.kind, text) }
        }
        other => other,
    }
}

/// Splits the response to a message into the responses to its `count` requests. If the message failed, or the response
/// has another number of parts, each request gets an error.
fn unbatch(
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

/// Returns the error for a response of server `server` that does not match its request.
pub fn unexpected(operation: &'static str, server: usize, found: &Response) -> Error {
    let (server, request, found) = (format!("ps {server}"), operation.to_string(), found.name().to_string());
    Error::Server { operation, source: Box::new(ChannelError::Answer { server, request, found }) }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channels({} servers)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::{LocalChannel, TableSpec, Tables};
    use distribute_tensor::HostTensor;

    fn channels(servers: usize) -> Channels {
        let channel =
            |server| Arc::new(LocalChannel::new(server, Arc::new(Tables::new()))) as Arc<dyn Channel>;
        Channels::new((0..servers).map(channel).collect(), Duration::from_secs(60))
    }

    fn create(server: usize, name: &str, bytes: usize) -> ServerRequest {
        let spec = TableSpec::values(name, HostTensor::scalar(server as f32));
        ServerRequest { server, request: Request::Create(spec), bytes }
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
        let channels = Channels::new(vec![away.clone(), local], timeout);
        let large = |server, name| create(server, name, usize::MAX);
        let requests = vec![large(0, "a"), large(0, "b"), large(1, "c"), large(0, "d"), large(1, "e")];
        let error = channels.ask("create", requests).unwrap_err().to_string();
        assert!(error.contains("ps 0") && error.contains("table a"), "{error}");
        let attempts = lock(&away.0).clone();
        assert!(attempts.len() == 1 && attempts[0] <= timeout, "{attempts:?}");
        assert_eq!(here.names(), ["c", "e"]);
    }

    /// A server that records that it was asked, and answers as the tables of this process do.
    #[derive(Debug)]
    struct Recorded {
        asked: Arc<std::sync::Mutex<Vec<usize>>>,
        server: usize,
        local: Option<LocalChannel>,
    }

    impl Channel for Recorded {
        fn server(&self) -> &str {
            "ps"
        }

        fn is_local(&self) -> bool {
            self.local.as_ref().is_some_and(Channel::is_local)
        }

        fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
            lock(&self.asked).push(self.server);
            match &self.local {
                Some(local) => local.start(request, timeout),
                None => LocalChannel::new(self.server, Arc::default()).start(request, timeout),
            }
        }
    }

    #[test]
    fn other_processes_are_asked_before_the_tables_of_this_one() {
        let asked = Arc::<std::sync::Mutex<Vec<usize>>>::default();
        let channel = |server| {
            let local = (server == 0).then(|| LocalChannel::new(server, Arc::default()));
            Arc::new(Recorded { asked: asked.clone(), server, local }) as Arc<dyn Channel>
        };
        let channels = Channels::new((0..3).map(channel).collect(), Duration::from_secs(60));
        let large = |server, name| create(server, name, usize::MAX);
        let requests = vec![large(0, "a"), large(1, "b"), large(0, "c"), large(2, "d"), large(1, "e")];
        assert_eq!(channels.ask("create", requests).unwrap().len(), 5);
        assert_eq!(*lock(&asked), [1, 2, 1, 0, 0]);
    }

    #[test]
    fn responses_are_in_the_order_of_the_requests_and_the_first_error_is_returned() {
        let channels = channels(2);
        let made =
            channels.ask("create", vec![create(1, "a", 1), create(0, "b", 1), create(1, "c", 1)]).unwrap();
        assert_eq!(
            made,
            [
                Response::Created { new: true },
                Response::Created { new: true },
                Response::Created { new: true }
            ]
        );
        let read = |server, table: &str| {
            let request = Request::ReadRows { table: table.into(), rows: vec![0] };
            ServerRequest { server, request, bytes: 4 }
        };
        let rows = channels.ask("read", vec![read(1, "a"), read(0, "b"), read(1, "c")]).unwrap();
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
            channels.ask("read", vec![read(1, "a"), read(1, "x"), read(0, "y")]).unwrap_err().to_string();
        assert!(error.contains("ps 1") && error.contains('x') && !error.contains('y'), "{error}");
        assert!(channels.ask("read", vec![read(7, "a")]).is_err());
        assert!(channels.ask("nothing", Vec::new()).unwrap().is_empty());
    }
}
