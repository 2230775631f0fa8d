//! The hashes that the hub announces for files.

use crate::names::is_hex;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// The hash of a file's contents, and the name of its blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hash(String);

impl Hash {
    /// Parses a SHA-256 of 64 hexadecimal digits, or git's SHA-1 of 40 digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        (matches!(text.len(), 40 | 64) && is_hex(text)).then(|| Self(text.into()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        if self.is_git() { "the SHA-1 of git" } else { "SHA-256" }
    }

    fn is_git(&self) -> bool {
        self.0.len() == 40
    }

    /// Begins the computation of this kind of hash, for contents of `size` bytes.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        if self.is_git() {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            // The header that git gives to a blob.
            context.update(format!("blob {size}\0").as_bytes());
            Hasher(context)
        } else {
            Hasher(Context::new(&SHA256))
        }
    }
}

/// A hash that is computed while bytes arrive.
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Hash {
        Hash(self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_sha256sum() {
        // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
        for expected in [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            let expected = Hash::parse(expected).unwrap();
            let mut hasher = expected.hasher(6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), expected);
        }
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        for text in ["", "../../x", &"g".repeat(40), &"A".repeat(64), &"0".repeat(41)] {
            assert!(Hash::parse(text).is_none(), "{text}");
        }
    }
}
