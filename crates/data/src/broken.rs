//! Broken records: an error, or skipped and counted.

use crate::{Error, Result};
use distribute_log::heard;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A count of broken records that sources have skipped. Pass it to the `skip_broken` of a source.
///
/// Without one, the first broken record ends the pass with an error. With one, the pass continues after the
/// record, and a warning at the end of the pass has the number of records and the first error. Clones share
/// one count, over all passes of all sources.
///
/// A broken record is a row, record, line or sample that its format cannot read. If the format cannot find
/// the next record after a damaged one, the rest of the file is skipped and counted as one record (in
/// Parquet, as its number of rows). These stay errors: a file that cannot be opened or read at all, a missing
/// column, and a type without a tensor dtype.
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
    most: u64,
}

#[derive(Debug, Default)]
struct Counts {
    records: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Counts {
    /// Adds records and returns the number before them.
    fn add(&self, records: u64, error: &Error) -> u64 {
        let before = self.records.fetch_add(records, Relaxed);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| error.to_string());
        before
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
    /// Creates a count of 0 that lets a pass skip any number of records.
    pub fn new() -> Self {
        Self { counts: Arc::default(), most: u64::MAX }
    }

    /// Returns the same count with a limit: the number of records that a pass may skip. The next broken
    /// record is an error. The limit applies to the sources that the result is given to.
    pub fn at_most(&self, records: u64) -> Self {
        Self { counts: self.counts.clone(), most: records }
    }

    /// Returns the number of records skipped so far.
    pub fn count(&self) -> u64 {
        self.counts.records.load(Relaxed)
    }

    /// Returns the error of the first skipped record.
    pub fn first(&self) -> Option<String> {
        self.counts.first()
    }
}

/// The policy of one pass.
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
    /// Begins a pass that skips broken records if there is a count for them.
    pub(crate) fn of_pass(skipped: Option<&SkippedRecords>) -> Self {
        let pass = |all: &SkippedRecords| Pass {
            all: all.clone(),
            counts: Counts::default(),
            reported: AtomicBool::new(false),
        };
        Self { pass: skipped.map(pass).map(Arc::new) }
    }

    /// Returns whether broken records are skipped.
    pub(crate) fn skips(&self) -> bool {
        self.pass.is_some()
    }

    /// Counts a broken record. Returns its error if that has to end the pass.
    pub(crate) fn skip(&self, error: Error) -> Result<()> {
        self.skip_many(1, error)
    }

    /// Counts several records that have one error.
    pub(crate) fn skip_many(&self, records: u64, error: Error) -> Result<()> {
        let Some(pass) = &self.pass else { return Err(error) };
        if pass.counts.add(records, &error).saturating_add(records) > pass.all.most {
            return Err(error);
        }
        pass.all.counts.add(records, &error);
        Ok(())
    }

    /// Counts a record. Its error is only made if needed, because finding the line of a row reads the file.
    pub(crate) fn skip_with(&self, error: impl FnOnce() -> Error) -> Result<()> {
        match &self.pass {
            // Two threads may both find space for one more.
            Some(pass)
                if (1..pass.all.most).contains(&pass.counts.records.load(Relaxed))
                    && pass.counts.records.fetch_add(1, Relaxed) < pass.all.most =>
            {
                pass.all.counts.records.fetch_add(1, Relaxed);
                Ok(())
            }
            _ => self.skip(error()),
        }
    }

    /// Counts the rest of a file as one record if the error is about the contents of the file. Other errors
    /// are returned.
    pub(crate) fn skip_rest(&self, error: Error) -> Result<()> {
        if is_of_contents(&error) { self.skip(error) } else { Err(error) }
    }

    /// Logs the number of skipped records, once.
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
        heard(|| tracing::warn!(records, %first, "broken records were skipped in this pass"));
    }
}

impl Drop for Pass {
    /// Logs the count of an abandoned pass as well.
    fn drop(&mut self) {
        self.report();
    }
}

/// Returns whether an error is about the contents of a file. [`Error::Column`] is not among these, because it
/// may also be about a column that no tensor can represent.
fn is_of_contents(error: &Error) -> bool {
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

    #[test]
    fn what_is_no_broken_record_is_an_error_in_any_case() {
        let skipped = SkippedRecords::new();
        let pass = Broken::of_pass(Some(&skipped));
        let gone = std::io::Error::from(ErrorKind::NotFound);
        assert!(pass.skip_rest(Error::Io { path: "a".into(), source: gone }).is_err());
        assert!(pass.skip_rest(Error::Empty { operation: "reading" }).is_err());
        assert!(Broken::default().skip(broken(1)).is_err());
        assert_eq!((skipped.count(), skipped.first()), (0, None));
    }
}
