//! URLs: their servers, redirects, and what errors show of them.

use crate::error::{Error, Result, shown};
use ureq::http::Uri;

/// The server of a URL: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    is_secure: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// Returns the server of an absolute URL with http or https; `None` for other URLs, and those with a user.
    pub(crate) fn of(url: &Uri) -> Option<Self> {
        let is_secure = match url.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        if url.authority()?.as_str().contains('@') {
            return None;
        }
        let port = url.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let host = url.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Self { is_secure, host, port })
    }

    /// Returns `true` if other machines cannot read what is sent to the server.
    pub(crate) fn is_private(&self) -> bool {
        self.is_secure || self.is_loopback()
    }

    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    }
}

/// Returns the URL to which a response redirects. Only absolute URLs, and paths on the same server, are accepted. A
/// redirect from https to http is an error.
pub(crate) fn redirected(from: &Uri, location: &str) -> Result<Uri> {
    let refused = |found: String| Error::Response {
        url: display(from),
        expected: "a redirect to an absolute http or https URL or to a path, from https only to https",
        found,
    };
    let unusable = || refused(shown(location.split('?').next().unwrap_or_default()));
    let is_path = location.starts_with('/') && !location.starts_with("//");
    let parsed = if is_path {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(location.parse().map_err(|_| unusable())?);
        Uri::from_parts(parts).map_err(|_| unusable())?
    } else {
        location.parse().map_err(|_| unusable())?
    };
    match (Origin::of(from), Origin::of(&parsed)) {
        (Some(before), Some(after)) if after.is_secure || !before.is_secure => Ok(parsed),
        _ => Err(unusable()),
    }
}

/// Formats a URL without its query, which may be a signature.
pub(crate) fn display(url: &Uri) -> String {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    shown(&format!("{}://{authority}{}", url.scheme_str().unwrap_or_default(), url.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(from: &str, location: &str) -> Result<String, String> {
        redirected(&from.parse().unwrap(), location)
            .map(|to| to.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn redirects_keep_encryption_and_have_no_user() {
        assert_eq!(to("https://a/x", "/y?z").unwrap(), "https://a/y?z");
        assert_eq!(to("https://a/x", "https://b/y?z").unwrap(), "https://b/y?z");
        assert_eq!(to("http://a/x", "https://b/y").unwrap(), "https://b/y");
        for hostile in [
            "http://b/y",
            "//b/y",
            "y",
            "file:///etc/passwd",
            "https://a@b/y",
            "ftp://b/",
            "",
            "https:///y",
            "/\u{7f} b",
        ] {
            let error = to("https://a/x?secret", hostile).unwrap_err();
            assert!(error.starts_with("https://a/x: expected a redirect"), "{hostile}: {error}");
        }
        // A signature is not shown.
        assert!(!to("https://a/x?secret", "http://b/y?secret").unwrap_err().contains("secret"));
    }

    #[test]
    fn servers_are_compared_by_scheme_host_and_port() {
        let of = |url: &str| Origin::of(&url.parse().unwrap());
        assert_eq!(of("https://A/x"), of("https://a:443/y"));
        assert_ne!(of("https://a"), of("http://a:443"));
        assert_ne!(of("https://a"), of("https://a.b"));
        assert_ne!(of("http://127.0.0.1:1"), of("http://127.0.0.1:2"));
        assert!(of("http://[::1]:8080/").unwrap().is_private() && !of("http://a").unwrap().is_private());
    }
}
