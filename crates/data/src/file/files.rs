//! [`Files`]: the files of a source, in order.

use super::braces::expand;
use super::pattern::PathPattern;
#[cfg(feature = "object-store")]
use super::pattern::matches;
#[cfg(feature = "object-store")]
use super::url::in_url;
use super::url::{is_url, redact};
use super::{FileState, Location};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// An ordered list of files.
///
/// ```
/// use distribute_data::{Files, Location};
///
/// let files = Files::from(["a.csv", "b.csv", "s3://bucket/c.csv"]);
/// assert_eq!(files.shard(2, 0)?, Files::from(["a.csv", "s3://bucket/c.csv"]));
/// assert_eq!(files.shard(2, 1)?.iter().next(), Some(&Location::from("b.csv")));
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Files(Vec<Location>);

impl Files {
    /// Finds the files whose paths match a pattern. Returns them sorted by path.
    ///
    /// - `?` matches one character, and `*` any number of characters within a name.
    /// - `**` matches any number of folders.
    /// - `[ab]` matches one of these characters, and `[!ab]` any other character.
    /// - `{a,b}` and `{000..099}` stand for several patterns, each of which must match a file.
    ///
    /// Hidden files and folders, whose names begin with a dot, are matched only by names in the pattern that begin with
    /// a dot.
    ///
    /// Names that are not UTF-8 match as if their invalid parts were `\u{fffd}`. Links to folders are followed, but
    /// `**` enters each folder only once, by a path without links if there is one. It therefore finds no file twice
    /// because of a link to a folder, and circular links end.
    ///
    /// With the feature `object-store`, the pattern may be a URL, such as `s3://bucket/data/train-*.tfrecord`. Its last
    /// part may contain `?`, `*`, `[ab]` and `[!ab]`, which match the names of objects without URL escapes such as
    /// `%23`. Web servers have no listings, so the existence of `https://host/a.csv` and of the files of
    /// `https://host/train-{000..099}.tar` is not checked before they are read. In URLs of web servers, `?` begins the
    /// query.
    ///
    /// # Errors
    ///
    /// - [`Error::NoFiles`]: no file matches.
    /// - [`Error::Parameter`]: the pattern is invalid.
    /// - [`Error::Io`]: a folder cannot be read, or its objects cannot be listed.
    /// - [`Error::Feature`]: the pattern is a URL, and the feature `object-store` is not enabled.
    ///
    /// ```no_run
    /// # use distribute_data::Files;
    /// let files = Files::glob("data/train-*.tfrecord")?;
    /// println!("{} files", files.len());
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.io.gfile.glob")]
    #[doc(alias = "tf.data.Dataset.list_files")]
    pub fn glob(pattern: &str) -> Result<Self> {
        let patterns = expand(pattern).map_err(|error| not_a_pattern(pattern, &error))?;
        let (mut files, mut listings) = (Vec::new(), Listings::new());
        for pattern in &patterns {
            let found = if !is_url(pattern) {
                local(pattern)?
            } else if is_of_web_server(pattern) {
                vec![pattern.into()]
            } else {
                remote(pattern, &mut listings)?
            };
            if found.is_empty() {
                return Err(Error::NoFiles { pattern: redact(pattern) });
            }
            files.extend(found);
        }
        files.sort();
        files.dedup();
        Ok(Self(files))
    }

    /// Returns the files that one of several workers reads: those at `index`, `index + workers`, … If there are
    /// fewer files than workers, some workers get none.
    ///
    /// # Errors
    ///
    /// - [`Error::Parameter`]: `index` is not less than `workers`.
    #[doc(alias = "tf.data.Dataset.shard")]
    pub fn shard(&self, workers: usize, index: usize) -> Result<Self> {
        if index >= workers {
            return Err(Error::Parameter {
                operation: "Files::shard",
                parameter: "index",
                found: format!("{index} of {workers} workers"),
                expected: "less than the number of workers",
            });
        }
        Ok(self.iter().skip(index).step_by(workers).collect())
    }

    /// Returns the same files with a different [limit for one element](Location::element_limit), in bytes.
    pub fn element_limit(self, bytes: u64) -> Self {
        self.into_iter().map(|file| file.element_limit(bytes)).collect()
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the file with this index; `None` if there are fewer files.
    pub(crate) fn get(&self, index: usize) -> Option<&Location> {
        self.0.get(index)
    }

    /// Returns an iterator over the files, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Location> {
        self.0.iter()
    }
}

/// Finds the local files that match a pattern.
fn local(pattern: &str) -> Result<Vec<Location>> {
    let pattern = PathPattern::new(pattern).map_err(|e| not_a_pattern(pattern, &e))?;
    Ok(pattern.files()?.into_iter().map(Location::from).collect())
}

/// The objects of each folder that has been listed. The patterns from one brace expansion often share a folder.
type Listings = BTreeMap<String, Vec<(String, FileState)>>;

/// Returns whether a URL points to a single file on a web server. Web servers have no listings.
fn is_of_web_server(url: &str) -> bool {
    let (path, _query) = url.split_once('?').unwrap_or((url, ""));
    cfg!(feature = "object-store")
        && (url.starts_with("http://") || url.starts_with("https://"))
        && !path.contains(['*', '['])
}

/// Finds the objects that match a URL pattern. Folders that have been listed are kept in `listings`.
#[cfg(feature = "object-store")]
fn remote(pattern: &str, listings: &mut Listings) -> Result<Vec<Location>> {
    let (folder, name) = pattern.rsplit_once('/').unwrap_or_default();
    let name = glob::Pattern::new(name).map_err(|e| not_a_pattern(pattern, &e))?;
    if !listings.contains_key(folder) {
        let found = super::object_store::list(folder).map_err(|e| Location::from(pattern).io_error(e))?;
        listings.insert(folder.into(), found);
    }
    let named = listings.get(folder).into_iter().flatten().filter(|(object, _)| matches(&name, object));
    let url = |object: &str| format!("{folder}/{}", in_url(object));
    Ok(named.map(|(object, state)| Location::from(url(object)).listed_as(*state)).collect())
}
#[cfg(not(feature = "object-store"))]
fn remote(pattern: &str, _listings: &mut Listings) -> Result<Vec<Location>> {
    Err(Error::Feature { what: redact(pattern), feature: "object-store" })
}

fn not_a_pattern(pattern: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Parameter {
        operation: "Files::glob",
        parameter: "pattern",
        found: format!("'{}' ({error})", redact(pattern)),
        expected: "a pattern such as data/train-*.csv",
    }
}

macro_rules! from_one {
    ($($one:ty)*) => {
        $(impl From<$one> for Files {
            fn from(one: $one) -> Self {
                Self(vec![one.into()])
            }
        })*
    };
}
from_one!(Location &Location String &String &str std::path::PathBuf &std::path::PathBuf &std::path::Path);

impl<L: Into<Location>> From<Vec<L>> for Files {
    fn from(files: Vec<L>) -> Self {
        files.into_iter().collect()
    }
}
impl<L: Into<Location>, const N: usize> From<[L; N]> for Files {
    fn from(files: [L; N]) -> Self {
        files.into_iter().collect()
    }
}
impl<L: Into<Location> + Clone> From<&[L]> for Files {
    fn from(files: &[L]) -> Self {
        files.iter().cloned().collect()
    }
}
impl<L: Into<Location>> FromIterator<L> for Files {
    fn from_iter<I: IntoIterator<Item = L>>(files: I) -> Self {
        Self(files.into_iter().map(Into::into).collect())
    }
}

impl IntoIterator for Files {
    type Item = Location;
    type IntoIter = std::vec::IntoIter<Location>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
impl<'a> IntoIterator for &'a Files {
    type Item = &'a Location;
    type IntoIter = std::slice::Iter<'a, Location>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // AS-3
    #[test]
    fn worker_w_gets_files_w_and_every_next_by_the_number_of_workers() {
        let files = Files::from(["a", "b", "c"]);
        assert_eq!(files.shard(2, 0).unwrap(), Files::from(["a", "c"]));
        assert_eq!(files.shard(2, 1).unwrap(), Files::from("b"));
        assert_eq!(files.shard(1, 0).unwrap(), files);
    }

    // AS-11
    #[test]
    fn a_worker_outside_of_the_workers_is_refused() {
        for (workers, index) in [(0, 0), (2, 2), (1, usize::MAX)] {
            let error = Files::from("a").shard(workers, index).unwrap_err();
            let expected = format!(
                "Files::shard: index is {index} of {workers} workers, but must be less than the number of workers"
            );
            assert_eq!(error.to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn shards_are_the_files_each_once(count in 0usize..50, workers in 1usize..60) {
            let files: Files = (0..count).map(|i| format!("{i:02}")).collect();
            let shards: Vec<Files> = (0..workers).map(|w| files.shard(workers, w).unwrap()).collect();
            let mut all: Vec<Location> = shards.iter().flatten().cloned().collect();
            all.sort();
            prop_assert_eq!(Files(all), files);
            prop_assert!(shards.iter().all(|s| s.len() >= count / workers && s.len() <= count.div_ceil(workers)));
        }
    }

    #[test]
    fn glob_sorts_leaves_folders_out_and_names_the_pattern_if_nothing_matches() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b-1.csv", "a-10.csv", "a-2.csv", "c.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("folder.csv")).unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let found = Files::glob(&at("*.csv")).unwrap();
        assert_eq!(found, Files::from(vec![at("a-10.csv"), at("a-2.csv"), at("b-1.csv")]));
        let error = Files::glob(&at("*.npy")).unwrap_err();
        assert_eq!(error.to_string(), format!("no file matches '{}'", at("*.npy")));
        let error = Files::glob("a***").unwrap_err();
        assert!(matches!(&error, Error::Parameter { found, .. } if found.starts_with("'a***' (")), "{error}");
    }

    #[test]
    fn lists_of_anything_that_is_a_location() {
        let path = std::path::Path::new("a");
        for files in [Files::from("a"), path.into(), vec!["a"].into(), [path].into(), ["a"][..].into()] {
            assert_eq!(files, Files::from(Location::from("a")));
        }
    }
}
