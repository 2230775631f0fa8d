//! The messages of the handshake as bytes.

use super::fields::{Malformed, Reader, Writer};
use super::{Names, Reason, Refusal};
use distribute_cluster::Task;

/// The first bytes of every connection in both directions, before the version.
pub const MAGIC: [u8; 8] = *b"dstrbnet";

/// The maximum length of a handshake message, in bytes.
pub const LONGEST: usize = 1024;

/// The maximum length of a job's name or of an address, in bytes.
pub const MAX_TEXT: usize = 255;

/// The maximum length of a refusal's text, in bytes.
const MAX_REFUSAL: usize = 512;

/// A world that was never complete: a process in its table has received the table, and then lost another worker before
/// it had all of its links. So this world has made no step. Its leader knew of no complete world after `latest`, or had
/// waited for its members in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnformedWorld {
    /// The generation of the world.
    pub generation: u64,
    /// The id of the world's table. Another world of the same generation has another id, and may be complete.
    pub table: u64,
    /// The generation of the latest world before, as its leader knew; 0 if there was none.
    pub latest: u64,
    /// The position of a worker of the world to which the process could not link for some time; `None` if a worker was
    /// lost.
    pub unreached: Option<usize>,
}

impl UnformedWorld {
    /// Returns whether the world of this generation with this table was never complete either.
    pub fn covers(&self, generation: u64, table: u64) -> bool {
        let is_before = self.latest < generation && generation < self.generation;
        is_before || (generation, table) == (self.generation, self.table)
    }

    fn encode(world: Option<Self>, fields: &mut Writer) {
        let Self { generation, table, latest, unreached } =
            world.unwrap_or(Self { generation: 0, table: 0, latest: 0, unreached: None });
        fields.u64(generation);
        fields.u64(table);
        fields.u64(latest);
        fields.u64(unreached.map_or(0, |position| position as u64 + 1));
    }

    fn decode(fields: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let (generation, table, latest) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let world = Self { generation, table, latest, unreached: fields.count()?.checked_sub(1) };
        Ok((world.generation > 0).then_some(world))
    }
}

/// The purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Join a world through its leader. The other workers connect to the worker that joins at `address`.
    Join {
        /// The address, in the form `host:port`.
        address: String,
        /// A world of which the worker knows that it was never complete.
        unformed: Option<UnformedWorld>,
    },
    /// Link two workers that have joined.
    Link,
    /// Wait as a spare, through the leader, until a world needs this process. The other workers then connect to it at
    /// `address`.
    Spare {
        /// The address, in the form `host:port`.
        address: String,
        /// A world of which the process knows that it was never complete.
        unformed: Option<UnformedWorld>,
    },
    /// Call a task, which may belong to a different world or to none.
    Call {
        /// The task that calls.
        from: Task,
        /// The task that the caller intends to reach.
        to: Task,
    },
}

/// The identity of the side that has connected. For a call, which belongs to no world, all numbers and the digest are
/// 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name of the job. It may be empty for a call from a tool that works with jobs of any name.
    pub job: String,
    /// The generation of the world to which the link belongs. For a worker that joins, it is the generation of the last
    /// world of which it was a member; 0 if there was none. For a spare, it is the generation of the last world that
    /// was complete without it.
    pub generation: u64,
    /// The id of the table of that world, for a link or a spare; 0 for other purposes, or if the id is unknown.
    pub table: u64,
    /// The rank of the worker.
    pub rank: usize,
    /// The number of workers.
    pub workers: usize,
    /// The number of replicas of each worker or, if the workers share logical replicas, of all workers.
    pub replicas: usize,
    /// A digest of the data that must be the same on all workers.
    pub digest: [u8; 32],
    /// The purpose of the connection.
    pub purpose: Purpose,
}

impl Hello {
    /// Returns the task that has connected. For a call, this is the caller. Otherwise it is the worker of this rank, of
    /// the workers in `names`.
    pub fn task(&self, names: &Names) -> Task {
        match &self.purpose {
            Purpose::Call { from, .. } => from.clone(),
            Purpose::Join { .. } | Purpose::Spare { .. } | Purpose::Link => names.task(self.rank),
        }
    }
}

/// Memory that the side that has connected offers to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The id of the process that has the memory file open.
    pub pid: u32,
    /// The descriptor of the memory file in process `pid`.
    pub descriptor: u32,
    /// The inode number of the memory file.
    pub inode: u64,
    /// The token in the memory, by which the other side recognizes the memory.
    pub token: [u8; 32],
}

/// A message of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    /// The caller's identity, whether it has a secret, and its nonce.
    Hello(Hello, bool, [u8; 32]),
    /// The host's rank and nonce, a digest of its machine if it offers shared memory, and its proof of the secret, if
    /// the job has one.
    Challenge(usize, [u8; 32], Option<[u8; 32]>, Option<[u8; 32]>),
    /// The caller's proof of the secret, if the job has one, and memory that the caller offers to share.
    Proof(Option<[u8; 32]>, Option<Offer>),
    /// The connection is accepted.
    Welcome,
    /// The connection is rejected.
    Refusal(Refusal),
}

impl Words {
    /// Encodes the message: the length of the rest in 2 bytes, the kind, and the fields. Texts that are too long are
    /// truncated.
    pub fn encode(&self) -> Vec<u8> {
        let mut fields = Writer::default();
        fields.fixed(&[0; 2]);
        match self {
            Words::Hello(hello, has_secret, nonce) => {
                fields.fixed(&[1, u8::from(*has_secret)]);
                fields.fixed(nonce);
                fields.fixed(&hello.digest);
                for number in [hello.rank, hello.workers, hello.replicas] {
                    fields.u64(number as u64);
                }
                fields.u64(hello.generation);
                fields.text(cut(&hello.job, MAX_TEXT));
                match &hello.purpose {
                    Purpose::Link => {
                        fields.fixed(&[0]);
                        fields.u64(hello.table);
                    }
                    Purpose::Join { address, unformed } => {
                        fields.fixed(&[1]);
                        fields.text(cut(address, MAX_TEXT));
                        UnformedWorld::encode(*unformed, &mut fields);
                    }
                    Purpose::Spare { address, unformed } => {
                        fields.fixed(&[3]);
                        fields.u64(hello.table);
                        fields.text(cut(address, MAX_TEXT));
                        UnformedWorld::encode(*unformed, &mut fields);
                    }
                    Purpose::Call { from, to } => {
                        fields.fixed(&[2]);
                        for task in [from, to] {
                            fields.text(cut(task.job.as_str(), MAX_TEXT));
                            fields.u64(task.index as u64);
                        }
                    }
                }
            }
            Words::Challenge(rank, nonce, machine, proof) => {
                fields.fixed(&[2]);
                fields.u64(*rank as u64);
                fields.fixed(nonce);
                optional(&mut fields, machine);
                optional(&mut fields, proof);
            }
            Words::Proof(proof, offer) => {
                fields.fixed(&[3]);
                optional(&mut fields, proof);
                fields.fixed(&Offer::encode(offer.as_ref()));
            }
            Words::Welcome => fields.fixed(&[4]),
            Words::Refusal(refusal) => {
                fields.fixed(&[5, refusal.reason.code()]);
                fields.text(cut(&refusal.text, MAX_REFUSAL));
                if let (Reason::Elsewhere, Some((position, address))) =
                    (refusal.reason, refusal.leader.as_deref())
                {
                    fields.u64(*position as u64);
                    fields.text(cut(&address.to_string(), MAX_TEXT));
                    fields.u64(refusal.generation);
                }
                if refusal.reason == Reason::Busy {
                    fields.u64(refusal.generation);
                }
            }
        }
        let mut bytes = fields.0;
        let length = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Decodes a message from the bytes that follow its length.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the bytes are not a valid message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Reader(bytes);
        let [kind] = fields.fixed()?;
        let words = match kind {
            1 => {
                let [has_secret] = fields.fixed()?;
                let (nonce, digest) = (fields.fixed()?, fields.fixed()?);
                let (rank, workers, replicas) = (fields.count()?, fields.count()?, fields.count()?);
                let generation = fields.u64()?;
                let job = fields.text(MAX_TEXT)?.to_owned();
                let mut table = 0;
                let purpose = match fields.fixed()? {
                    [0] => {
                        table = fields.u64()?;
                        Purpose::Link
                    }
                    [1] => Purpose::Join {
                        address: fields.text(MAX_TEXT)?.to_owned(),
                        unformed: UnformedWorld::decode(&mut fields)?,
                    },
                    [2] => Purpose::Call { from: task(&mut fields)?, to: task(&mut fields)? },
                    [3] => {
                        table = fields.u64()?;
                        let address = fields.text(MAX_TEXT)?.to_owned();
                        Purpose::Spare { address, unformed: UnformedWorld::decode(&mut fields)? }
                    }
                    _ => return Err(Malformed),
                };
                let hello = Hello { job, generation, table, rank, workers, replicas, digest, purpose };
                Words::Hello(hello, has_secret == 1, nonce)
            }
            2 => {
                let (rank, nonce) = (fields.count()?, fields.fixed()?);
                Words::Challenge(rank, nonce, read_optional(&mut fields)?, read_optional(&mut fields)?)
            }
            3 => Words::Proof(read_optional(&mut fields)?, Offer::decode(&mut fields)?),
            4 => Words::Welcome,
            5 => {
                let [code] = fields.fixed()?;
                let (reason, text) = (Reason::from_code(code), fields.text(MAX_REFUSAL)?.to_owned());
                Words::Refusal(match reason {
                    Reason::Elsewhere => {
                        let position = fields.count()?;
                        let address = fields.text(MAX_TEXT)?.parse().map_err(|_| Malformed)?;
                        Refusal::elsewhere(text, position, address, fields.u64()?)
                    }
                    Reason::Busy => Refusal::busy(text, fields.u64()?),
                    reason => Refusal::new(reason, text),
                })
            }
            _ => return Err(Malformed),
        };
        fields.end()?;
        Ok(words)
    }
}

fn task(fields: &mut Reader<'_>) -> Result<Task, Malformed> {
    let job = fields.text(MAX_TEXT)?;
    // The name is shown to users, so it must not control their terminals.
    if job.is_empty() || job.chars().any(char::is_control) {
        return Err(Malformed);
    }
    Ok(Task::new(job, fields.count()?))
}

impl Offer {
    /// Encodes an offer, or its absence as a zero byte.
    pub(super) fn encode(offer: Option<&Self>) -> Vec<u8> {
        let mut fields = Writer::default();
        match offer {
            None => fields.fixed(&[0]),
            Some(Self { pid, descriptor, inode, token }) => {
                fields.fixed(&[1]);
                fields.fixed(&pid.to_le_bytes());
                fields.fixed(&descriptor.to_le_bytes());
                fields.u64(*inode);
                fields.fixed(token);
            }
        }
        fields.0
    }

    fn decode(fields: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        match fields.fixed()? {
            [0] => Ok(None),
            [1] => {
                let (pid, descriptor) = (fields.fixed()?, fields.fixed()?);
                let (pid, descriptor) = (u32::from_le_bytes(pid), u32::from_le_bytes(descriptor));
                Ok(Some(Self { pid, descriptor, inode: fields.u64()?, token: fields.fixed()? }))
            }
            _ => Err(Malformed),
        }
    }
}

fn cut(text: &str, longest: usize) -> &str {
    &text[..text.floor_char_boundary(longest)]
}

fn optional(fields: &mut Writer, proof: &Option<[u8; 32]>) {
    match proof {
        None => fields.fixed(&[0]),
        Some(proof) => {
            fields.fixed(&[1]);
            fields.fixed(proof);
        }
    }
}

fn read_optional(fields: &mut Reader<'_>) -> Result<Option<[u8; 32]>, Malformed> {
    match fields.fixed()? {
        [0] => Ok(None),
        [1] => Ok(Some(fields.fixed()?)),
        _ => Err(Malformed),
    }
}
