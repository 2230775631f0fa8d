//! Errors about a record: how they are created, and how their record index is shifted.

use crate::Error;

impl Error {
    /// Creates the error for a record or for one of its features, without a file.
    pub(crate) fn example(record: u64, feature: Option<&str>, what: String) -> Self {
        Error::Example { path: None, record, feature: feature.map(str::to_owned), what }
    }

    /// Returns the error with its record index increased by `after`.
    pub(crate) fn at_record(self, after: u64) -> Self {
        match self {
            Error::Example { path, record, feature, what } => {
                Error::Example { path, record: record.saturating_add(after), feature, what }
            }
            other => other,
        }
    }
}
