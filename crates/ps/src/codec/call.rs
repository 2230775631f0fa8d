//! A call: who asks, and one request or several.

use super::request::{put_request, take_request};
use super::tensor::{Body, Malformed, Rest};
use super::{VERSION, put_head, take_head};
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use distribute_net::Message;
use distribute_params::Request;
use serde::{Deserialize, Serialize};

/// So many requests a call may have: what is made of a head is larger than the head.
pub(crate) const MOST_REQUESTS: usize = 16_384;

/// The position of a flag: whether the client has had a change acknowledged by the server. It comes after the version, so that it can
/// be set in a call that is sent again.
const ACKNOWLEDGED: usize = 1;

/// What stands before the requests.
#[derive(Debug, Serialize, Deserialize)]
struct CallHead {
    client: u64,
    first: u64,
    half: bool,
    batch: bool,
}

/// A call that has come.
#[derive(Debug)]
pub(crate) struct Call {
    /// Whether the server has acknowledged a change of the client.
    pub acknowledged: bool,
    /// What the client calls itself.
    pub client: u64,
    /// The number of the first of its changes; the others have those that follow.
    pub first: u64,
    /// Whether it wants rows of `float32` as `bfloat16`.
    pub half: bool,
    /// Whether it was a batch, and so the answer is.
    pub batch: bool,
    /// What it asks.
    pub requests: Vec<Sent>,
}

/// A request, and the bytes that it was sent as, by which it can be written to a log.
#[derive(Debug)]
pub(crate) struct Sent {
    pub request: Request,
    pub head: Bytes,
    pub body: Bytes,
}

/// A request as bytes, all but who asks.
#[derive(Debug)]
pub(crate) struct Encoded {
    acknowledged: bool,
    batch: bool,
    half: bool,
    heads: Vec<u8>,
    body: Bytes,
}

impl Encoded {
    /// The bytes of a request; `half` sends gradients of `float32` as `bfloat16`, and asks for rows in this way.
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

    /// Returns the same call of a client that has had a change acknowledged, or not.
    pub fn acknowledged(self, acknowledged: bool) -> Self {
        Self { acknowledged, ..self }
    }

    /// How many bytes it is.
    pub fn bytes(&self) -> u64 {
        (self.heads.len() + self.body.len()) as u64
    }

    /// The message of a client whose changes begin with number `first`.
    pub fn message(self, client: u64, first: u64) -> Result<Message, Malformed> {
        let Self { acknowledged, batch, half, heads, body } = self;
        let mut head =
            put_head(&CallHead { client, first, half, batch }, vec![VERSION, acknowledged.into()])?;
        head.extend_from_slice(&heads);
        Ok(Message::new(head, body))
    }
}

/// Sets in the message of a call that its client has had a change acknowledged since it was made.
pub(crate) fn acknowledge(message: &mut Message) {
    if message.head.get(ACKNOWLEDGED) == Some(&0) {
        let mut head = message.head.to_vec();
        head[ACKNOWLEDGED] = 1;
        message.head = head.into();
    }
}

impl Call {
    /// The call in a message.
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
    /// The request of a head and a body alone, as a log has it.
    pub fn decode(mut head: Bytes, mut body: Bytes) -> Result<Self, Malformed> {
        let budget = Budget::of(head.len());
        let sent = Self::first(&mut head, &mut body, &budget)?;
        if head.is_empty() && body.is_empty() { Ok(sent) } else { Err(Malformed("more than a request")) }
    }

    /// The first request of these, which it is cut off from.
    fn first(heads: &mut Bytes, bodies: &mut Bytes, budget: &Budget) -> Result<Self, Malformed> {
        let mut rest = Rest(bodies.clone());
        let (request, others) = take_request(heads, &mut rest, budget)?;
        let head_bytes = heads.len() - others.len();
        let (head, body) = (heads.split_to(head_bytes), bodies.split_to(bodies.len() - rest.0.len()));
        Ok(Self { request, head, body })
    }
}
