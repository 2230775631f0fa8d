//! What a server and the one that follows it say to each other. Pure.

use crate::codec::{Body, ImageHead, Malformed, Rest, TensorHead, put_clients, take_clients};
use crate::log::Record;
use bytes::Bytes;
use distribute_net::Message;
use distribute_params::{ClientPushes, TableImage};
use serde::{Deserialize, Serialize};

/// The version of this format.
const VERSION: u8 = 1;

/// Of which server, and of which of its lives, something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Of {
    pub server: u64,
    pub life: u64,
}

/// A change, and the number that it has in the log of its server; 0 where it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub record: Record,
    pub log: u64,
}

/// What a server asks the one that follows it.
#[derive(Debug, PartialEq)]
pub(crate) enum Ask {
    /// What it has of a server.
    Position { server: u64 },
    /// What clients have changed there, and the job.
    Clients(Of),
    /// A table.
    Table(Of, String),
    /// The life goes on as another one.
    Adopt(Of, u64),
    /// A state is sent, in place of what there is: of what clients, and of which job.
    Begin(Of, Vec<ClientPushes>, u64),
    /// One of its tables.
    Put(Of, Box<TableImage>),
    /// That was all of it: how many changes of the life are in it, and the number in the log behind them.
    End(Of, u64, u64),
    /// Changes, of which the first has this number in its life.
    Changes(Of, u64, Vec<Change>),
}

/// What a server has of another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The life that it is of; 0 if it has nothing.
    pub life: u64,
    /// How many changes of that life it has.
    pub changes: u64,
    /// The number in the log behind the last of them.
    pub log: u64,
    /// The names of the tables.
    pub tables: Vec<String>,
}

/// What it answers.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Position(Position),
    /// And the job.
    Clients(Vec<ClientPushes>, u64),
    Table(Box<TableImage>),
    /// It is done.
    Done,
    /// It is not, as it has another life, or lacks something: the state has to be sent anew.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
enum AskHead {
    Position { server: u64 },
    Clients(Of),
    Table(Of, String),
    Adopt(Of, u64),
    Begin(Of, TensorHead, u64),
    Put(Of, Box<ImageHead>),
    End(Of, u64, u64),
    Changes(Of, u64, Vec<ChangeHead>),
}

/// Client, sequence, number in the log, and the lengths of head and body.
#[derive(Debug, Serialize, Deserialize)]
struct ChangeHead(u64, u64, u64, usize, usize);

#[derive(Debug, Serialize, Deserialize)]
enum AnswerHead {
    Position(Position),
    Clients(TensorHead, u64),
    Table(Box<ImageHead>),
    Done,
    Refused(String),
}

fn message(head: &impl Serialize, body: Bytes) -> Result<Message, Malformed> {
    let head =
        postcard::to_extend(head, vec![VERSION]).map_err(|_| Malformed("a head that cannot be written"))?;
    Ok(Message::new(head, body))
}

fn head<'a, T: Deserialize<'a>>(from: &'a [u8]) -> Result<T, Malformed> {
    match from.split_first() {
        Some((&VERSION, rest)) => {
            postcard::from_bytes(rest).map_err(|_| Malformed("a head that cannot be read"))
        }
        _ => Err(Malformed("another version than that of this server")),
    }
}

fn ended<T>(found: T, rest: &Rest) -> Result<T, Malformed> {
    if rest.0.is_empty() { Ok(found) } else { Err(Malformed("more in its body than its head says")) }
}

impl Ask {
    pub fn encode(self) -> Result<Message, Malformed> {
        let mut body = Body::default();
        let head = match self {
            Self::Position { server } => AskHead::Position { server },
            Self::Clients(of) => AskHead::Clients(of),
            Self::Table(of, name) => AskHead::Table(of, name),
            Self::Adopt(of, life) => AskHead::Adopt(of, life),
            Self::Begin(of, clients, job) => AskHead::Begin(of, put_clients(clients, &mut body)?, job),
            Self::Put(of, image) => AskHead::Put(of, Box::new(ImageHead::of(*image, &mut body)?)),
            Self::End(of, changes, log) => AskHead::End(of, changes, log),
            Self::Changes(of, first, changes) => {
                let heads = changes.iter().map(|Change { record, log }| {
                    ChangeHead(record.client, record.sequence, *log, record.head.len(), record.body.len())
                });
                let head = AskHead::Changes(of, first, heads.collect());
                let parts = || changes.iter().flat_map(|change| [&change.record.head, &change.record.body]);
                let mut all = Vec::with_capacity(parts().map(Bytes::len).sum());
                parts().for_each(|part| all.extend_from_slice(part));
                return message(&head, all.into());
            }
        };
        message(&head, body.finish())
    }

    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let mut body = Rest(message.body);
        let ask = match head(&message.head)? {
            AskHead::Position { server } => Self::Position { server },
            AskHead::Clients(of) => Self::Clients(of),
            AskHead::Table(of, name) => Self::Table(of, name),
            AskHead::Adopt(of, life) => Self::Adopt(of, life),
            AskHead::Begin(of, clients, job) => Self::Begin(of, take_clients(clients, &mut body)?, job),
            AskHead::Put(of, image) => Self::Put(of, Box::new(image.take(&mut body)?)),
            AskHead::End(of, changes, log) => Self::End(of, changes, log),
            AskHead::Changes(of, first, heads) => {
                let mut changes = Vec::new();
                for ChangeHead(client, sequence, log, head, rest) in heads {
                    if head.checked_add(rest).is_none_or(|bytes| bytes > body.0.len()) {
                        return Err(Malformed("a change that is cut off"));
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

impl Answer {
    pub fn encode(self) -> Result<Message, Malformed> {
        let mut body = Body::default();
        let head = match self {
            Self::Position(position) => AnswerHead::Position(position),
            Self::Clients(clients, job) => AnswerHead::Clients(put_clients(clients, &mut body)?, job),
            Self::Table(image) => AnswerHead::Table(Box::new(ImageHead::of(*image, &mut body)?)),
            Self::Done => AnswerHead::Done,
            Self::Refused(text) => AnswerHead::Refused(text),
        };
        message(&head, body.finish())
    }

    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let mut body = Rest(message.body);
        let answer = match head(&message.head)? {
            AnswerHead::Position(position) => Self::Position(position),
            AnswerHead::Clients(clients, job) => Self::Clients(take_clients(clients, &mut body)?, job),
            AnswerHead::Table(image) => Self::Table(Box::new(image.take(&mut body)?)),
            AnswerHead::Done => Self::Done,
            AnswerHead::Refused(text) => Self::Refused(text),
        };
        ended(answer, &body)
    }
}
