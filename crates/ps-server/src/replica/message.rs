//! The messages between a server and its follower.

use crate::codec::{Body, ImageHead, Malformed, Rest, TensorHead, put_clients, take_clients};
use crate::log::Record;
use crate::store::{Change, StateHeader};
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use distribute_net::Message;
use distribute_ps_tables::TableImage;
use serde::{Deserialize, Serialize};

/// The version of the format of messages between a server and its follower.
const VERSION: u8 = 3;

/// A server, and the number of its life: see the [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerLife {
    pub server: u64,
    pub life: u64,
}

/// A request of a server to its follower. Only [`Copy`](FollowerRequest::Copy) is a request of a follower.
#[derive(Debug, PartialEq)]
pub(crate) enum FollowerRequest {
    /// The follower has started as process `run`, and has no copy of the server's state.
    Copy { server: u64, run: u64 },
    /// Return the position of the copy.
    Position { server: u64 },
    /// Return the state without the tables.
    StateHeader(ServerLife),
    /// Return the table with this name.
    Table(ServerLife, String),
    /// Change the life of the copy to the given number.
    Adopt(ServerLife, u64),
    /// Begin to receive a state, which replaces the current one.
    Begin(ServerLife, Box<StateHeader>),
    /// Receive one of the state's tables.
    Put(ServerLife, Box<TableImage>),
    /// Complete the state. The fields are the life, the number of its changes that are in the state, and the number of
    /// the log's next record.
    End(ServerLife, u64, u64),
    /// Apply changes. The fields are the life, the number of the first change in that life, and the changes.
    Changes(ServerLife, u64, Vec<Change>),
}

/// The position of a follower's copy of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The random number of the follower's process.
    pub run: u64,
    /// The life of the copy; 0 if there is none.
    pub life: u64,
    /// The number of changes of that life in the copy.
    pub changes: u64,
    /// The number of the log's next record after these changes.
    pub log: u64,
    /// The names of the copy's tables.
    pub tables: Vec<String>,
    /// Whether a change could not be applied, so that the state must be sent again.
    pub broken: bool,
    /// The life of a partially received state, and the names of all tables in it.
    pub incomplete: Option<(u64, Vec<String>)>,
}

/// A response to a request.
#[derive(Debug, PartialEq)]
pub(crate) enum FollowerResponse {
    Position(Position),
    StateHeader(Box<StateHeader>),
    Table(Box<TableImage>),
    /// The request was executed.
    Done,
    /// The request was rejected for the given reason, for example because the follower has no complete copy of this
    /// life.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct StateHeaderHead {
    clients: TensorHead,
    job: u64,
    tables: Vec<String>,
    lost: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum FollowerRequestHead {
    Copy { server: u64, run: u64 },
    Position { server: u64 },
    StateHeader(ServerLife),
    Table(ServerLife, String),
    Adopt(ServerLife, u64),
    Begin(ServerLife, Box<StateHeaderHead>),
    Put(ServerLife, Box<ImageHead>),
    End(ServerLife, u64, u64),
    Changes(ServerLife, u64, Vec<ChangeHead>),
}

/// The client of a change, its sequence number, its number in the log, and the lengths of its head and body.
#[derive(Debug, Serialize, Deserialize)]
struct ChangeHead(u64, u64, u64, usize, usize);

#[derive(Debug, Serialize, Deserialize)]
enum FollowerResponseHead {
    Position(Position),
    StateHeader(Box<StateHeaderHead>),
    Table(Box<ImageHead>),
    Done,
    Refused(String),
}

fn message(head: &impl Serialize, body: Bytes) -> Result<Message, Malformed> {
    let head =
        postcard::to_extend(head, vec![VERSION]).map_err(|_| Malformed("a head that cannot be encoded"))?;
    Ok(Message::new(head, body))
}

fn head<'a, T: Deserialize<'a>>(message: &'a Message) -> Result<T, Malformed> {
    match message.head.split_first() {
        Some((&VERSION, rest)) => {
            // INV-28
            let budget = Budget::of(message.head.len() + message.body.len());
            let mut from = postcard::Deserializer::from_bytes(rest);
            budget.decode(&mut from).map_err(|_| Malformed("a head that cannot be decoded"))
        }
        _ => Err(Malformed("another version than that of this server")),
    }
}

fn ended<T>(found: T, rest: &Rest) -> Result<T, Malformed> {
    if rest.0.is_empty() { Ok(found) } else { Err(Malformed("more in its body than its head announces")) }
}

impl StateHeaderHead {
    fn of(header: StateHeader, body: &mut Body) -> Result<Box<Self>, Malformed> {
        let StateHeader { clients, job, tables, lost } = header;
        Ok(Box::new(Self { clients: put_clients(clients, body)?, job, tables, lost }))
    }

    fn take(self, body: &mut Rest) -> Result<Box<StateHeader>, Malformed> {
        let Self { clients, job, tables, lost } = self;
        Ok(Box::new(StateHeader { clients: take_clients(clients, body)?, job, tables, lost }))
    }
}

impl FollowerRequest {
    /// Returns the number of the server whose copy the request concerns.
    pub fn server(&self) -> u64 {
        match self {
            Self::Copy { server, .. } | Self::Position { server } => *server,
            Self::StateHeader(of)
            | Self::Table(of, _)
            | Self::Adopt(of, _)
            | Self::Begin(of, _)
            | Self::Put(of, _)
            | Self::End(of, ..)
            | Self::Changes(of, ..) => of.server,
        }
    }

    pub fn encode(self) -> Result<Message, Malformed> {
        let mut body = Body::default();
        let head = match self {
            Self::Copy { server, run } => FollowerRequestHead::Copy { server, run },
            Self::Position { server } => FollowerRequestHead::Position { server },
            Self::StateHeader(of) => FollowerRequestHead::StateHeader(of),
            Self::Table(of, name) => FollowerRequestHead::Table(of, name),
            Self::Adopt(of, life) => FollowerRequestHead::Adopt(of, life),
            Self::Begin(of, header) => {
                FollowerRequestHead::Begin(of, StateHeaderHead::of(*header, &mut body)?)
            }
            Self::Put(of, image) => FollowerRequestHead::Put(of, Box::new(ImageHead::of(*image, &mut body)?)),
            Self::End(of, changes, log) => FollowerRequestHead::End(of, changes, log),
            Self::Changes(of, first, changes) => {
                let heads = changes.iter().map(|Change { record, log }| {
                    ChangeHead(record.client, record.sequence, *log, record.head.len(), record.body.len())
                });
                let head = FollowerRequestHead::Changes(of, first, heads.collect());
                let parts = || changes.iter().flat_map(|change| [&change.record.head, &change.record.body]);
                let mut all = Vec::with_capacity(parts().map(Bytes::len).sum());
                parts().for_each(|part| all.extend_from_slice(part));
                return message(&head, all.into());
            }
        };
        message(&head, body.finish())
    }

    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let mut body = Rest(message.body.clone());
        let ask = match head(&message)? {
            FollowerRequestHead::Copy { server, run } => Self::Copy { server, run },
            FollowerRequestHead::Position { server } => Self::Position { server },
            FollowerRequestHead::StateHeader(of) => Self::StateHeader(of),
            FollowerRequestHead::Table(of, name) => Self::Table(of, name),
            FollowerRequestHead::Adopt(of, life) => Self::Adopt(of, life),
            FollowerRequestHead::Begin(of, header) => Self::Begin(of, header.take(&mut body)?),
            FollowerRequestHead::Put(of, image) => Self::Put(of, Box::new(image.take(&mut body)?)),
            FollowerRequestHead::End(of, changes, log) => Self::End(of, changes, log),
            FollowerRequestHead::Changes(of, first, heads) => {
                let mut changes = Vec::new();
                for ChangeHead(client, sequence, log, head, rest) in heads {
                    if head.checked_add(rest).is_none_or(|bytes| bytes > body.0.len()) {
                        return Err(Malformed("a change that is truncated"));
                    }
                    let (head, body) = (body.0.split_to(head), body.0.split_to(rest));
                    changes.push(Change { record: Record { client, sequence, head, body }, log });
                }
                Self::Changes(of, first, changes)
            }
        };
        ended(ask, &body)
    }
}

impl FollowerResponse {
    pub fn encode(self) -> Result<Message, Malformed> {
        let mut body = Body::default();
        let head = match self {
            Self::Position(position) => FollowerResponseHead::Position(position),
            Self::StateHeader(header) => {
                FollowerResponseHead::StateHeader(StateHeaderHead::of(*header, &mut body)?)
            }
            Self::Table(image) => FollowerResponseHead::Table(Box::new(ImageHead::of(*image, &mut body)?)),
            Self::Done => FollowerResponseHead::Done,
            Self::Refused(text) => FollowerResponseHead::Refused(text),
        };
        message(&head, body.finish())
    }

    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let mut body = Rest(message.body.clone());
        let answer = match head(&message)? {
            FollowerResponseHead::Position(position) => Self::Position(position),
            FollowerResponseHead::StateHeader(header) => Self::StateHeader(header.take(&mut body)?),
            FollowerResponseHead::Table(image) => Self::Table(Box::new(image.take(&mut body)?)),
            FollowerResponseHead::Done => Self::Done,
            FollowerResponseHead::Refused(text) => Self::Refused(text),
        };
        ended(answer, &body)
    }
}
