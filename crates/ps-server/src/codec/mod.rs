//! Requests and responses as messages, without a connection.
//!
//! The head of a call has a version, the client, and the heads of its requests; a batch has several. The body
//! has the elements of all tensors, in their memory layout. Each request is self-contained, head and body, also
//! in a log.
//!
//! Received bytes are untrusted: no more memory is allocated than the bytes require, and nothing panics.

mod answer;
mod call;
mod image;
mod request;
mod tensor;
#[cfg(test)]
mod tests;

pub(crate) use answer::{decode_answer, encode_answer};
pub(crate) use call::{Call, Encoded, MOST_REQUESTS, Sent, acknowledge};
pub(crate) use image::{ImageHead, put_clients, take_clients};
pub(crate) use tensor::{Body, Malformed, Rest, TensorHead};

use distribute_cluster::bounded::{Budget, SHORT};

/// The first byte of every head: the version of this format.
const VERSION: u8 = 2;

/// Appends a head.
fn put_head(head: &impl serde::Serialize, to: Vec<u8>) -> Result<Vec<u8>, Malformed> {
    postcard::to_extend(head, to).map_err(|_| Malformed("a head that cannot be written"))
}

/// Decodes the next head, and returns the remaining bytes. Its contents are charged to the budget of the
/// message.
fn take_head<'a, T: serde::Deserialize<'a>>(
    from: &'a [u8],
    budget: &Budget,
) -> Result<(T, &'a [u8]), Malformed> {
    const UNREADABLE: Malformed = Malformed("a head that cannot be read");
    if from.len() <= SHORT {
        return postcard::take_from_bytes(from).map_err(|_| UNREADABLE);
    }
    // INV-28
    let mut rest = postcard::Deserializer::from_bytes(from);
    match budget.decode(&mut rest) {
        Ok(head) => Ok((head, rest.finalize().map_err(|_| UNREADABLE)?)),
        Err(_) if budget.is_spent() => {
            Err(Malformed("more parts in its head than a head of its length may have"))
        }
        Err(_) => Err(UNREADABLE),
    }
}
