//! Elements of a known dtype and number as bytes, without a head: both sides know what is sent.

use crate::Failure;
use bytes::Bytes;
use distribute_tensor::{DType, HostTensor, codec, flat};
use std::ops::Range;

/// A tensor whose bytes are sent from where they are.
struct Owner(HostTensor);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        codec::as_bytes(self.0.buffer()).unwrap_or_default()
    }
}

/// The bytes of these elements of a flat tensor, which are not copied where they are in memory as they are sent.
pub(super) fn bytes(tensor: &HostTensor, elements: Range<usize>) -> Bytes {
    let width = tensor.dtype().bytes().unwrap_or(0);
    if codec::as_bytes(tensor.buffer()).is_some() {
        return Bytes::from_owner(Owner(tensor.clone())).slice(elements.start * width..elements.end * width);
    }
    let mut bytes = Vec::with_capacity(elements.len() * width);
    codec::append(tensor.buffer(), elements, &mut bytes);
    bytes.into()
}

/// The next elements that another worker has sent.
///
/// # Errors
/// [`Failure::Record`] if the body is too short.
pub(super) fn take(body: &mut Bytes, dtype: DType, elements: usize) -> Result<HostTensor, Failure> {
    let too_short = || Failure::Record(format!("less data than {elements} elements of {dtype}"));
    let size = flat::size(dtype, elements).filter(|size| *size <= body.len()).ok_or_else(too_short)?;
    let buffer = codec::read(dtype, &body.split_to(size));
    let buffer = buffer.map_err(|_| Failure::Record(format!("bytes that are no {dtype}")))?;
    Ok(HostTensor::from_buffer(buffer, [elements])?)
}

/// Refuses what another worker has sent, if it is not as long as it has to be.
///
/// # Errors
/// [`Failure::Record`], which names the worker and both lengths.
pub(super) fn require_length(worker: usize, bytes: &Bytes, expected: usize) -> Result<(), Failure> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Failure::Record(format!(
        "{} bytes of worker {worker}, where {expected} were expected: start all workers from the same build",
        bytes.len()
    )))
}
