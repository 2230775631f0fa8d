//! The rounds of a transfer: what workers send, and how they agree on an outcome.

use super::shards::NoPlan;
use bytes::Bytes;
use distribute_cluster::World;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// The default size in bytes of the chunk of a state that is sent in one round.
pub(super) const CHUNK: usize = 16 << 20;

/// The data to exchange in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The name of the data, which is the same on all workers.
    pub what: String,
    /// Whether this is the first round, in which workers wait for those that have just started.
    pub is_first: bool,
    /// The workers to which the body is sent; the others receive an empty body.
    pub to: Vec<usize>,
    /// The data that this worker sends.
    pub body: Bytes,
}

/// The reason why the workers cannot continue.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// This worker cannot provide its state or receive one.
    Own(E),
    /// Another worker cannot provide its state or receive one. The fields are its rank and its reason.
    Peer(usize, String),
    /// The message of another worker cannot be decoded. The fields are its rank and the error.
    Unreadable(usize, String),
    /// No worker that has taken part in training has a complete state. The fields are the rank of one of these workers,
    /// and the reason why its state is incomplete.
    Torn(usize, String),
    /// Shards of state cannot be sent.
    NoPlan(NoPlan),
}

/// Returns the results of all workers if all have succeeded, and otherwise the failure of one.
pub(super) fn agree<T, U: Serialize + DeserializeOwned, E>(
    world: World,
    bodies: Vec<Bytes>,
    mine: Result<T, E>,
    to_wire: impl Fn(&T) -> U,
) -> Result<(T, Vec<U>), Failure<E>> {
    // This worker's own error keeps its type.
    let mine = mine.map_err(Failure::Own)?;
    let all: Vec<Result<U, String>> = decode_all(world, bodies, Ok(to_wire(&mine)))?;
    let outcome = |(worker, outcome): (usize, Result<U, String>)| {
        outcome.map_err(|reason| Failure::Peer(worker, reason))
    };
    Ok((mine, all.into_iter().enumerate().map(outcome).collect::<Result<_, _>>()?))
}

/// Decodes the records of all workers. The record of this worker is `mine` and is not decoded.
///
/// # Errors
/// Returns [`Failure::Unreadable`] if the record of another worker cannot be decoded.
pub(super) fn decode_all<T: DeserializeOwned, E>(
    world: World,
    bodies: Vec<Bytes>,
    mine: T,
) -> Result<Vec<T>, Failure<E>> {
    let (me, mut mine) = (world.worker(), Some(mine));
    let decode = |(worker, body): (usize, &Bytes)| match mine.take_if(|_| worker == me) {
        Some(mine) => Ok(mine),
        None => postcard::from_bytes(body).map_err(|error| Failure::Unreadable(worker, error.to_string())),
    };
    bodies.iter().enumerate().map(decode).collect()
}

/// Converts a result to the form in which it is sent.
pub(super) fn to_wire<T, U, E: Display>(result: &Result<T, E>, of: impl Fn(&T) -> U) -> Result<U, String> {
    result.as_ref().map(of).map_err(ToString::to_string)
}

/// Encodes a record. A record that cannot be encoded becomes empty, and receivers then report the worker that sent it.
pub(super) fn encode(record: &impl Serialize) -> Bytes {
    postcard::to_allocvec(record).unwrap_or_default().into()
}
