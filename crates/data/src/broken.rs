//! The handling of broken records: they are an error, or are skipped and counted.

use crate::{Error, Result};
use distribute_log::warn_or_stderr;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A count of broken records that sources have skipped. Pass it to the `skip_broken` method of a source.
///
/// Without such a count, the first broken record ends the pass with an error. With one, the pass continues after
/// the record. At the end of the pass, a warning with the number of records and the first error is logged. Clones
/// share one count, over all passes of all sources.
///
/// A broken record is a row, record, line or sample that cannot be parsed in its format. If the format cannot find the
/// next record after a damaged one, the rest of the file is skipped, and is counted as one record, or in Parquet as its
/// number of rows. The following are always errors: a file that cannot be opened or read at all, a CSV file with
/// another header, a missing column, and a type without a tensor dtype.
///
/// ```
/// use distribute_data::{Csv, SkippedRecords};
///
/// let skipped = SkippedRecords::new();
/// let rows = Csv::bytes("a.csv", "x,y\n1,2\n3\n5,6\n").skip_broken(&skipped).features()?;
/// assert_eq!(rows.iter().count(), 2);
/// assert_eq!(skipped.count(), 1);
/// assert_eq!(skipped.first().unwrap(), "'a.csv', line 3, column 2: found 1 column, expected 2 columns");
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.data.Dataset.ignore_errors")]
#[doc(alias = "tf.data.experimental.ignore_errors")]
#[doc(alias = "ignore_errors")]
#[derive(Clone, Debug)]
pub struct SkippedRecords {
    counts: Arc<Counts>,
    max: u64,
}

#[derive(Debug, Default)]
struct Counts {
    records: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Counts {
    /// Adds skipped records to the count, unless it would exceed `max`. Returns whether they were added.
    fn add(&self, records: u64, max: u64) -> bool {
        let sum = |count: u64| Some(count.saturating_add(records)).filter(|sum| *sum <= max);
        self.records.fetch_update(Relaxed, Relaxed, sum).is_ok()
    }

    /// Keeps the message of `error` if it is the first.
    fn keep(&self, error: &Error) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| error.to_string());
    }

    fn first(&self) -> Option<String> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for SkippedRecords {
    fn default() -> Self {
        Self::new()
    }
}

impl SkippedRecords {
    /// Creates a count, starting at 0, with which a pass may skip any number of records.
    pub fn new() -> Self {
        Self { counts: Arc::default(), max: u64::MAX }
    }

    /// Returns a handle to the same count with a limit: a pass may skip at most `records` records, and the next broken
    /// record is an error. The limit applies only to sources that are given this handle, and to each of them
    /// separately.
    pub fn at_most(&self, records: u64) -> Self {
        Self { counts: self.counts.clone(), max: records }
    }

    /// Returns the number of records that have been skipped so far, in all passes.
    pub fn count(&self) -> u64 {
        self.counts.records.load(Relaxed)
    }

    /// Returns the error message of the first skipped record; `None` if none was skipped.
    pub fn first(&self) -> Option<String> {
        self.counts.first()
    }
}

/// The handling of broken records in one pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Broken {
    pass: Option<Arc<Pass>>,
}

#[derive(Debug)]
struct Pass {
    all: SkippedRecords,
    counts: Counts,
    reported: AtomicBool,
}

impl Broken {
    /// Begins a pass. It skips broken records if `skipped` is a count, and otherwise ends at the first one.
    pub(crate) fn of_pass(skipped: Option<&SkippedRecords>) -> Self {
        let pass = |all: &SkippedRecords| Pass {
            all: all.clone(),
            counts: Counts::default(),
            reported: AtomicBool::new(false),
        };
        Self { pass: skipped.map(pass).map(Arc::new) }
    }

    pub(crate) fn skips(&self) -> bool {
        self.pass.is_some()
    }

    /// Counts a broken record. Returns `error` if it must end the pass.
    pub(crate) fn skip(&self, error: Error) -> Result<()> {
        self.skip_many(1, error)
    }

    /// Counts several broken records that share one error. Returns `error` if it must end the pass.
    pub(crate) fn skip_many(&self, records: u64, error: Error) -> Result<()> {
        let Some(pass) = &self.pass else { return Err(error) };
        if !pass.counts.add(records, pass.all.max) {
            return Err(error);
        }
        pass.all.counts.add(records, u64::MAX);
        pass.counts.keep(&error);
        pass.all.counts.keep(&error);
        Ok(())
    }

    /// Counts a broken record, like [`skip`](Self::skip). `error` is called only if the error is needed, because
    /// finding the line of a row means reading the file.
    pub(crate) fn skip_with(&self, error: impl FnOnce() -> Error) -> Result<()> {
        match &self.pass {
            Some(pass) if pass.counts.records.load(Relaxed) > 0 && pass.counts.add(1, pass.all.max) => {
                pass.all.counts.add(1, u64::MAX);
                Ok(())
            }
            _ => self.skip(error()),
        }
    }

    /// Counts the rest of a file as one broken record if the error is about the contents of the file. Returns `error`
    /// if it is not, or if it must end the pass.
    pub(crate) fn skip_rest(&self, error: Error) -> Result<()> {
        if is_of_contents(&error) { self.skip(error) } else { Err(error) }
    }

    /// Logs the number of records that the pass has skipped, and the first error. Only the first call logs, and only if
    /// there are such records.
    pub(crate) fn report(&self) {
        if let Some(pass) = &self.pass {
            pass.report();
        }
    }
}

impl Pass {
    fn report(&self) {
        let records = self.counts.records.load(Relaxed);
        if records == 0 || self.reported.swap(true, Relaxed) {
            return;
        }
        let first = self.counts.first().unwrap_or_default();
        warn_or_stderr(|| tracing::warn!(records, %first, "broken records were skipped in this pass"));
    }
}

impl Drop for Pass {
    /// Logs the number of skipped records, even if the pass is abandoned.
    fn drop(&mut self) {
        self.report();
    }
}

/// Returns whether an error is about the contents of a file. [`Error::Column`] is not, because it may also be
/// about a column that no tensor can represent.
pub(crate) fn is_of_contents(error: &Error) -> bool {
    match error {
        Error::Io { source, .. } => {
            matches!(source.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
        }
        Error::Damaged { .. } | Error::Record { .. } | Error::Example { .. } | Error::Csv { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::quietly;

    fn broken(offset: u64) -> Error {
        Error::Damaged { path: "a".into(), offset, what: "broken".into() }
    }

    #[test]
    fn a_pass_skips_as_many_as_it_may_and_counts_are_of_all_passes() {
        quietly(|| {
            let skipped = SkippedRecords::new();
            let two = skipped.at_most(2);
            for _ in 0..2 {
                let pass = Broken::of_pass(Some(&two));
                assert!(pass.skips() && pass.skip(broken(1)).is_ok() && pass.skip(broken(2)).is_ok());
                assert!(matches!(pass.skip(broken(3)), Err(Error::Damaged { offset: 3, .. })));
            }
            assert_eq!((skipped.count(), skipped.first().unwrap().as_str()), (4, "'a', byte 1: broken"));
            assert!(Broken::of_pass(Some(&two)).skip_many(3, broken(4)).is_err());
        });
    }

    /// Checks that the warning at the end of a pass has the number of records that were skipped, without the one that
    /// ended the pass.
    #[test]
    fn the_record_that_ends_a_pass_is_not_counted_as_skipped() {
        quietly(|| {
            let skipped = SkippedRecords::new();
            let pass = Broken::of_pass(Some(&skipped.at_most(2)));
            let counts = |pass: &Broken| {
                let counts = &pass.pass.as_ref().unwrap().counts;
                (counts.records.load(Relaxed), counts.first())
            };
            assert!(pass.skip_many(3, broken(0)).is_err());
            assert_eq!((counts(&pass), skipped.count()), ((0, None), 0));
            assert!(pass.skip(broken(1)).is_ok() && pass.skip_with(|| broken(2)).is_ok());
            assert!(pass.skip(broken(3)).is_err() && pass.skip_with(|| broken(4)).is_err());
            assert_eq!((counts(&pass), skipped.count()), ((2, Some(broken(1).to_string())), 2));
        });
    }

    #[test]
    fn other_errors_than_broken_records_are_never_skipped() {
        let skipped = SkippedRecords::new();
        let pass = Broken::of_pass(Some(&skipped));
        let gone = std::io::Error::from(ErrorKind::NotFound);
        assert!(pass.skip_rest(Error::Io { path: "a".into(), source: gone }).is_err());
        assert!(pass.skip_rest(Error::Empty { operation: "reading" }).is_err());
        assert!(Broken::default().skip(broken(1)).is_err());
        assert_eq!((skipped.count(), skipped.first()), (0, None));
    }
}
