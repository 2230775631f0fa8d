//! The commit, hash and size of a file, from the headers of a response.

use crate::client::{COMMIT, LINKED_ETAG, LINKED_SIZE};
use crate::digest::Hash;
use crate::error::{Error, Result, shown};
use crate::names::is_commit;
use crate::origin::display;
use ureq::http::header::{CONTENT_LENGTH, ETAG};
use ureq::http::{HeaderMap, HeaderName, Uri};

/// The description of a file that the hub sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) commit: String,
    pub(crate) hash: Hash,
    pub(crate) size: u64,
}

impl Metadata {
    /// Parses the headers of a response. Commit and hash become names of files, so only hexadecimal digits are accepted
    /// in them.
    pub(crate) fn parse(url: &Uri, headers: &HeaderMap) -> Result<Self> {
        let text = |name: &HeaderName| {
            headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_string())
        };
        let malformed = |expected, found: &Option<String>| Error::Response {
            url: display(url),
            expected,
            found: found.as_deref().map_or("none".into(), |found| format!("{:?}", shown(found))),
        };
        let commit = text(&COMMIT);
        let Some(commit) = commit.clone().filter(|commit| is_commit(commit)) else {
            return Err(malformed("40 hexadecimal digits in X-Repo-Commit", &commit));
        };
        let etag = text(&LINKED_ETAG).or_else(|| text(&ETAG));
        let unquoted = |etag: &String| Hash::parse(etag.trim_start_matches("W/").trim_matches('"'));
        let Some(hash) = etag.as_ref().and_then(unquoted) else {
            return Err(malformed("a SHA-256, or a SHA-1 of git, in X-Linked-Etag or ETag", &etag));
        };
        let size = text(&LINKED_SIZE).or_else(|| text(&CONTENT_LENGTH));
        let digits =
            |size: &String| size.bytes().all(|digit| digit.is_ascii_digit()).then(|| size.parse().ok());
        let Some(size) = size.as_ref().and_then(digits).flatten() else {
            return Err(malformed("the size of the file in X-Linked-Size or Content-Length", &size));
        };
        Ok(Self { commit, hash, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT_OF: &str = "86b5e0934494bd15c9632b12f734a8a67f723594";

    fn parse(headers: &[(&'static str, &str)]) -> Result<Metadata, String> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        Metadata::parse(&"https://h/f".parse().unwrap(), &headers).map_err(|error| error.to_string())
    }

    #[test]
    fn the_linked_file_takes_precedence() {
        let (small, large) = ("b".repeat(40), "a".repeat(64));
        let plain =
            [("x-repo-commit", COMMIT_OF), ("etag", &format!("W/\"{small}\"")), ("content-length", "570")];
        let found = parse(&plain).unwrap();
        assert_eq!((found.commit.as_str(), found.hash.text(), found.size), (COMMIT_OF, small.as_str(), 570));
        let linked =
            [plain.as_slice(), &[("x-linked-etag", &format!("\"{large}\"")), ("x-linked-size", "440449768")]];
        let found = parse(&linked.concat()).unwrap();
        assert_eq!((found.hash.text(), found.size), (large.as_str(), 440_449_768));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let hash = "a".repeat(64);
        let good = [("x-repo-commit", COMMIT_OF), ("etag", hash.as_str()), ("content-length", "1")];
        assert!(parse(&good).is_ok());
        let bad = [
            (0, vec!["", "main", "../../../etc", "86B5E0934494BD15C9632B12F734A8A67F723594"]),
            (1, vec!["", "\"../../x\"", "\"d41d8cd98f00b204e9800998ecf8427e\"", "abc"]),
            (2, vec!["", "-1", "+1", "1e3", "18446744073709551616", "0x1"]),
        ];
        for (index, values) in bad {
            for value in values {
                let mut headers = good;
                headers[index].1 = value;
                let error = parse(&headers).unwrap_err();
                assert!(error.starts_with("https://h/f: expected"), "{error}");
                assert!(error.contains(&format!("found {value:?}")), "{error}");
            }
            let others: Vec<_> =
                good.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, one)| *one).collect();
            assert!(parse(&others).unwrap_err().contains("found none"));
        }
    }
}
