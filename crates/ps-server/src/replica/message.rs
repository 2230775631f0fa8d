//! The messages between a server and its follower.

use crate::codec::{Body, ImageHead, Malformed, Rest, TensorHead, put_clients, take_clients};
use crate::log::Record;
use crate::store::{Change, Known};
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use distribute_net::Message;
use distribute_ps_tables::TableImage;
use serde::{Deserialize, Serialize};

/// The version of this format.
const VERSION: u8 = 2;

/// A server, and one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Of {
    pub server: u64,
    pub life: u64,
}

/// A request of a server to its follower; [`Copy`](Ask::Copy) is a request of a follower.
#[derive(Debug, PartialEq)]
pub(crate) enum Ask {
    /// The follower of a server has started with this run, and has no copy.
    Copy { server: u64, run: u64 },
    /// Return the position of the copy.
    Position { server: u64 },
    /// Return the state except the tables.
    Known(Of),
    /// Return a table.
    Table(Of, String),
    /// Rename the life of the copy to another one.
    Adopt(Of, u64),
    /// Begin to receive a state, which replaces the present one.
    Begin(Of, Box<Known>),
    /// Receive one of its tables.
    Put(Of, Box<TableImage>),
    /// Complete the state, with the number of changes of the life in it, and the number of the next record of
    /// the log.
    End(Of, u64, u64),
    /// Apply changes, the first of which has this number in its life.
    Changes(Of, u64, Vec<Change>),
}

/// The position of a server's copy of another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// A random number that distinguishes this process from a previous one.
    pub run: u64,
    /// The life of the copy; 0 if there is none.
    pub life: u64,
    /// The number of changes of that life in the copy.
    pub changes: u64,
    /// The number of the log's next record after these changes.
    pub log: u64,
    /// The names of the tables.
    pub tables: Vec<String>,
    /// Whether a change could not be applied, so that the state must be sent again.
    pub broken: bool,
    /// The life of a partially received state, and the names of all of its tables.
    pub incomplete: Option<(u64, Vec<String>)>,
}

/// A response.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Position(Position),
    Known(Box<Known>),
    Table(Box<TableImage>),
    /// The request was executed.
    Done,
    /// The request was refused because the follower has another life, or lacks something: the state must be
    /// sent again.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct KnownHead {
    clients: TensorHead,
    job: u64,
    tables: Vec<String>,
    lost: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum AskHead {
    Copy { server: u64, run: u64 },
    Position { server: u64 },
    Known(Of),
    Table(Of, String),
    Adopt(Of, u64),
    Begin(Of, Box<KnownHead>),
    Put(Of, Box<ImageHead>),
    End(Of, u64, u64),
    Changes(Of, u64, Vec<ChangeHead>),
}

/// The client, the sequence number, the number in the log, and the lengths of head and body.
#[derive(Debug, Serialize, Deserialize)]
struct ChangeHead(u64, u64, u64, usize, usize);

#[derive(Debug, Serialize, Deserialize)]
enum AnswerHead {
    Position(Position),
    Known(Box<KnownHead>),
    Table(Box<ImageHead>),
    Done,
    Refused(String),
}

fn message(head: &impl Serialize, body: Bytes) -> Result<Message, Malformed> {
    let head =
        postcard::to_extend(head, vec![VERSION]).map_err(|_| Malformed("a head that cannot be written"))?;
    Ok(Message::new(head, body))
}

fn head<'a, T: Deserialize<'a>>(message: &'a Message) -> Result<T, Malformed> {
    match message.head.split_first() {
        Some((&VERSION, rest)) => {
            // INV-28
            let budget = Budget::of(message.head.len() + message.body.len());
            let mut from = postcard::Deserializer::from_bytes(rest);
            budget.decode(&mut from).map_err(|_| Malformed("a head that cannot be read"))
        }
        _ => Err(Malformed("another version than that of this server")),
    }
}

fn ended<T>(found: T, rest: &Rest) -> Result<T, Malformed> {
    if rest.0.is_empty() { Ok(found) } else { Err(Malformed("more in its body than its head says")) }
}

impl KnownHead {
    fn of(known: Known, body: &mut Body) -> Result<Box<Self>, Malformed> {
        let Known { clients, job, tables, lost } = known;
        Ok(Box::new(Self { clients: put_clients(clients, body)?, job, tables, lost }))
    }

    fn take(self, body: &mut Rest) -> Result<Box<Known>, Malformed> {
        let Self { clients, job, tables, lost } = self;
        Ok(Box::new(Known { clients: take_clients(clients, body)?, job, tables, lost }))
    }
}

impl Ask {
    /// Returns the server that the request is about.
    pub fn server(&self) -> u64 {
        match self {
            Self::Copy { server, .. } | Self::Position { server } => *server,
            Self::Known(of)
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
            Self::Copy { server, run } => AskHead::Copy { server, run },
            Self::Position { server } => AskHead::Position { server },
            Self::Known(of) => AskHead::Known(of),
            Self::Table(of, name) => AskHead::Table(of, name),
            Self::Adopt(of, life) => AskHead::Adopt(of, life),
            Self::Begin(of, known) => AskHead::Begin(of, KnownHead::of(*known, &mut body)?),
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
        let mut body = Rest(message.body.clone());
        let ask = match head(&message)? {
            AskHead::Copy { server, run } => Self::Copy { server, run },
            AskHead::Position { server } => Self::Position { server },
            AskHead::Known(of) => Self::Known(of),
            AskHead::Table(of, name) => Self::Table(of, name),
            AskHead::Adopt(of, life) => Self::Adopt(of, life),
            AskHead::Begin(of, known) => Self::Begin(of, known.take(&mut body)?),
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
            Self::Known(known) => AnswerHead::Known(KnownHead::of(*known, &mut body)?),
            Self::Table(image) => AnswerHead::Table(Box::new(ImageHead::of(*image, &mut body)?)),
            Self::Done => AnswerHead::Done,
            Self::Refused(text) => AnswerHead::Refused(text),
        };
        message(&head, body.finish())
    }

    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let mut body = Rest(message.body.clone());
        let answer = match head(&message)? {
            AnswerHead::Position(position) => Self::Position(position),
            AnswerHead::Known(known) => Self::Known(known.take(&mut body)?),
            AnswerHead::Table(image) => Self::Table(Box::new(image.take(&mut body)?)),
            AnswerHead::Done => Self::Done,
            AnswerHead::Refused(text) => Self::Refused(text),
        };
        ended(answer, &body)
    }
}
