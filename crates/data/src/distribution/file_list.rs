//! [`FileList`]: the files of a dataset, as part of positions and of messages to other workers.

use crate::Files;
use crate::file::{FileState, Location, differ};
use crate::pipeline::{self, Pipeline};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The files that a dataset reads, in order, with enough information to detect changes.
///
/// Files are compared by name, size and content. The common folder of all files is not part of a name, because
/// folders move and workers have their own copies. Only the first and the last 4096 bytes of the content are
/// compared. The modification time is not compared, because it differs between copies. If there are more than
/// 1024 files, all names are compared, but sizes and contents only of 1024 evenly spaced files. The size and the
/// tag of objects behind URLs are known only if [`Files::glob`](crate::Files::glob) has listed them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Contents", into = "Contents")]
pub struct FileList(Arc<Contents>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    /// The total number of files.
    count: u64,
    /// The common folder of all files.
    folder: String,
    /// A checksum of all names, without the common folder.
    names: u32,
    /// A checksum of the sizes and contents of the files that are compared.
    states: u32,
    /// The names and states of all files or, if there are more than [`MAX`], of evenly spaced ones; empty in a brief
    /// list.
    files: Vec<(String, FileState)>,
}

impl From<Contents> for FileList {
    fn from(contents: Contents) -> Self {
        Self(Arc::new(contents))
    }
}
impl From<FileList> for Contents {
    fn from(list: FileList) -> Self {
        Arc::unwrap_or_clone(list.0)
    }
}

/// The maximum number of files whose sizes and contents are compared.
const MAX: usize = 1024;

/// A difference between two lists of files, for an error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDifference {
    /// The property that differs, such as `the size of 'a.csv'`.
    pub what: String,
    /// The value of the property in the list on which [`FileList::difference`] was called, such as `3 bytes`.
    pub here: String,
    /// The value of the property in the other list.
    pub there: String,
}

impl FileDifference {
    fn new(what: impl Into<String>, here: impl Into<String>, there: impl Into<String>) -> Self {
        Self { what: what.into(), here: here.into(), there: there.into() }
    }
}

impl fmt::Display for FileDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} here and {} there", self.what, self.here, self.there)
    }
}

impl FileList {
    /// Returns the current files of all sources of the given pipelines; `None` if there are no files.
    pub(super) fn of<'a>(pipelines: impl IntoIterator<Item = &'a Pipeline>) -> Option<Self> {
        let mut all = Vec::new();
        for pipeline in pipelines {
            pipeline::visit(pipeline, &mut |operation| all.extend(operation.files().into_iter().flatten()));
        }
        (!all.is_empty()).then(|| Self::new(&all))
    }

    /// Returns the current state of the given files; `None` if there are none.
    pub(super) fn of_files(files: &Files) -> Option<Self> {
        let all: Vec<_> = files.iter().collect();
        (!all.is_empty()).then(|| Self::new(&all))
    }

    fn new(all: &[&Location]) -> Self {
        let shown: Vec<String> = all.iter().map(ToString::to_string).collect();
        let folder = common_folder(&shown);
        let relative = |name: &String| name.get(folder.len()..).unwrap_or_default().to_string();
        let count = all.len();
        let files: Vec<_> = (0..count.min(MAX))
            .map(|i| i * count / count.min(MAX))
            .filter_map(|i| Some((relative(shown.get(i)?), FileState::of(all.get(i)?))))
            .collect();
        let names = checksum(shown.iter().map(|name| relative(name).into_bytes()));
        let states = checksum(files.iter().map(|(_, state)| state.encode()));
        Contents { count: count as u64, folder, names, states, files }.into()
    }

    /// Returns a short form of the list, which consists of a few numbers. It suffices to detect that files
    /// differ, but not which ones.
    pub fn brief(&self) -> Self {
        Contents { folder: String::new(), files: Vec::new(), ..*self.0 }.into()
    }

    /// Returns the first difference from another list; `None` if there is none. A size or content that only one list
    /// contains is not a difference, unless one of the lists is [brief](Self::brief): checksums are then compared.
    pub fn difference(&self, other: &Self) -> Option<FileDifference> {
        let (here, there) = (self.0.as_ref(), other.0.as_ref());
        let brief = here.files.is_empty() || there.files.is_empty();
        let sum = |sum: u32| format!("of checksum {sum:08x}");
        if here.count != there.count {
            let first = here.other_name(there);
            let with = |list: &Contents| {
                let name = first.and_then(|first| list.files.get(first));
                match (brief, first, name) {
                    (false, Some(first), Some((name, _))) => {
                        format!("{} (file {first} is '{}{name}')", list.count, list.folder)
                    }
                    _ => list.count.to_string(),
                }
            };
            return Some(FileDifference::new("the number of files", with(here), with(there)));
        }
        if here.names != there.names {
            let shown = |list: &Contents, at: usize| {
                list.files.get(at).map(|(name, _)| format!("'{}{name}'", list.folder)).unwrap_or_default()
            };
            return Some(match here.other_name(there) {
                // Not all names are listed.
                None => FileDifference::new("one of the names", sum(here.names), sum(there.names)),
                Some(at) => {
                    let number = (at as u64).saturating_mul(here.count) / (here.files.len() as u64).max(1);
                    FileDifference::new(format!("file {number}"), shown(here, at), shown(there, at))
                }
            });
        }
        if brief {
            let what = "one of the sizes and contents";
            return (here.states != there.states)
                .then(|| FileDifference::new(what, sum(here.states), sum(there.states)));
        }
        here.files.iter().zip(&there.files).find_map(|((name, mine), (_, theirs))| {
            let name = format!("'{}{name}'", here.folder);
            if let Some((mine, theirs)) = differ(mine.bytes, theirs.bytes) {
                let bytes = |bytes| format!("{bytes} bytes");
                return Some(FileDifference::new(format!("the size of {name}"), bytes(mine), bytes(theirs)));
            }
            let (mine, theirs) = differ(mine.content, theirs.content)?;
            Some(FileDifference::new(format!("the content of {name}"), sum(mine), sum(theirs)))
        })
    }
}

impl Contents {
    /// Returns the first index at which the names in both lists differ; `None` if they are equal.
    fn other_name(&self, other: &Self) -> Option<usize> {
        let (mine, theirs) = (self.files.iter(), other.files.iter());
        let differs = |((mine, _), (theirs, _)): (&(String, _), &(String, _))| mine != theirs;
        let shorter = self.files.len().min(other.files.len());
        match mine.zip(theirs).position(differs) {
            None if self.files.len() != other.files.len() => Some(shorter),
            found => found,
        }
    }
}

/// Returns a checksum of several parts. It covers the length of each part.
fn checksum(parts: impl Iterator<Item = Vec<u8>>) -> u32 {
    parts.fold(0, |sum, part| {
        let sum = crc32c::crc32c_append(sum, &(part.len() as u64).to_le_bytes());
        crc32c::crc32c_append(sum, &part)
    })
}

/// Returns the common folder of all files, with the separator at its end.
fn common_folder(names: &[String]) -> String {
    let Some((first, rest)) = names.split_first() else { return String::new() };
    let end = |name: &str| name.rfind(|c| c == '/' || std::path::is_separator(c)).map_or(0, |at| at + 1);
    let mut folder = first.get(..end(first)).unwrap_or_default();
    for name in rest {
        while !name.starts_with(folder) {
            let shorter = folder.get(..folder.len().saturating_sub(1)).unwrap_or_default();
            folder = shorter.get(..end(shorter)).unwrap_or_default();
        }
    }
    folder.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(files: &[(&str, &str)]) -> FileList {
        let files: Vec<_> =
            files.iter().map(|(name, text)| Location::bytes(*name, text.to_string())).collect();
        FileList::new(&files.iter().collect::<Vec<_>>())
    }

    fn says(mine: &FileList, theirs: &FileList) -> String {
        mine.difference(theirs).map_or(String::new(), |difference| difference.to_string())
    }

    #[test]
    fn files_differ_by_name_size_and_content_and_folders_move() {
        let old = list(&[("old/x/a", "1"), ("old/b", "2")]);
        assert_eq!(says(&old, &list(&[("/new/x/a", "1"), ("/new/b", "2")])), "");
        assert_eq!(says(&list(&[("old/a", "1")]), &list(&[("s3://bucket/a", "1")])), "");
        for (other, expected) in [
            (&[("o/x/a", "1"), ("o/c", "2")][..], "file 1 is 'old/b' here and 'o/c' there"),
            (&[("old/b", "2"), ("old/x/a", "1")], "file 0 is 'old/x/a' here and 'old/b' there"),
            (&[("o/x/a", "1"), ("o/b", "22")], "the size of 'old/b' is 1 bytes here and 2 bytes there"),
            (&[("o/x/a", "3"), ("o/b", "2")], "the content of 'old/x/a' is of checksum "),
            (
                &[("old/x/a", "1"), ("old/b", "2"), ("old/c", "3")],
                "the number of files is 2 here and 3 (file 2 is 'old/c') there",
            ),
        ] {
            let other = list(other);
            assert!(says(&old, &other).starts_with(expected), "{}", says(&old, &other));
            assert!(old.brief().difference(&other).is_some() && other.difference(&old.brief()).is_some());
            assert!(old.difference(&other.brief()).is_some());
        }
        assert_eq!(old.brief().difference(&old), None);
    }

    #[test]
    fn of_many_files_all_names_are_compared_and_some_sizes() {
        let name = |i: usize| format!("{i:05}");
        let names: Vec<String> = (0..3000).map(name).collect();
        let files: Vec<_> = names.iter().map(|name| (name.as_str(), "text")).collect();
        let all = list(&files);
        assert_eq!(all.0.files.len(), MAX);
        let changed = |at: usize, file| {
            let mut files = files.clone();
            files[at] = file;
            says(&all, &list(&files))
        };
        assert_eq!(
            changed(0, ("00000", "more text")),
            "the size of '00000' is 4 bytes here and 9 bytes there"
        );
        assert!(changed(1, ("00001.5", "text")).starts_with("one of the names is of checksum"));
        assert!(changed(2999, ("x", "text")).contains("is"));
    }

    #[test]
    fn the_common_folder_is_that_of_whole_names() {
        let folder =
            |names: &[&str]| common_folder(&names.iter().map(|name| (*name).into()).collect::<Vec<_>>());
        assert_eq!(folder(&["/a/b/c", "/a/b/d"]), "/a/b/");
        assert_eq!(folder(&["/a/b1/c", "/a/b2/c"]), "/a/");
        assert_eq!(folder(&["a/b", "c"]), "");
        assert_eq!(folder(&["s3://x/a", "/s3"]), "");
        assert_eq!(folder(&["a"]), "");
        assert_eq!(folder(&[]), "");
    }
}
