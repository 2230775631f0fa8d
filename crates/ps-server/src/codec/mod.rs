//! The encoding of requests and responses as messages. This module needs no connection.
//!
//! The head of a call begins with a version and the client, followed by the heads of its requests; a batch has several.
//! The body contains the elements of all tensors, in their memory layout. The head and the body of each request are
//! self-contained, so that they can be written to a log.
//!
//! | module | contents |
//! |---|---|
//! | `call` | a call: its client, and one or more requests |
//! | `request`, `answer` | a request and a response, as a head and a body |
//! | `tensor`, `image` | tensors in a body; images of tables that servers send each other |
//!
//! Received bytes are untrusted: no more memory is allocated than the bytes require, and decoding never panics.

mod answer;
mod call;
mod image;
#[cfg(test)]
mod page;
mod request;
mod tensor;
#[cfg(test)]
mod tests;

pub(crate) use answer::{decode_answer, encode_answer};
pub(crate) use call::{Call, Encoded, EncodedRequest, MAX_REQUESTS, acknowledge};
pub(crate) use image::{ImageHead, put_clients, take_clients};
pub(crate) use tensor::{Body, Malformed, Rest, TensorHead};

use distribute_cluster::bounded::{Budget, SHORT};

/// The first byte of every head: the version of this format. Version 4 adds the code 3 for [`Wire`] in a call, which
/// requests exact values in their shortest form. Version 5 adds the rows that were read from each table to the list of
/// tables.
const VERSION: u8 = 5;

/// The error for a call of another version.
const OTHER_VERSION: Malformed = Malformed("another version of requests than 5, which this server has");

/// Encodes a head, and appends it to `to`.
fn put_head(head: &impl serde::Serialize, to: Vec<u8>) -> Result<Vec<u8>, Malformed> {
    postcard::to_extend(head, to).map_err(|_| Malformed("a head that cannot be encoded"))
}

/// Decodes the next head, and returns it with the remaining bytes. If `from` has more than [`SHORT`] bytes, subtracts
/// the memory of the head's contents from the budget of the message.
fn take_head<'a, T: serde::Deserialize<'a>>(
    from: &'a [u8],
    budget: &Budget,
) -> Result<(T, &'a [u8]), Malformed> {
    const UNREADABLE: Malformed = Malformed("a head that cannot be decoded");
    if from.len() <= SHORT {
        return postcard::take_from_bytes(from).map_err(|_| UNREADABLE);
    }
    // INV-28
    let mut rest = postcard::Deserializer::from_bytes(from);
    match budget.decode(&mut rest) {
        Ok(head) => Ok((head, rest.finalize().map_err(|_| UNREADABLE)?)),
        Err(_) if budget.is_spent() => {
            Err(Malformed("more elements in its head than a head of its length can have"))
        }
        Err(_) => Err(UNREADABLE),
    }
}
