//! The grouping of the files of a tar file into samples.

use super::members::{Member, Members};
use crate::broken::Broken;
use crate::file::Input;
use crate::{Compression, Location, Result};
use distribute_log::warn_or_stderr;
use std::collections::BTreeMap;
use std::io::BufRead;

/// The contents of the files of one sample. Each file is found by the part of its name after the first dot, in lower
/// case. The entry `__key__` contains the sample's key: the path before that dot, including folders.
pub type Sample = BTreeMap<String, Vec<u8>>;

/// The name of the entry with a sample's key.
const KEY: &str = "__key__";

/// An iterator over the samples of a tar file, in order. The tar file may be compressed with gzip.
///
/// A sample consists of consecutive files with the same key: the path up to the first dot of its last part. Files
/// whose names contain no dot, or have nothing before it, do not belong to any sample, nor do folders and links.
///
/// The first error ends the iterator. It is [`Error::Io`](crate::Error::Io), or
/// [`Error::Damaged`](crate::Error::Damaged) with the offset in the tar file.
///
/// If a tar file ends after a member, without the empty block that should end it, a warning is logged, because samples
/// may be missing. [`require_end`](Self::require_end) makes it an error. Tar files that were joined with `cat` are read
/// one after the other.
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
    /// The key and the sample to which the last member belongs.
    open: Option<(String, Sample)>,
    /// The number of bytes that the open sample occupies.
    taken: u64,
    ended: bool,
    require_end: bool,
    broken: Broken,
    /// The key of a sample that is being skipped, because more of its files may follow.
    skipping: Option<String>,
}

impl Samples {
    /// Opens a tar file.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`](crate::Error::Io): the file cannot be opened.
    /// - [`Error::Feature`](crate::Error::Feature): the location or the compression needs a feature that is
    ///   not enabled.
    pub fn open(location: impl Into<Location>) -> Result<Self> {
        let location = location.into();
        let bytes = Compression::Auto.open(&location)?;
        let members =
            Members { input: Input::new(location.to_string(), bytes), limit: location.limit(), ended: false };
        let (broken, skipping) = (Broken::default(), None);
        Ok(Self { members, open: None, taken: 0, ended: false, require_end: false, broken, skipping })
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
        while let Some(member) = self.members.next()? {
            let (key, kind) = match self.parts(&member) {
                Ok(Some(parts)) => parts,
                Ok(None) => continue,
                Err(error) => {
                    self.broken.skip(error)?;
                    continue;
                }
            };
            if self.skipping.as_ref() == Some(&key) {
                continue;
            }
            self.skipping = None;
            let done = self.open.take_if(|(open, _)| *open != key);
            if let Err(error) = self.add(member, &key, kind) {
                self.broken.skip(error)?;
                (self.open, self.skipping) = (None, Some(key));
            }
            if let Some((_, sample)) = done {
                return Ok(Some(sample));
            }
        }
        self.ended = true;
        self.check_end()?;
        Ok(self.open.take().map(|(_, sample)| sample))
    }

    /// Adds a file to the open sample, or opens a new one with the given key.
    fn add(&mut self, member: Member, key: &str, kind: String) -> Result<()> {
        let taken = (member.bytes.len() + member.name.len()) as u64 + FILE;
        self.taken = if self.open.is_some() { self.taken + taken } else { taken };
        let fits = self.members.limit.check(&format!("sample '{key}'"), self.taken);
        fits.map_err(|what| self.members.input.damaged_at(member.offset, what))?;
        let begin = || (key.to_string(), [(KEY.to_string(), key.as_bytes().to_vec())].into());
        let (_, sample) = self.open.get_or_insert_with(begin);
        if sample.insert(kind.clone(), member.bytes).is_some() {
            let what = format!("sample '{key}' has two files '{kind}'");
            return Err(self.members.input.damaged_at(member.offset, what));
        }
        Ok(())
    }

    /// Returns the key and the kind of a file; `None` if it does not belong to any sample.
    fn parts(&self, member: &Member) -> Result<Option<(String, String)>> {
        let name = std::str::from_utf8(&member.name).map_err(|_| {
            let what = format!("the name '{}' is not UTF-8", String::from_utf8_lossy(&member.name));
            self.members.input.damaged_at(member.offset, what)
        })?;
        Ok(key_and_kind(name).map(|(key, kind)| (key.to_string(), kind.to_lowercase())))
    }
}

/// The number of bytes that a file occupies in addition to its contents and name.
const FILE: u64 = 128;

/// Splits a path into a key and a kind: `a.b/c.d.e` is the file `d.e` of sample `a.b/c`.
fn key_and_kind(path: &str) -> Option<(&str, &str)> {
    let base = path.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + path.get(base..)?.find('.').filter(|dot| *dot > 0)?;
    Some((path.get(..dot)?, path.get(dot + 1..)?))
}

impl Iterator for Samples {
    type Item = Result<Sample>;

    fn next(&mut self) -> Option<Result<Sample>> {
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
            assert_eq!(key_and_kind(path), parts, "{path}");
        }
    }
}
