//! [`ElementLimit`]: the maximum memory of one element of a file.

/// The default limit in bytes. It is more than most elements need, and much less than the memory of most
/// machines.
const DEFAULT: u64 = 256 << 20;

/// The maximum memory of one element, and the name of the setting that changes it.
///
/// A few compressed bytes may expand to thousands of times their size, and a few padded values may fill complete
/// batches. Every format therefore checks the limit before it allocates memory for a stated size, and while it
/// decompresses.
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

    /// Returns the same limit with a different number of bytes.
    pub(crate) fn of(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Checks that an element of `bytes` bytes is allowed. The error contains the problem and a remedy. `what` is the
    /// name of the element in the error, such as `a row`.
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
    fn the_error_of_a_limit_names_it_and_how_to_raise_it() {
        let limit = ElementLimit::new("Location::element_limit").of(10);
        assert_eq!(limit.check("a row", 10), Ok(()));
        let expected = "a row takes more than 10 bytes of memory; if it is meant to, raise the limit with \
                        `Location::element_limit`";
        assert_eq!(limit.check("a row", 11), Err(expected.to_string()));
    }
}
