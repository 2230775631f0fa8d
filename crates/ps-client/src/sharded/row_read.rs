//! Reads of rows that are prepared first and sent later, so that those of several tables can be sent together.

use super::super::channels::ServerRequest;
use super::super::{Channels, PendingReplies};
use distribute_base::Result;
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
}

/// A read of rows of one variable that has not been sent yet.
pub struct RowRead<'a> {
    channels: Arc<Channels>,
    requests: Vec<ServerRequest>,
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
        Self { channels: channels.clone(), requests, finish: Box::new(finish) }
    }

    /// Returns a read that applies `next` to the rows of this one.
    pub(crate) fn then(self, next: impl FnOnce(UniqueRows) -> Result<UniqueRows> + Send + 'a) -> Self {
        let finish = self.finish;
        Self { finish: Box::new(move |answers| next(finish(answers)?)), ..self }
    }

    /// Sends the requests, and returns the rows.
    pub(crate) fn send(self, operation: &'static str) -> Result<UniqueRows> {
        (self.finish)(self.channels.ask(operation, self.requests)?)
    }

    /// Sends the requests of all reads at once, and returns the rows of each; `None` for a `None` among the reads.
    /// Reads over other connections than those of the first read are sent afterwards, one after another.
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
        let (mut requests, mut finishes) = (Vec::new(), Vec::with_capacity(reads.len()));
        for read in reads {
            finishes.push(match read {
                Some(read) if !Arc::ptr_eq(&read.channels, &channels) => Part::Apart(read),
                Some(read) => {
                    let count = read.requests.len();
                    requests.extend(read.requests);
                    Part::Together(count, read.finish)
                }
                None => Part::Nothing,
            });
        }
        let mut answers = channels.ask(operation, requests)?.into_iter();
        let rows = |part| match part {
            Part::Nothing => Ok(None),
            Part::Apart(read) => read.send(operation).map(Some),
            Part::Together(count, finish) => finish(answers.by_ref().take(count).collect()).map(Some),
        };
        finishes.into_iter().map(rows).collect()
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
        Self { replies: channels.start(requests), finishes }
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
    /// A read whose requests were sent with those of others: the number of its requests, and the function that
    /// assembles the rows.
    Together(usize, Finish<'a>),
}
