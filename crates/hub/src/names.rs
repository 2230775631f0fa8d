//! Kinds of repositories, and checks of names before they are used in a path or a URL.

use crate::error::{Error, Result, shown};

/// The maximum length of a name in bytes, and of each of its components.
const MAX: usize = 1024;
const MAX_COMPONENT: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Model,
    Dataset,
}

impl Kind {
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        }
    }

    /// Returns the part of a URL's path before the name of the repository.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Kind::Model => "",
            Kind::Dataset => "datasets/",
        }
    }
}

/// Checks the name of a repository: `name` or `organization/name`, as the hub permits them.
pub(crate) fn repository(id: &str) -> Result<()> {
    let permitted = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    let is_name = |name: &str| {
        !name.is_empty()
            && name.len() <= 96
            && name.chars().all(permitted)
            && !name.starts_with(['-', '.'])
            && !name.ends_with(['-', '.'])
    };
    // Two hyphens stand for the slash in the names of folders.
    let is_unique = !id.contains("--") && !id.contains("..");
    if is_unique && id.split('/').count() <= 2 && id.split('/').all(is_name) {
        return Ok(());
    }
    let reason = "expected name or organization/name, of letters, digits and single - _ .";
    Err(invalid("the repository", id, reason))
}

/// Checks the name of a branch, a tag or a commit, which is also the path of a file in the cache.
pub(crate) fn revision(name: &str) -> Result<()> {
    let of_git = |char: char| char.is_ascii_alphanumeric() || "-_./+@#".contains(char);
    if name.chars().all(of_git) && is_path(name) && !name.split('/').any(|part| part.starts_with('.')) {
        return Ok(());
    }
    Err(invalid("the revision", name, "expected a branch, a tag or a commit, such as main or refs/pr/1"))
}

/// Checks the path of a file in a repository.
pub(crate) fn file(name: &str) -> Result<()> {
    if is_path(name) {
        return Ok(());
    }
    let reason =
        "expected a relative path in the repository, such as config.json or onnx/model.onnx, without ..";
    Err(invalid("the file", name, reason))
}

/// Returns `true` for a path with slashes that stays in its folder on every system.
fn is_path(name: &str) -> bool {
    let permitted =
        |char: char| !char.is_control() && char != '\\' && !(cfg!(windows) && ":*?\"<>|".contains(char));
    let is_component =
        |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= MAX_COMPONENT;
    name.len() <= MAX && name.chars().all(permitted) && name.split('/').all(is_component)
}

/// Returns `true` for the hash of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Returns `true` if the text consists of hexadecimal digits, in lower case.
pub(crate) fn is_hex(text: &str) -> bool {
    text.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit))
}

/// Encodes a name for the path of a URL. Slashes remain if `slashes` is `true`.
pub(crate) fn encoded(name: &str, slashes: bool) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || slashes && byte == b'/' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn invalid(what: &'static str, value: &str, reason: &str) -> Error {
    Error::Invalid { what, value: shown(value), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        for good in ["gpt2", "google-bert/bert-base-uncased", "a/b.c_d-1"] {
            assert!(repository(good).is_ok(), "{good}");
        }
        for bad in [
            "", "/", "a/", "/a", "a/b/c", "..", "a/..", "../b", "a--b", "-a", "a.", "a b", "a\\b", "a/b\0",
            "ä/b",
        ] {
            assert!(repository(bad).is_err(), "{bad:?}");
        }
        assert!(repository(&"a".repeat(97)).is_err());
        for good in ["main", "v1.0", "refs/pr/1", "86b5e0934494bd15c9632b12f734a8a67f723594"] {
            assert!(revision(good).is_ok(), "{good}");
        }
        for bad in
            ["", "..", "a/../b", "/main", "main/", "a//b", ".git", "a/.b", "a b", "a\nb", "a?b", "a\\b"]
        {
            assert!(revision(bad).is_err(), "{bad:?}");
        }
        for good in ["config.json", "unet/a b.bin", ".gitattributes", "größe.txt", "a..b"] {
            assert!(file(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "/etc/passwd", "a/../../b", "a//b", "a/", "./a", "a\\..\\b", "a\0", "a\nb"]
        {
            assert!(file(bad).is_err(), "{bad:?}");
        }
        assert!(file(&"a".repeat(256)).is_err());
        assert!(file(&"a/".repeat(600)).is_err());
    }

    #[test]
    fn names_are_encoded_for_urls() {
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b/ü?#.json", true), "a%20b/%C3%BC%3F%23.json");
    }
}
