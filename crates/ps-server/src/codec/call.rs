//! The encoding of a call: its client, and one or more requests.

use super::request::{put_request, take_request};
use super::tensor::{Body, Malformed, Rest, wire_code, wire_of};
use super::{OTHER_VERSION, VERSION, put_head, take_head};
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use distribute_net::Message;
use distribute_ps_tables::{Refusal, Request, Response, VersionedValue};
use distribute_tensor::{HostTensor, Wire};
use serde::{Deserialize, Serialize};

/// The maximum number of requests in a call. It limits the memory for a call, because a decoded head is larger than its
/// encoding.
pub(crate) const MAX_REQUESTS: usize = 16_384;

/// The offset in a head of the flag that the server has already acknowledged a change of the client. The flag directly
/// follows the version, so that it can be set in an encoded call.
const ACKNOWLEDGED: usize = 1;

/// The code with which a client requests exact values in their shortest form: in bf16 if no bit is lost, as for tables
/// that are stored in bf16, and otherwise in their own type. It is none of the codes in `WIRES`.
const SHORTEST: u8 = 3;

/// The part of a call's head between the flag and the requests.
#[derive(Debug, Serialize, Deserialize)]
struct CallHead {
    client: u64,
    first: u64,
    wire: u8,
    batch: bool,
}

/// A received call.
#[derive(Debug)]
pub(crate) struct Call {
    /// Whether the server has already acknowledged a change of this client.
    pub acknowledged: bool,
    /// The id of the client.
    pub client: u64,
    /// The sequence number of the first change. The other changes have consecutive numbers.
    pub first: u64,
    /// The type in which the client requests `float32` rows, and `float32` values that it only reads to compute with
    /// them.
    pub wire: Wire,
    /// Whether the response may contain values in bf16 if that loses no bit.
    pub shortest: bool,
    /// Whether the request, and therefore the response, is a batch.
    pub batch: bool,
    /// The requests of the call; more than one only in a batch.
    pub requests: Vec<EncodedRequest>,
}

/// A request together with its encoded bytes, which are written to the log.
#[derive(Debug)]
pub(crate) struct EncodedRequest {
    pub request: Request,
    pub head: Bytes,
    pub body: Bytes,
}

/// An encoded request, before its client and numbers are added.
#[derive(Debug)]
pub(crate) struct Encoded {
    acknowledged: bool,
    batch: bool,
    wire: Wire,
    heads: Vec<u8>,
    body: Bytes,
}

impl Encoded {
    /// Encodes a request. `float32` gradients are sent in the type `wire`, and rows are requested in this type.
    pub fn new(request: Request, wire: Wire) -> Result<Self, Malformed> {
        let batch = matches!(request, Request::Batch(_));
        let requests = match request {
            Request::Batch(all) => all,
            one => vec![one],
        };
        let (mut heads, mut body) = (Vec::new(), Body::default());
        for request in requests {
            heads = put_request(request, wire, &mut body, heads)?;
        }
        Ok(Self { acknowledged: false, batch, wire, heads, body: body.finish() })
    }

    /// Sets the flag that the server has already acknowledged a change of this client.
    pub fn acknowledged(self, acknowledged: bool) -> Self {
        Self { acknowledged, ..self }
    }

    /// Returns the size of the encoding in bytes.
    pub fn bytes(&self) -> u64 {
        (self.heads.len() + self.body.len()) as u64
    }

    /// Creates the message of a call by the client with id `client`. `first` is the sequence number of the call's first
    /// change.
    pub fn message(self, client: u64, first: u64) -> Result<Message, Malformed> {
        let Self { acknowledged, batch, wire, heads, body } = self;
        let wire = if wire == Wire::Full { SHORTEST } else { wire_code(wire) };
        let mut head =
            put_head(&CallHead { client, first, wire, batch }, vec![VERSION, acknowledged.into()])?;
        head.extend_from_slice(&heads);
        Ok(Message::new(head, body))
    }
}

/// Sets the flag that a change of the client was acknowledged, in the message of a call. Use this if the
/// acknowledgement arrives after the message was created.
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
            Some((&VERSION, _)) => return Err(Malformed("no flag whether a change was acknowledged")),
            Some(_) => return Err(OTHER_VERSION),
            None => return Err(Malformed("no head")),
        };
        let (CallHead { client, first, wire, batch }, rest) = take_head(rest, &budget)?;
        let shortest = wire == SHORTEST;
        let wire = if shortest { Wire::Full } else { wire_of(wire)? };
        let (mut heads, mut body) = (head.slice(head.len() - rest.len()..), body);
        let mut requests = Vec::new();
        while !heads.is_empty() {
            if requests.len() >= MAX_REQUESTS {
                return Err(Malformed("too many requests"));
            }
            requests.push(EncodedRequest::first(&mut heads, &mut body, &budget)?);
        }
        if !body.is_empty() {
            return Err(Malformed("more in its body than its heads announce"));
        }
        if !batch && requests.len() != 1 {
            return Err(Malformed("several requests, but is not a batch"));
        }
        Ok(Self { acknowledged, client, first, wire, shortest, batch, requests })
    }

    /// Returns the type in which the tensor of each response is sent.
    pub fn wires(&self, answers: &[Result<Response, Refusal>]) -> Vec<Wire> {
        let wire = |(number, sent): (usize, &EncodedRequest)| match (&sent.request, answers.get(number)) {
            (_, Some(Ok(Response::Rows(value) | Response::Value(VersionedValue { value, .. }))))
                if self.shortest && is_bf16(value) =>
            {
                Wire::Bf16
            }
            (Request::Read { may_round: true, .. } | Request::ReadRows { .. }, _) => self.wire,
            _ => Wire::Full,
        };
        self.requests.iter().enumerate().map(wire).collect()
    }
}

/// Returns whether a `float32` tensor keeps all bits when it is sent in bf16.
fn is_bf16(tensor: &HostTensor) -> bool {
    // Blocks without branches are vectorized, and the first block that is not exact ends the search.
    let is_exact = |block: &[f32]| {
        let lost =
            block.iter().fold(0, |lost, value| lost | value.to_bits() & 0xffff | u32::from(value.is_nan()));
        lost == 0
    };
    tensor.as_slice::<f32>().is_some_and(|values| values.chunks(1024).all(is_exact))
}

impl EncodedRequest {
    /// Decodes a single request from its head and body in a log.
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
