//! How much memory one element of a file may take.

/// What one element may take where nothing else was said: more than elements have, and less than machines have.
const DEFAULT: u64 = 256 << 20;

/// What one element may take in memory, and with which setting users change that.
///
/// A few bytes of a compressed file unpack to thousands of times as many, and a few values that are padded fill whole
/// batches. So every format asks this before it makes room for what it was only told of, and while it unpacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementLimit {
    bytes: u64,
    setting: &'static str,
}

impl ElementLimit {
    /// Returns the default, which `setting` changes.
    pub(crate) fn new(setting: &'static str) -> Self {
        Self { bytes: DEFAULT, setting }
    }

    /// Another number of bytes.
    pub(crate) fn of(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns whether so many bytes are too many: what is wrong then, and what to do. `what` is what takes
    /// them: `a row`.
    pub(crate) fn check(self, what: &str, bytes: u64) -> Result<(), String> {
        if bytes <= self.bytes {
            Ok(())
        } else {
            Err(format!(
                "{what} takes more than {} bytes of memory; if it is meant to, raise the limit with `{}`",
                self.bytes, self.setting
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_what_it_is_and_how_to_raise_it() {
        let limit = ElementLimit::new("Location::element_limit").of(10);
        assert_eq!(limit.check("a row", 10), Ok(()));
        let expected = "a row takes more than 10 bytes of memory; if it is meant to, raise the limit with \
                        `Location::element_limit`";
        assert_eq!(limit.check("a row", 11), Err(expected.to_string()));
    }
}
