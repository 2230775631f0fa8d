//! [`Malformed`]: a value that is not as expected.

use std::fmt;

/// A value that is not as expected: its location, the expected value and the value found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}expected {expected}, found {found}{}", At(path), Help(help))]
pub struct Malformed {
    /// The source of the value: the name of an environment variable, or of the answer of an API.
    pub origin: String,
    /// The path to the value in its source: `cluster.worker[1]`. Empty for the entire source.
    pub path: String,
    /// The expected value.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// Advice, if `expected` does not say enough. Otherwise empty.
    pub help: &'static str,
}

/// Prints the advice at the end of the message.
struct Help(&'static str);

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            help => write!(f, "; {help}"),
        }
    }
}

/// Prints a path and a colon, or nothing if the path is empty.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            path => write!(f, "{path}: "),
        }
    }
}

/// The maximum number of characters of a value that an error shows.
const SHOWN: usize = 60;

/// Returns a value as text for an error, truncated if it is long.
pub(crate) fn shown(value: &dyn fmt::Display) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}
