//! [`ElementLimit`]: the memory that one element of a file may take.

/// The default limit: more than elements need, and less than machines have.
const DEFAULT: u64 = 256 << 20;

/// The memory that one element may take, and the name of the setting that changes it.
///
/// A few compressed bytes expand to thousands of times as many, and a few padded values fill whole batches.
/// So every format checks the limit before it allocates memory for a stated size, and while it decompresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementLimit {
    bytes: u64,
    setting: &'static str,
}

impl ElementLimit {
    /// Creates the default limit. `setting` is the name of the setting that changes it.
    pub(crate) fn new(setting: &'static str) -> Self {
        Self { bytes: DEFAULT, setting }
    }

    /// Returns the limit with another number of bytes.
    pub(crate) fn of(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Checks that `bytes` bytes are allowed. The error has the problem and its solution. `what` names the
    /// element: `a row`.
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
