//! Requests and redirects. A token is sent only to the server of the hub.

use crate::error::{Error, Result, shown};
use crate::origin::{Origin, display, redirected};
use crate::settings::Hub;
use distribute_cluster::Stopwatch;
use std::io::Read;
use std::time::Duration;
use ureq::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, LOCATION, RANGE, RETRY_AFTER,
};
use ureq::http::{HeaderMap, HeaderName, Response, StatusCode, Uri};
use ureq::{Agent, Body, Proxy};

/// The maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 8;
/// The maximum number of bytes to read from the body of an error response.
const MAX_TEXT: usize = 2048;

/// The header with the commit of a file. The hub sends this header and the next two even in a redirect to the server
/// that has the file.
pub(crate) const COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
pub(crate) const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
pub(crate) const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// A blocking HTTP client of the hub.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    hub: Hub,
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Head,
    /// A request for the bytes from the given offset on.
    Get(u64),
}

impl Client {
    pub(crate) fn new(hub: &Hub) -> Self {
        let timeout = Some(hub.timeout);
        let proxy = Proxy::try_from_env().filter(|_| !hub.origin.is_loopback());
        let agent = Agent::config_builder()
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_send_request(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            .timeout_per_write(timeout)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .proxy(proxy)
            .user_agent(concat!("distribute-hub/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: agent.into(), hub: hub.clone() }
    }

    /// Requests the headers that describe a file. Redirects are followed within the hub, but not to other servers.
    pub(crate) fn head(&self, url: &Uri) -> Result<HeaderMap> {
        let mut url = url.clone();
        let mut headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(Method::Head, &url)?;
            let next = next(&url, &response)?;
            if next.is_none() && !response.status().is_success() {
                return Err(self.refused(&url, response));
            }
            let of_file = [COMMIT, LINKED_ETAG, LINKED_SIZE];
            // In a redirect, these are of the redirect.
            let of_response = if next.is_none() { [ETAG, CONTENT_LENGTH].as_slice() } else { &[] };
            for name in of_file.iter().chain(of_response) {
                if let Some(value) = response.headers().get(name) {
                    headers.insert(name, value.clone());
                }
            }
            match next {
                Some(next) if self.is_hub(&next) => url = next,
                _ => return Ok(headers),
            }
        }
        Err(too_many(&url))
    }

    /// Requests the bytes of a file from an offset. Redirects are followed.
    pub(crate) fn get(&self, url: &Uri, offset: u64) -> Result<Response<Body>> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(Method::Get(offset), &url)?;
            match next(&url, &response)? {
                Some(next) => url = next,
                None if response.status().is_success() => return Ok(response),
                None => return Err(self.refused(&url, response)),
            }
        }
        Err(too_many(&url))
    }

    fn send(&self, method: Method, url: &Uri) -> Result<Response<Body>> {
        let mut request = match method {
            // One deadline for all of it: there is no body.
            Method::Head => self.agent.head(url).config().timeout_global(Some(self.hub.timeout)).build(),
            Method::Get(_) => self.agent.get(url),
        };
        // Compressed, a file would have another size, and could not be resumed.
        request = request.header(ACCEPT_ENCODING, "identity");
        if let Method::Get(offset @ 1..) = method {
            request = request.header(RANGE, format!("bytes={offset}-"));
        }
        if let Some(token) = self.hub.token_to_send().filter(|_| self.is_hub(url)) {
            request = request.header(AUTHORIZATION, token.header());
        }
        request.call().map_err(|error| match error {
            ureq::Error::Protocol(_) | ureq::Error::Http(_) | ureq::Error::LargeResponseHeader(..) => {
                Error::Response {
                    url: display(url),
                    expected: "a response of HTTP 1.1",
                    found: shown(&error.to_string()),
                }
            }
            error => Error::Network { url: display(url), reason: shown(&error.to_string()) },
        })
    }

    fn is_hub(&self, url: &Uri) -> bool {
        Origin::of(url).as_ref() == Some(&self.hub.origin)
    }

    /// Returns the error for a response whose status is neither success nor a redirect.
    fn refused(&self, url: &Uri, mut response: Response<Body>) -> Error {
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(String::from);
        let code = header(ERROR_CODE).unwrap_or_default();
        let retry_after =
            header(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let sent = header(ERROR_MESSAGE);
        let message = sent.unwrap_or_else(|| self.text(&mut response));
        let status = response.status();
        let advice = self.advice(url, status, &code, retry_after);
        let message = shown(message.trim());
        Error::Status { url: display(url), status: status.as_u16(), message, retry_after, advice }
    }

    /// Reads the text of an error response, up to [`MAX_TEXT`] bytes and as much as arrives within the timeout.
    /// Returns an empty text instead of an HTML page.
    fn text(&self, response: &mut Response<Body>) -> String {
        let (mut reader, started) = (response.body_mut().as_reader(), Stopwatch::start());
        let (mut text, mut buffer) = (Vec::new(), [0; 512]);
        while text.len() < MAX_TEXT && started.elapsed() < self.hub.timeout {
            match reader.read(&mut buffer) {
                Ok(read @ 1..) => text.extend_from_slice(&buffer[..read]),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&text);
        if text.trim_start().starts_with('<') { String::new() } else { text.into() }
    }

    fn advice(&self, url: &Uri, status: StatusCode, code: &str, retry_after: Option<Duration>) -> String {
        const NAMES: &str = "check the names of the repository, the revision and the file on the hub's page";
        match (status.as_u16(), code) {
            (401 | 403, _) if !self.is_hub(url) => {
                "this server has files of the hub: try again, and check that no firewall refuses it".into()
            }
            (401 | 403, "GatedRepo") if self.hub.token.is_some() => {
                "accept the conditions on the repository's page, with the account of the token".into()
            }
            (401 | 403, _) => match (&self.hub.token, self.hub.token_to_send()) {
                (None, _) => "set HF_TOKEN to a token that may read the repository; the hub also answers so if the \
                              repository does not exist"
                    .into(),
                (Some(_), None) => {
                    "the token was not sent, because HF_ENDPOINT is not https and others could read it".into()
                }
                (Some(_), Some(_)) => {
                    "the token is not valid, or may not read this repository; or the repository does not exist".into()
                }
            },
            (404, "RevisionNotFound") => "the repository has no such branch, tag or commit".into(),
            (404, "EntryNotFound") => "the repository has no such file at this revision: see its page on the hub".into(),
            (404, _) => NAMES.into(),
            (429, _) => match retry_after {
                Some(pause) => format!("too many requests: try again in {pause:?}, or with a token in HF_TOKEN"),
                None => "too many requests: try again later, or with a token in HF_TOKEN".into(),
            },
            (500.., _) => "the server has a problem: try again later, or set HF_ENDPOINT to a mirror".into(),
            _ => "check HF_ENDPOINT".into(),
        }
    }
}

/// Returns the URL to which a response redirects; `None` if it is no redirect.
fn next(url: &Uri, response: &Response<Body>) -> Result<Option<Uri>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    redirected(url, location.unwrap_or_default()).map(Some)
}

fn too_many(url: &Uri) -> Error {
    let found = format!("more than {MAX_REDIRECTS} redirects");
    Error::Response { url: display(url), expected: "a file after some redirects", found }
}
