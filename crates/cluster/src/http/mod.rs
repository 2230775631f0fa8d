//! HTTP for resolvers that call an API, one request at a time.

#[cfg(any(feature = "gce", feature = "kubernetes"))]
mod client;

#[cfg(any(feature = "gce", feature = "kubernetes"))]
pub use client::Client;
#[cfg(feature = "kubernetes")]
pub(crate) use client::read;

use crate::malformed::shown;
use std::fmt;

/// An HTTP request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The URL of the request.
    pub url: &'a str,
    /// The names and values of the headers. They may contain a secret, so they are never displayed.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body of a POST request; `None` means a GET request.
    pub body: Option<&'a str>,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("url", &self.url).field("body", &self.body).finish_non_exhaustive()
    }
}

/// A sender of HTTP requests: `Client`, or a test's function.
pub trait Http {
    /// Sends a request, blocks until the response arrives, and returns its body.
    ///
    /// # Errors
    /// Returns [`HttpError`] if there is no response, or if its status is not success.
    fn fetch(&self, request: &Request<'_>) -> Result<Vec<u8>, HttpError>;
}

impl<F: Fn(&Request<'_>) -> Result<Vec<u8>, HttpError>> Http for F {
    fn fetch(&self, request: &Request<'_>) -> Result<Vec<u8>, HttpError> {
        self(request)
    }
}

/// The error of a failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {what}")]
pub struct HttpError {
    /// The URL of the request.
    pub url: String,
    /// The status code of the response; `None` if there was no complete response.
    pub status: Option<u16>,
    /// The reason for the failure.
    pub what: String,
}

impl HttpError {
    /// Creates the error for a response whose status is not success.
    pub fn of_status(url: &str, status: u16, body: &[u8]) -> Self {
        let said = shown(&format_args!("{}", String::from_utf8_lossy(body).trim()));
        Self { url: url.into(), status: Some(status), what: format!("status {status}: {said}") }
    }
}

/// Percent-encodes text for a URL: everything except letters, digits and `-._~`.
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
