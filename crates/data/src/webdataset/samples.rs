//! The grouping of the files of a tar file into samples.

use super::members::{Member, Members};
use crate::broken::{Broken, is_of_contents};
use crate::file::Input;
use crate::{Compression, Error, Location, Result};
use distribute_log::warn_or_stderr;
use std::collections::BTreeMap;
use std::io::BufRead;

/// The contents of the files of one sample. Each file is found by the part of its name after the first dot, in lower
/// case. The entry `__key__` contains the sample's key: the path before that dot, including folders.
pub type Sample = BTreeMap<String, Vec<u8>>;

/// The name of the entry with a sample's key.
const KEY: &str = "__key__";

/// An iterator over the samples of a tar file, in order. The tar file may be compressed with gzip, or with zstd or lz4
/// if the feature of that name is enabled.
///
/// A sample consists of consecutive files with the same key: the path up to the first dot of its last part. Files whose
/// names contain no dot, or begin with their first dot, do not belong to any sample, nor do folders and links.
///
/// The first error ends the iterator. It is [`Error::Io`], or [`Error::Damaged`] with the offset in the tar file.
/// Complete samples are returned before it. If it is unknown to which sample a damaged file belongs, the sample before
/// it may lack that file, and is not returned.
///
/// If a tar file ends without the empty block that ends tar files, a warning is logged, because samples may be missing.
/// After [`require_end`](Self::require_end), this is an error. Tar files that were joined with `cat` are read one after
/// the other.
///
/// ```
/// use distribute_data::webdataset::Samples;
/// # use distribute_data::Location;
/// # let mut tar = tar::Builder::new(Vec::new());
/// # for (name, bytes) in [("train/000.jpg", &b"\xff\xd8"[..]), ("train/000.cls", b"3")] {
/// #     let mut header = tar::Header::new_ustar();
/// #     header.set_size(bytes.len() as u64);
/// #     tar.append_data(&mut header, name, bytes).unwrap();
/// # }
/// # let location = Location::bytes("train-000.tar", tar.into_inner().unwrap());
///
/// for sample in Samples::open(location)? {
///     let sample = sample?;
///     assert_eq!(sample["__key__"], b"train/000");
///     assert_eq!((&sample["jpg"][..], &sample["cls"][..]), (&b"\xff\xd8"[..], &b"3"[..]));
/// }
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "webdataset.WebDataset")]
#[must_use = "a source reads nothing until a dataset is made of it"]
pub struct Samples {
    members: Members<Box<dyn BufRead + Send>>,
    /// The sample to which the last member belongs, and its key.
    open: Option<(Vec<u8>, Sample)>,
    /// The number of bytes that the open sample occupies.
    taken: u64,
    ended: bool,
    require_end: bool,
    broken: Broken,
    /// The key of a sample that is being skipped. It is kept because more files of that sample may follow.
    skipping: Option<Vec<u8>>,
    /// The error to return after the sample that was returned last.
    failed: Option<Error>,
}

impl Samples {
    /// Opens a tar file.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`]: the file cannot be opened.
    /// - [`Error::Feature`]: the location or the compression needs a feature that is
    ///   not enabled.
    pub fn open(location: impl Into<Location>) -> Result<Self> {
        let location = location.into();
        let bytes = Compression::Auto.open(&location)?;
        let members = Members::new(Input::new(location.to_string(), bytes), location.limit());
        Ok(Self {
            members,
            open: None,
            taken: 0,
            ended: false,
            require_end: false,
            broken: Broken::default(),
            skipping: None,
            failed: None,
        })
    }

    /// Makes the iterator skip broken samples, as `broken` allows.
    pub(super) fn skip_broken(self, broken: Broken) -> Self {
        Self { broken, ..self }
    }

    /// Makes it an error, rather than a warning, if the file ends without the empty block that ends tar files.
    pub fn require_end(self) -> Self {
        Self { require_end: true, ..self }
    }

    /// Checks that the tar file has ended with an empty block. Otherwise logs a warning, or returns an error if
    /// the block is required.
    fn check_end(&self) -> Result<()> {
        // A file without a byte gives the warning as well: it may be a valid file without samples, or
        // truncated.
        if self.members.ended {
            return Ok(());
        }
        let what = "the file ends without the empty block that ends tar files: it may be truncated";
        let error = self.members.input.damaged(what);
        if self.require_end {
            return Err(error);
        }
        warn_or_stderr(|| tracing::warn!(%error, "its samples are read"));
        Ok(())
    }

    /// Adds files to the open sample until a file belongs to another sample or none are left. Returns the complete
    /// sample; `None` if there are no more.
    fn pull(&mut self) -> Result<Option<Sample>> {
        loop {
            let member = match self.members.next() {
                Ok(Some(member)) => member,
                Ok(None) => break,
                Err(error) => return self.damaged(error),
            };
            let Some((key, kind)) = key_and_kind(&member.name) else { continue };
            let (key, kind) = (key.to_vec(), kind.to_vec());
            if self.skipping.as_ref() == Some(&key) {
                continue;
            }
            self.skipping = None;
            let done = self.open.take_if(|(open, _)| *open != key).map(|(_, sample)| sample);
            if let Err(error) = self.add(member, &key, &kind) {
                let skipped = self.broken.skip(error);
                (self.open, self.skipping) = (None, Some(key));
                if let Err(error) = skipped {
                    return self.fail(done, error);
                }
            }
            if done.is_some() {
                return Ok(done);
            }
        }
        self.ended = true;
        let last = self.open.take().map(|(_, sample)| sample);
        match self.check_end() {
            Ok(()) => Ok(last),
            Err(error) => self.fail(last, error),
        }
    }

    /// Returns `before`, the complete sample before an error, and keeps the error for the next call. Without such a
    /// sample, returns the error immediately.
    fn fail(&mut self, before: Option<Sample>, error: Error) -> Result<Option<Sample>> {
        match before {
            None => Err(error),
            sample => {
                self.failed = Some(error);
                Ok(sample)
            }
        }
    }

    /// Handles an error of a file that cannot be read. If the file belongs to another sample, the open sample is
    /// complete, and is returned before the error. Otherwise the open sample may lack this file, so it is counted as
    /// broken if broken samples are skipped.
    fn damaged(&mut self, error: Error) -> Result<Option<Sample>> {
        let Some((key, sample)) = self.open.take() else { return Err(error) };
        let file = self.members.reading.as_deref().and_then(key_and_kind);
        if file.is_some_and(|(of, _)| of != key) {
            return self.fail(Some(sample), error);
        }
        if self.broken.skips() && is_of_contents(&error) {
            let key = String::from_utf8_lossy(&key);
            let what = format!("sample '{key}' may lack files, because the tar file is damaged after it");
            self.broken.skip(self.members.input.damaged(what))?;
        }
        Err(error)
    }

    /// Adds a file to the open sample, or opens a new one. `key` is the sample's key, and `kind` the part of the file's
    /// name after the first dot. Returns [`Error::Damaged`] if the name is not UTF-8, if the sample exceeds the limit,
    /// or if it already has a file of this kind.
    fn add(&mut self, member: Member, key: &[u8], kind: &[u8]) -> Result<()> {
        let Member { offset, name, bytes } = member;
        let (Ok(text), Ok(kind)) = (std::str::from_utf8(key), std::str::from_utf8(kind)) else {
            let what = format!("the name '{}' is not UTF-8", String::from_utf8_lossy(&name));
            return Err(self.members.input.damaged_at(offset, what));
        };
        let taken = (bytes.len() + name.len()) as u64 + FILE;
        self.taken = if self.open.is_some() { self.taken + taken } else { taken };
        let fits = self.members.limit.check(&format!("sample '{text}'"), self.taken);
        fits.map_err(|what| self.members.input.damaged_at(offset, what))?;
        let begin = || (key.to_vec(), [(KEY.to_string(), key.to_vec())].into());
        let (_, sample) = self.open.get_or_insert_with(begin);
        let kind = kind.to_lowercase();
        if sample.insert(kind.clone(), bytes).is_some() {
            let what = format!("sample '{text}' has two files '{kind}'");
            return Err(self.members.input.damaged_at(offset, what));
        }
        Ok(())
    }
}

/// The assumed memory, in bytes, of a file of a sample in addition to its contents and name.
const FILE: u64 = 128;

/// Splits a path into a key and a kind: `a.b/c.d.e` is the file `d.e` of sample `a.b/c`. Returns `None` if the file
/// does not belong to any sample.
fn key_and_kind(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let base = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + path.get(base..)?.iter().position(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    Some((path.get(..dot)?, path.get(dot + 1..)?))
}

impl Iterator for Samples {
    type Item = Result<Sample>;

    fn next(&mut self) -> Option<Result<Sample>> {
        if let Some(error) = self.failed.take() {
            self.ended = true;
            return Some(Err(error));
        }
        if self.ended {
            return None;
        }
        let sample = self.pull();
        self.ended |= sample.is_err();
        sample.transpose()
    }
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "samples at byte {}", self.members.input.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_at_the_first_dot_of_the_last_part() {
        for (path, parts) in [
            ("a.jpg", Some(("a", "jpg"))),
            ("./a.b/c.seg.png", Some(("./a.b/c", "seg.png"))),
            ("a.", Some(("a", ""))),
            ("a.b/c", None),
            ("a/.hidden", None),
            ("", None),
            ("a/", None),
        ] {
            let text = |bytes| std::str::from_utf8(bytes).unwrap();
            let found = key_and_kind(path.as_bytes()).map(|(key, kind)| (text(key), text(kind)));
            assert_eq!(found, parts, "{path}");
        }
    }
}
