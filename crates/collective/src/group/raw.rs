//! Elements encoded as bytes without a header. Both sides know the dtype and the number of elements.

use crate::Failure;
use bytes::Bytes;
use distribute_tensor::{DType, HostTensor, codec, flat};
use std::ops::Range;

/// The bytes of a tensor, to be sent without a copy.
struct TensorBytes(HostTensor);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        codec::as_bytes(self.0.buffer()).unwrap_or_default()
    }
}

/// Returns the bytes of a range of elements of a flat tensor. They are not copied if elements have the same encoding in
/// memory and on the wire.
pub(super) fn bytes(tensor: &HostTensor, elements: Range<usize>) -> Bytes {
    let width = tensor.dtype().bytes().unwrap_or(0);
    if codec::as_bytes(tensor.buffer()).is_some() {
        return Bytes::from_owner(TensorBytes(tensor.clone()))
            .slice(elements.start * width..elements.end * width);
    }
    let mut bytes = Vec::with_capacity(elements.len() * width);
    codec::append(tensor.buffer(), elements, &mut bytes);
    bytes.into()
}

/// Removes the next `elements` elements from the body of a message from another worker, and returns them.
///
/// # Errors
/// - [`Failure::Record`]: the body is too short, or its bytes are not valid for `dtype`.
pub(super) fn take(body: &mut Bytes, dtype: DType, elements: usize) -> Result<HostTensor, Failure> {
    let too_short = || Failure::Record(format!("less data than {elements} elements of {dtype}"));
    let size = flat::size(dtype, elements).filter(|size| *size <= body.len()).ok_or_else(too_short)?;
    let buffer = codec::read(dtype, &body.split_to(size));
    let buffer = buffer.map_err(|_| Failure::Record(format!("bytes that are not valid {dtype}")))?;
    Ok(HostTensor::from_buffer(buffer, [elements])?)
}

/// Checks the length of a message from another worker.
///
/// # Errors
/// - [`Failure::Record`]: the length is not `expected`. The error contains the worker and both lengths.
pub(super) fn require_length(worker: usize, bytes: &Bytes, expected: usize) -> Result<(), Failure> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Failure::Record(format!(
        "{} bytes from worker {worker}, but {expected} were expected: start all workers from the same build",
        bytes.len()
    )))
}
