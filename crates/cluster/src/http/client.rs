//! The HTTP client of resolvers, which also reads files with tokens. This is the only module of the crate that does
//! I/O. It requires the feature `gce` or `kubernetes`.

use super::{Http, HttpError, Request};
use crate::deadline::DEFAULT_TIMEOUT;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The maximum size of a response in bytes. The description of one pod takes about 10 kB.
const MAX: u64 = 64 << 20;

/// A blocking HTTP client with one deadline for each entire request. It uses no proxy. It follows no redirects, because
/// headers may contain a token.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
}

impl Default for Client {
    fn default() -> Self {
        Self::new(DEFAULT_TIMEOUT)
    }
}

impl Client {
    /// Creates a client that trusts the same certificate authorities as browsers. `timeout` limits each entire request.
    pub fn new(timeout: Duration) -> Self {
        Self::with_roots(timeout, RootCerts::WebPki)
    }

    /// Creates a client that trusts only the certificate authorities in `pem`. `timeout` limits each entire request.
    ///
    /// # Errors
    /// Returns a message if `pem` contains no certificate, or if a certificate cannot be parsed.
    pub fn trusting(timeout: Duration, pem: &[u8]) -> Result<Self, String> {
        let mut roots: Vec<Certificate<'static>> = Vec::new();
        for item in parse_pem(pem) {
            if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
                roots.push(certificate);
            }
        }
        if roots.is_empty() {
            return Err("it contains no certificate".into());
        }
        Ok(Self::with_roots(timeout, RootCerts::new_with_certs(&roots)))
    }

    fn with_roots(timeout: Duration, roots: RootCerts) -> Self {
        let agent = Agent::config_builder()
            .timeout_global(Some(timeout))
            .max_redirects(0)
            .proxy(None)
            .http_status_as_error(false)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        Self { agent: agent.into() }
    }
}

/// Reads a file, such as a token.
#[cfg(feature = "kubernetes")]
pub(crate) fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}

impl Http for Client {
    fn fetch(&self, request: &Request<'_>) -> Result<Vec<u8>, HttpError> {
        let failed =
            |error: ureq::Error| HttpError { url: request.url.into(), status: None, what: error.to_string() };
        let response = match request.body {
            None => {
                let get = self.agent.get(request.url);
                request.headers.iter().fold(get, |get, (name, value)| get.header(*name, *value)).call()
            }
            Some(body) => {
                let post = self.agent.post(request.url);
                request.headers.iter().fold(post, |post, (name, value)| post.header(*name, *value)).send(body)
            }
        };
        let mut response = response.map_err(failed)?;
        let body = response.body_mut().with_config().limit(MAX).read_to_vec().map_err(failed)?;
        let status = response.status();
        if status.is_success() {
            Ok(body)
        } else {
            Err(HttpError::of_status(request.url, status.as_u16(), &body))
        }
    }
}
