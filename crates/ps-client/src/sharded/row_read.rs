//! Reads of rows that are prepared first and sent later, so that those of several tables can be sent together.

use super::super::channels::ServerRequest;
use super::super::{Channels, PendingReplies};
use distribute_base::Result;
use distribute_cluster::Deadline;
use distribute_ps_tables::Response;
use distribute_tensor::HostTensor;
use std::sync::Arc;

/// The rows of requested ids, each only once. There may be other rows as well.
#[derive(Debug)]
pub struct UniqueRows {
    /// The rows, each only once.
    pub rows: HostTensor,
    /// The position in `rows` of each requested id's row.
    pub places: Vec<usize>,
}

impl UniqueRows {
    /// Returns the row of each id, in the order of the ids.
    pub fn in_order(&self) -> Result<HostTensor> {
        Ok(self.rows.take_rows(&self.places)?)
    }

    /// Merges rows that this process has with requested ones. For each id, `places` has the position of its row in
    /// `here`, or `None` for the next of the requested rows. No other rows are copied.
    ///
    /// # Errors
    /// - [`Error::Tensor`](distribute_base::Error::Tensor): the rows differ in dtype or shape, or there is not enough
    ///   memory for the result.
    pub(crate) fn merge(here: &HostTensor, places: &[Option<usize>], requested: &Self) -> Result<Self> {
        let found: Vec<usize> = places.iter().flatten().copied().collect();
        let rows = HostTensor::take_rows_of(&[(here, &found), (&requested.rows, &requested.places)])?;
        let (mut found, mut others) = (0..found.len(), found.len()..);
        let next = |place: &Option<usize>| if place.is_some() { found.next() } else { others.next() };
        Ok(Self { rows, places: places.iter().filter_map(next).collect() })
    }
}

/// A read of rows of one variable that has not been sent yet.
pub struct RowRead<'a> {
    channels: Arc<Channels>,
    requests: Vec<ServerRequest>,
    /// The deadline of the requests; `None` if they have the timeout of the connections.
    deadline: Option<Deadline>,
    finish: Finish<'a>,
}

/// A function that assembles the rows from the responses to the requests.
type Finish<'a> = Box<dyn FnOnce(Vec<Response>) -> Result<UniqueRows> + Send + 'a>;

impl<'a> RowRead<'a> {
    pub(crate) fn new(
        channels: &Arc<Channels>,
        requests: Vec<ServerRequest>,
        finish: impl FnOnce(Vec<Response>) -> Result<UniqueRows> + Send + 'a,
    ) -> Self {
        Self { channels: channels.clone(), requests, deadline: None, finish: Box::new(finish) }
    }

    /// Sets the deadline of the requests.
    pub(crate) fn by(self, deadline: Deadline) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Returns a read that applies `next` to the rows of this one.
    pub(crate) fn then(self, next: impl FnOnce(UniqueRows) -> Result<UniqueRows> + Send + 'a) -> Self {
        let finish = self.finish;
        Self { finish: Box::new(move |answers| next(finish(answers)?)), ..self }
    }

    /// Returns the requests, which the caller sends, and the function that assembles the rows from the responses.
    pub(crate) fn into_parts(self) -> (Vec<ServerRequest>, ReadParts<'a>) {
        let parts = ReadParts { requests: self.requests.len(), finish: self.finish };
        (self.requests, parts)
    }

    /// Sends the requests, and returns the rows.
    pub(crate) fn send(self, operation: &'static str) -> Result<UniqueRows> {
        let deadline = self.deadline.unwrap_or_else(|| self.channels.deadline());
        (self.finish)(self.channels.start(self.requests, deadline).wait(operation)?)
    }

    /// Sends the requests of all reads at once, and returns the rows of each. A `None` among the reads results in a
    /// `None`. Reads that use other connections than the first read are sent later, one after another. Reads with a
    /// [deadline](Self::by) have messages of their own, with the earliest of their deadlines.
    ///
    /// # Errors
    /// Returns the errors of the servers.
    pub fn together(
        operation: &'static str,
        reads: Vec<Option<RowRead<'a>>>,
    ) -> Result<Vec<Option<UniqueRows>>> {
        let Some(channels) = reads.iter().flatten().map(|read| read.channels.clone()).next() else {
            return Ok(reads.iter().map(|_| None).collect());
        };
        // The requests with the timeout of the connections, and those with deadlines of their own.
        let (mut requests, mut hurried, mut earliest) = (Vec::new(), Vec::new(), None::<Deadline>);
        let mut parts = Vec::with_capacity(reads.len());
        for read in reads {
            parts.push(match read {
                None => Part::Nothing,
                Some(read) if !Arc::ptr_eq(&read.channels, &channels) => Part::Apart(read),
                Some(RowRead { requests: mine, deadline, finish, .. }) => {
                    let count = mine.len();
                    match deadline {
                        None => requests.extend(mine),
                        Some(by) => {
                            let is_earlier = |before: &Deadline| before.remaining() <= by.remaining();
                            earliest = earliest.filter(is_earlier).or(deadline);
                            hurried.extend(mine);
                        }
                    }
                    Part::Together { is_hurried: deadline.is_some(), count, finish }
                }
            });
        }
        let deadline = channels.deadline();
        let hurried = earliest.map(|earliest| channels.start(hurried, earliest));
        let others = channels.start(requests, deadline);
        let hurried = hurried.map(|sent| sent.wait(operation));
        let mut others = others.wait(operation)?.into_iter();
        let mut hurried = hurried.transpose()?.unwrap_or_default().into_iter();
        let rows = |part| match part {
            Part::Nothing => Ok(None),
            Part::Apart(read) => read.send(operation).map(Some),
            Part::Together { is_hurried, count, finish } => {
                let answers = if is_hurried { &mut hurried } else { &mut others };
                finish(answers.take(count).collect()).map(Some)
            }
        };
        parts.into_iter().map(rows).collect()
    }
}

/// A read whose requests are sent together with others by the caller.
pub(crate) struct ReadParts<'a> {
    requests: usize,
    finish: Finish<'a>,
}

impl ReadParts<'_> {
    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Returns the rows in the responses.
    ///
    /// # Errors
    /// Returns an error if a response does not match its request.
    pub(crate) fn finish(self, responses: Vec<Response>) -> Result<UniqueRows> {
        (self.finish)(responses)
    }
}

/// Reads that were sent, and whose responses may not have arrived yet.
pub(crate) struct SentReads {
    replies: PendingReplies,
    /// The number of requests of each read, and the function that assembles its rows.
    finishes: Vec<(usize, Finish<'static>)>,
}

impl SentReads {
    /// Sends the requests of all reads at once over `channels`, without waiting for the responses.
    pub(crate) fn start(channels: &Arc<Channels>, reads: Vec<RowRead<'static>>) -> Self {
        let (mut requests, mut finishes) = (Vec::new(), Vec::with_capacity(reads.len()));
        for read in reads {
            finishes.push((read.requests.len(), read.finish));
            requests.extend(read.requests);
        }
        Self { replies: channels.start(requests, channels.deadline()), finishes }
    }

    /// Waits for all responses. Returns the rows of each read.
    ///
    /// # Errors
    /// Returns the first error of a server, or of a response that does not match its request.
    pub(crate) fn wait(self, operation: &'static str) -> Result<Vec<UniqueRows>> {
        let mut answers = self.replies.wait(operation)?.into_iter();
        let rows = |(count, finish): (usize, Finish<'_>)| finish(answers.by_ref().take(count).collect());
        self.finishes.into_iter().map(rows).collect()
    }
}

/// A read in [`RowRead::together`], and how it was sent.
enum Part<'a> {
    Nothing,
    Apart(RowRead<'a>),
    /// A read whose requests were sent with those of others.
    Together {
        /// Whether the read has a deadline of its own.
        is_hurried: bool,
        /// The number of its requests.
        count: usize,
        /// The function that assembles the rows.
        finish: Finish<'a>,
    },
}
