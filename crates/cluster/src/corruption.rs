//! Data that changed on its way between workers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Data that one worker has sent and another has received with a different checksum. No part of the data was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corruption {
    /// The rank of the worker that sent the data.
    pub sender: usize,
    /// The rank of the worker that received the data.
    pub receiver: usize,
    /// The name of the data, such as `bucket 3`.
    pub data: String,
    /// The length of the data in bytes.
    pub bytes: u64,
    /// The checksum that the sender computed.
    pub sent: u32,
    /// The checksum of the received bytes.
    pub received: u32,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sender, receiver, data, bytes, sent, received } = self;
        write!(
            f,
            "{data} of worker {sender} ({bytes} bytes) has arrived changed at worker {receiver}: its checksum is \
             {received:08x}, but {sent:08x} was sent"
        )
    }
}
