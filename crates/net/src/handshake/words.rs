//! What the two sides of a new connection say, as bytes.

use super::fields::{Malformed, Reader, Writer};
use super::{Names, Reason, Refusal};
use distribute_cluster::Task;

/// What every connection begins with, in both directions, before the version.
pub const MAGIC: [u8; 8] = *b"dstrbnet";

/// The longest words, in bytes.
pub const LONGEST: usize = 1024;

/// The longest name of a job, and the longest address.
pub const LONGEST_TEXT: usize = 255;

/// The longest text of a refusal.
const LONGEST_REFUSAL: usize = 512;

/// Why a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To join the world, by the leader. Links of others are made to this address.
    Join {
        /// `host:port`.
        address: String,
    },
    /// To be the link between two workers that have joined.
    Link,
    /// To call a task that need not be of the same world, nor of any.
    Call {
        /// Who calls.
        from: Task,
        /// Whom it means to reach.
        to: Task,
    },
}

/// Who has connected. Of a call, which belongs to no world, the numbers and the digest are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name of the job. Of a call, it may be empty: whoever looks after jobs of any name calls so.
    pub job: String,
    /// The generation of the world that the link is for; of a worker that joins, that of which it was a member last, or 0.
    pub generation: u64,
    /// Which worker it is.
    pub rank: usize,
    /// The number of workers.
    pub workers: usize,
    /// The number of replicas of each.
    pub replicas: usize,
    /// A digest of what all workers have to have in common.
    pub digest: [u8; 32],
    /// Why it has connected.
    pub purpose: Purpose,
}

impl Hello {
    /// The task that has connected. `names` are those of the workers of its world.
    pub fn task(&self, names: &Names) -> Task {
        match &self.purpose {
            Purpose::Call { from, .. } => from.clone(),
            Purpose::Join { .. } | Purpose::Link => names.of(self.rank),
        }
    }
}

/// Memory that the side that has connected offers to share with the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The process that has it open.
    pub pid: u32,
    /// The file descriptor there.
    pub descriptor: u32,
    /// The number of the file.
    pub inode: u64,
    /// What is written in it, by which it is known to be the right one.
    pub token: [u8; 32],
}

/// What one side says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    /// Who has connected, whether it has a secret, and its nonce.
    Hello(Hello, bool, [u8; 32]),
    /// Which worker was connected to, its nonce, a digest of its machine if it would share memory, and the proof that it knows
    /// the secret, if there is one.
    Challenge(usize, [u8; 32], Option<[u8; 32]>, Option<[u8; 32]>),
    /// The proof of the side that has connected, and memory that it offers to share.
    Proof(Option<[u8; 32]>, Option<Offer>),
    /// It may stay.
    Welcome,
    /// It may not.
    Refusal(Refusal),
}

impl Words {
    /// The bytes: the length of what follows in 2 bytes, the kind, the fields.
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
                fields.text(cut(&hello.job, LONGEST_TEXT));
                match &hello.purpose {
                    Purpose::Link => fields.fixed(&[0]),
                    Purpose::Join { address } => {
                        fields.fixed(&[1]);
                        fields.text(cut(address, LONGEST_TEXT));
                    }
                    Purpose::Call { from, to } => {
                        fields.fixed(&[2]);
                        for task in [from, to] {
                            fields.text(cut(task.job.as_str(), LONGEST_TEXT));
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
                fields.text(cut(&refusal.text, LONGEST_REFUSAL));
            }
        }
        let mut bytes = fields.0;
        let length = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// The words in these bytes, which follow their length.
    ///
    /// # Errors
    /// [`Malformed`] if they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Reader(bytes);
        let [kind] = fields.fixed()?;
        let words = match kind {
            1 => {
                let [has_secret] = fields.fixed()?;
                let (nonce, digest) = (fields.fixed()?, fields.fixed()?);
                let (rank, workers, replicas) = (fields.count()?, fields.count()?, fields.count()?);
                let generation = fields.u64()?;
                let job = fields.text(LONGEST_TEXT)?.to_owned();
                let purpose = match fields.fixed()? {
                    [0] => Purpose::Link,
                    [1] => Purpose::Join { address: fields.text(LONGEST_TEXT)?.to_owned() },
                    [2] => Purpose::Call { from: task(&mut fields)?, to: task(&mut fields)? },
                    _ => return Err(Malformed),
                };
                let hello = Hello { job, generation, rank, workers, replicas, digest, purpose };
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
                Words::Refusal(Refusal::new(Reason::of(code), fields.text(LONGEST_REFUSAL)?))
            }
            _ => return Err(Malformed),
        };
        fields.end()?;
        Ok(words)
    }
}

fn task(fields: &mut Reader<'_>) -> Result<Task, Malformed> {
    let job = fields.text(LONGEST_TEXT)?;
    // It is shown to users, of whose terminals nothing is asked.
    if job.is_empty() || job.chars().any(char::is_control) {
        return Err(Malformed);
    }
    Ok(Task::new(job, fields.count()?))
}

impl Offer {
    /// The bytes, of an offer or none.
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
