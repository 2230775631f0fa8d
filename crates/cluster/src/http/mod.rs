//! HTTP for resolvers that call an API: one request, one answer.

#[cfg(any(feature = "gce", feature = "kubernetes"))]
mod client;

#[cfg(any(feature = "gce", feature = "kubernetes"))]
pub use client::Client;
#[cfg(feature = "kubernetes")]
pub(crate) use client::read;

use crate::malformed::shown;
use std::fmt;

/// A request for a document.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The URL.
    pub url: &'a str,
    /// The headers. They may contain a secret, so they are never printed.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body of a POST; without it, the request is a GET.
    pub body: Option<&'a str>,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("url", &self.url).field("body", &self.body).finish_non_exhaustive()
    }
}

/// A sender of requests: `Client`, or a function in a test.
pub trait Http {
    /// Sends a request and returns the body of the answer.
    ///
    /// # Errors
    /// [`HttpError`] if there is no answer, or its status is not success.
    fn fetch(&self, request: &Request<'_>) -> Result<Vec<u8>, HttpError>;
}

impl<F: Fn(&Request<'_>) -> Result<Vec<u8>, HttpError>> Http for F {
    fn fetch(&self, request: &Request<'_>) -> Result<Vec<u8>, HttpError> {
        self(request)
    }
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {what}")]
pub struct HttpError {
    /// The URL.
    pub url: String,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// The reason.
    pub what: String,
}

impl HttpError {
    /// Creates the error for an answer whose status is not success.
    pub fn of_status(url: &str, status: u16, body: &[u8]) -> Self {
        let said = shown(&format_args!("{}", String::from_utf8_lossy(body).trim()));
        Self { url: url.into(), status: Some(status), what: format!("status {status}: {said}") }
    }
}

/// Percent-encodes a text for a query: everything except letters, digits and `-._~`.
pub(crate) fn encoded(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut to, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => to.push(byte.into()),
            _ => drop(write!(to, "%{byte:02X}")),
        }
        to
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_encoded() {
        assert_eq!(encoded("job-name=a b,x in (ü)"), "job-name%3Da%20b%2Cx%20in%20%28%C3%BC%29");
    }

    #[test]
    fn secrets_are_not_printed() {
        let request = Request { url: "u", headers: &[("Authorization", "Bearer s3cret")], body: None };
        assert!(!format!("{request:?}").contains("s3cret"));
    }
}
