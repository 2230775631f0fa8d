//! [`Malformed`]: a value that is not as expected.

use std::fmt;

/// An error: a value is not as expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}expected {expected}, found {found}{}", At(path), Help(help))]
pub struct Malformed {
    /// The source of the value, such as the name of an environment variable, or the URL of an API.
    pub origin: String,
    /// The path to the value in its source, such as `cluster.worker[1]`. It is empty if the source is malformed as a
    /// whole.
    pub path: String,
    /// A description of the expected value.
    pub expected: String,
    /// The actual value, or a description of it.
    pub found: String,
    /// Advice on how to correct the value; empty if there is none.
    pub help: &'static str,
}

/// The advice at the end of a message, after a separator. If the advice is empty, so is the text.
struct Help(&'static str);

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            help => write!(f, "; {help}"),
        }
    }
}

/// A path, followed by a colon. If the path is empty, so is the text.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            path => write!(f, "{path}: "),
        }
    }
}

/// The maximum number of characters that an error shows of a value.
const MAX_SHOWN: usize = 60;

/// Formats a value for an error, truncated if it is long.
pub(crate) fn shown(value: &dyn fmt::Display) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}
