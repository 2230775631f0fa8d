//! Encoding and decoding of the small records that workers exchange.

use bytes::Bytes;
use distribute_base::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a record. If encoding fails, returns no bytes; the other workers then return an error that names this
/// worker.
pub fn encode(record: &impl Serialize) -> Bytes {
    postcard::to_allocvec(record).unwrap_or_default().into()
}

/// Decodes the records of all workers, in the given order.
///
/// # Errors
/// - [`Error::Worker`]: a record cannot be decoded. The error names the first worker with such a record.
pub fn decode_all<T: DeserializeOwned>(operation: &'static str, all: &[Bytes]) -> Result<Vec<T>> {
    let decode = |(worker, bytes): (usize, &Bytes)| {
        postcard::from_bytes(bytes).map_err(|error| {
            let reason =
                format!("its record cannot be read ({error}); all workers have to run the same program");
            Error::worker_failed(worker, Error::invalid(operation, reason))
        })
    };
    all.iter().enumerate().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_invalid_bytes_name_their_worker() {
        let all = [(1usize, Some(usize::MAX)), (7, None)];
        let mut bytes: Vec<Bytes> = all.iter().map(encode).collect();
        assert_eq!(decode_all::<(usize, Option<usize>)>("run", &bytes).unwrap(), all);
        for broken in [&b""[..], b"\xff", b"\x01\x02"] {
            bytes[1] = Bytes::from_static(broken);
            let error = decode_all::<(usize, Option<usize>)>("run", &bytes).unwrap_err();
            assert!(
                error.to_string().starts_with("worker 1 failed: run: its record cannot be read"),
                "{error}"
            );
        }
    }
}
