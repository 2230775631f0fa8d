//! A call: its client, and one or more requests.

use super::request::{put_request, take_request};
use super::tensor::{Body, Malformed, Rest};
use super::{VERSION, put_head, take_head};
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use distribute_net::Message;
use distribute_ps_tables::Request;
use serde::{Deserialize, Serialize};

/// The maximum number of requests of a call, because a decoded head is larger than its encoding.
pub(crate) const MOST_REQUESTS: usize = 16_384;

/// The position of the flag whether the server has acknowledged a change of the client. It comes after the
/// version, so that it can be set in a call that is sent again.
const ACKNOWLEDGED: usize = 1;

/// The part of a head before the requests.
#[derive(Debug, Serialize, Deserialize)]
struct CallHead {
    client: u64,
    first: u64,
    half: bool,
    batch: bool,
}

/// A received call.
#[derive(Debug)]
pub(crate) struct Call {
    /// Whether the server has acknowledged a change of the client.
    pub acknowledged: bool,
    /// The number by which the client identifies itself.
    pub client: u64,
    /// The number of the first change. The others have consecutive numbers.
    pub first: u64,
    /// Whether the client requests rows of `float32` as `bfloat16`.
    pub half: bool,
    /// Whether the request, and therefore the response, is a batch.
    pub batch: bool,
    /// The requests.
    pub requests: Vec<Sent>,
}

/// A request with its encoding, which is written to a log.
#[derive(Debug)]
pub(crate) struct Sent {
    pub request: Request,
    pub head: Bytes,
    pub body: Bytes,
}

/// An encoded request without its client.
#[derive(Debug)]
pub(crate) struct Encoded {
    acknowledged: bool,
    batch: bool,
    half: bool,
    heads: Vec<u8>,
    body: Bytes,
}

impl Encoded {
    /// Encodes a request. With `half`, gradients of `float32` are sent as `bfloat16`, and rows are requested in
    /// this form.
    pub fn new(request: Request, half: bool) -> Result<Self, Malformed> {
        let batch = matches!(request, Request::Batch(_));
        let requests = match request {
            Request::Batch(all) => all,
            one => vec![one],
        };
        let (mut heads, mut body) = (Vec::new(), Body::default());
        for request in requests {
            heads = put_request(request, half, &mut body, heads)?;
        }
        Ok(Self { acknowledged: false, batch, half, heads, body: body.finish() })
    }

    /// Sets whether the server has acknowledged a change of the client.
    pub fn acknowledged(self, acknowledged: bool) -> Self {
        Self { acknowledged, ..self }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        (self.heads.len() + self.body.len()) as u64
    }

    /// Creates the message of a client whose changes begin with number `first`.
    pub fn message(self, client: u64, first: u64) -> Result<Message, Malformed> {
        let Self { acknowledged, batch, half, heads, body } = self;
        let mut head =
            put_head(&CallHead { client, first, half, batch }, vec![VERSION, acknowledged.into()])?;
        head.extend_from_slice(&heads);
        Ok(Message::new(head, body))
    }
}

/// Marks the message of a call: the server has acknowledged a change of the client since it was created.
pub(crate) fn acknowledge(message: &mut Message) {
    if message.head.get(ACKNOWLEDGED) == Some(&0) {
        let mut head = message.head.to_vec();
        head[ACKNOWLEDGED] = 1;
        message.head = head.into();
    }
}

impl Call {
    /// Decodes the call in a message.
    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let Message { head, body } = message;
        let budget = Budget::of(head.len());
        let (acknowledged, rest) = match head.split_first() {
            Some((&VERSION, [acknowledged @ (0 | 1), rest @ ..])) => (*acknowledged == 1, rest),
            Some((&VERSION, _)) => return Err(Malformed("no word of whether a change was acknowledged")),
            Some(_) => return Err(Malformed("another version than that of this server")),
            None => return Err(Malformed("no head")),
        };
        let (CallHead { client, first, half, batch }, rest) = take_head(rest, &budget)?;
        let (mut heads, mut body) = (head.slice(head.len() - rest.len()..), body);
        let mut requests = Vec::new();
        while !heads.is_empty() {
            if requests.len() >= MOST_REQUESTS {
                return Err(Malformed("too many requests"));
            }
            requests.push(Sent::first(&mut heads, &mut body, &budget)?);
        }
        if !body.is_empty() {
            return Err(Malformed("more in its body than its heads say"));
        }
        if !batch && requests.len() != 1 {
            return Err(Malformed("several requests, and is no batch"));
        }
        Ok(Self { acknowledged, client, first, half, batch, requests })
    }
}

impl Sent {
    /// Decodes a single request, as it is in a log.
    pub fn decode(mut head: Bytes, mut body: Bytes) -> Result<Self, Malformed> {
        let budget = Budget::of(head.len());
        let sent = Self::first(&mut head, &mut body, &budget)?;
        if head.is_empty() && body.is_empty() { Ok(sent) } else { Err(Malformed("more than a request")) }
    }

    /// Decodes the first request, and removes it from `heads` and `bodies`.
    fn first(heads: &mut Bytes, bodies: &mut Bytes, budget: &Budget) -> Result<Self, Malformed> {
        let mut rest = Rest(bodies.clone());
        let (request, others) = take_request(heads, &mut rest, budget)?;
        let head_bytes = heads.len() - others.len();
        let (head, body) = (heads.split_to(head_bytes), bodies.split_to(bodies.len() - rest.0.len()));
        Ok(Self { request, head, body })
    }
}
