//! [`Malformed`]: a value that is not what it should be.

use std::fmt;

/// A value that is not what it should be: where, what was expected, what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}expected {expected}, found {found}{}", At(path), Help(help))]
pub struct Malformed {
    /// What holds the value: the name of an environment variable, or of an answer from elsewhere.
    pub origin: String,
    /// Where in it: `cluster.worker[1]`. Empty for the whole.
    pub path: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What to do, where that is not clear from what was expected. Empty if it is.
    pub help: &'static str,
}

/// What to do, behind the rest.
struct Help(&'static str);

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            help => write!(f, "; {help}"),
        }
    }
}

/// A path with the colon behind it, if there is one.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            path => write!(f, "{path}: "),
        }
    }
}

/// At most so much of a value is shown in an error.
const SHOWN: usize = 60;

/// A value for an error, cut where it is long.
pub(crate) fn shown(value: &dyn fmt::Display) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}
