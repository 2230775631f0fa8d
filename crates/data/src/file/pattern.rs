//! [`PathPattern`]: the search for local files whose paths match a pattern.

use crate::{Location, Result};
use glob::{Pattern, PatternError};
use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// A pattern for paths, divided into segments.
pub(super) struct PathPattern(Vec<Segment>);

enum Segment {
    /// A literal name, or a component such as `/` or `..`.
    Literal(PathBuf),
    /// A pattern for one name.
    Name(Pattern),
    /// Any number of nested folders: `**`.
    Folders,
}

impl PathPattern {
    pub(super) fn new(pattern: &str) -> std::result::Result<Self, PatternError> {
        // Parsed as a whole, for the positions in errors.
        Pattern::new(pattern)?;
        let segment = |component: Component<'_>| {
            let text = component.as_os_str().to_string_lossy();
            Ok(match component {
                Component::Normal(_) if text == "**" => Segment::Folders,
                Component::Normal(_) if text.contains(['*', '?', '[']) => Segment::Name(Pattern::new(&text)?),
                other => Segment::Literal(other.as_os_str().into()),
            })
        };
        Path::new(pattern).components().map(segment).collect::<std::result::Result<_, _>>().map(Self)
    }

    /// Finds the files that match. Links are followed, but `**` enters no folder twice, even if several paths
    /// lead to it. Otherwise, folders that link to each other would have a path for each of their permutations.
    pub(super) fn files(&self) -> Result<BTreeSet<PathBuf>> {
        let mut walk = Walk::default();
        walk.descend(PathBuf::new(), &self.0)?;
        Ok(walk.found)
    }
}

#[derive(Default)]
struct Walk {
    found: BTreeSet<PathBuf>,
    /// The real paths of the folders that `**` has entered, each with the number of remaining segments of the
    /// pattern. The same remaining segments match the same files in a folder, regardless of the path that led to it.
    entered: BTreeSet<(usize, PathBuf)>,
}

impl Walk {
    fn descend(&mut self, at: PathBuf, segments: &[Segment]) -> Result<()> {
        let Some((segment, rest)) = segments.split_first() else {
            if at.symlink_metadata().is_ok() && !at.is_dir() {
                self.found.insert(at);
            }
            return Ok(());
        };
        match segment {
            Segment::Literal(name) => self.descend(at.join(name), rest),
            Segment::Name(pattern) => {
                for (_, entry) in entries(&at)? {
                    // Invalid UTF-8 is matched as the replacement character.
                    let name = entry.file_name().map(|name| name.to_string_lossy());
                    let matches = name.is_some_and(|name| matches(pattern, &name));
                    if matches && (rest.is_empty() || entry.is_dir()) {
                        self.descend(entry, rest)?;
                    }
                }
                Ok(())
            }
            Segment::Folders => {
                for folder in self.enter(at, rest.len())? {
                    self.descend(folder, rest)?;
                }
                Ok(())
            }
        }
    }

    /// Returns a folder and all folders below it, except hidden ones and those that have already been entered with the
    /// given number of remaining segments. If a path without links leads to a folder, that path is used.
    fn enter(&mut self, at: PathBuf, left: usize) -> Result<Vec<PathBuf>> {
        let mut entered = Vec::new();
        let (mut folders, mut links) = (vec![at], VecDeque::new());
        while let Some(folder) = folders.pop().or_else(|| links.pop_front()) {
            let place = match here(&folder).canonicalize() {
                Ok(place) => place,
                Err(e) if is_absent(&e) => continue,
                Err(e) => return Err(Location::from(here(&folder)).io_error(e)),
            };
            if !self.entered.insert((left, place)) {
                continue;
            }
            let hidden = |entry: &PathBuf| {
                entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
            };
            let within = entries(&folder)?.into_iter().filter(|(_, entry)| entry.is_dir() && !hidden(entry));
            let (linked, own): (Vec<_>, Vec<_>) = within.partition(|(is_link, _)| *is_link);
            links.extend(linked.into_iter().map(|(_, entry)| entry));
            folders.extend(own.into_iter().rev().map(|(_, entry)| entry));
            entered.push(folder);
        }
        Ok(entered)
    }
}

/// Returns whether a name matches a pattern. Hidden files, whose names begin with a dot, match only a pattern
/// that begins with a dot, because notebooks, file systems and editors leave hidden copies of other files.
pub(super) fn matches(pattern: &Pattern, name: &str) -> bool {
    (!name.starts_with('.') || pattern.as_str().starts_with('.')) && pattern.matches(name)
}

/// Returns the path itself, or the current folder if the path is empty.
fn here(at: &Path) -> &Path {
    if at.as_os_str().is_empty() { Path::new(".") } else { at }
}

/// Returns the entries of a folder and whether each is a link, sorted with links last. Returns an empty list if
/// it is not a folder.
fn entries(folder: &Path) -> Result<Vec<(bool, PathBuf)>> {
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_type()?.is_symlink(), folder.join(entry.file_name())))
    };
    let read = || std::fs::read_dir(here(folder))?.map(entry).collect::<std::io::Result<Vec<_>>>();
    match read() {
        Ok(mut entries) => {
            entries.sort();
            Ok(entries)
        }
        Err(e) if is_absent(&e) => Ok(Vec::new()),
        Err(e) => Err(Location::from(here(folder)).io_error(e)),
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use crate::{Files, Location};
    use std::path::Path;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    fn found(folder: &Path, pattern: &str) -> Vec<String> {
        let files = Files::glob(folder.join(pattern).to_str().unwrap()).map(|files| files.into_iter());
        let name = |file: Location| {
            file.path().unwrap().strip_prefix(folder).unwrap().to_string_lossy().into_owned()
        };
        files.map_or(Vec::new(), |files| files.map(name).collect())
    }

    #[test]
    fn names_and_folders_match() {
        let folder = tree(&["a.csv", "b.txt", "x/a.csv", "x/y/b.csv", "x/y/.c.csv", "z/[1].csv"]);
        let found = |pattern| found(folder.path(), pattern);
        assert_eq!(found("*.csv"), ["a.csv"]);
        assert_eq!(found("?/*.csv"), ["x/a.csv", "z/[1].csv"]);
        assert_eq!(found("**/*.csv"), ["a.csv", "x/a.csv", "x/y/b.csv", "z/[1].csv"]);
        assert_eq!(found("**/.*.csv"), ["x/y/.c.csv"]);
        assert_eq!(found("**/y/**/b*"), ["x/y/b.csv"]);
        assert_eq!(found("x/../x/y/[!.]*"), ["x/../x/y/b.csv"]);
        assert_eq!(found("b.txt"), ["b.txt"]);
        assert_eq!(found("z/[[]1].csv"), ["z/[1].csv"]);
        assert_eq!(found("**"), [""; 0]);
        assert_eq!(found("a.csv/*"), [""; 0]);
        assert_eq!(found("none/*"), [""; 0]);
    }

    #[test]
    fn hidden_files_and_folders_match_only_a_dot() {
        let folder =
            tree(&["a.csv", "._a.csv", ".a.csv.crc", ".ipynb_checkpoints/a.csv", "x/.git/a.csv", "x/b.csv"]);
        let found = |pattern| found(folder.path(), pattern);
        assert_eq!(found("*"), ["a.csv"]);
        assert_eq!(found("?a.csv*"), [""; 0]);
        assert_eq!(found("[.]a*"), [""; 0]);
        assert_eq!(found("**/*.csv"), ["a.csv", "x/b.csv"]);
        assert_eq!(found(".*"), ["._a.csv", ".a.csv.crc"]);
        assert_eq!(found(".ipynb*/*"), [".ipynb_checkpoints/a.csv"]);
        assert_eq!(found("**/.git/*"), ["x/.git/a.csv"]);
    }

    #[test]
    fn braces_are_several_patterns_each_of_which_finds_something() {
        let folder = tree(&["t-000.tar", "t-001.tar", "t-002.tar", "v-0.tar", "b{x}.tar"]);
        let found = |pattern| found(folder.path(), pattern);
        assert_eq!(found("t-{000..001}.tar"), ["t-000.tar", "t-001.tar"]);
        assert_eq!(found("{t-*,v-{0..0}}.tar"), ["t-000.tar", "t-001.tar", "t-002.tar", "v-0.tar"]);
        assert_eq!(found("b{x}.tar"), ["b{x}.tar"]);
        let missing = Files::glob(folder.path().join("t-{001..003}.tar").to_str().unwrap()).unwrap_err();
        assert!(missing.to_string().ends_with("t-003.tar'"), "{missing}");
        if cfg!(feature = "object-store") {
            let web = Files::glob("https://host/t-{0..2}.tar?sig=abc").unwrap();
            assert_eq!(web.iter().nth(2), Some(&Location::from("https://host/t-2.tar?sig=abc")));
            // A query may contain any character.
            for one in ["https://host/a.csv", "http://host/b/a.csv?sig=[a/b]*c"] {
                assert_eq!(Files::glob(one).unwrap(), Files::from(one));
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_no_text_are_files_too() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let folder = tree(&["a.csv"]);
        let odd = folder.path().join(OsStr::from_bytes(b"b\xff.csv"));
        if std::fs::write(&odd, "1\n").is_err() {
            return; // This file system has no such names.
        }
        let files = Files::glob(folder.path().join("*.csv").to_str().unwrap()).unwrap();
        assert_eq!(files.iter().nth(1).unwrap().path(), Some(odd.as_path()));
        assert_eq!(crate::text_lines(files).iter().map(Result::unwrap).collect::<Vec<_>>(), ["1"]);
        assert_eq!(found(folder.path(), "b?.csv").len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_but_not_in_circles() {
        use std::os::unix::fs::symlink;
        let (folder, outside) = (tree(&["x/a.csv", "x/y/b.csv"]), tree(&["c.csv"]));
        let at = |name: &str| folder.path().join(name);
        symlink("../..", at("x/y/up")).unwrap();
        symlink(".", at("x/self")).unwrap();
        symlink("x/y", at("other")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        symlink(outside.path(), at("x/outside")).unwrap();
        // Each file is found once, by a path without links if there is one.
        assert_eq!(found(folder.path(), "**/*.csv"), ["x/a.csv", "x/outside/c.csv", "x/y/b.csv"]);
        assert_eq!(found(folder.path(), "*/**/b.csv"), ["x/y/b.csv"]);
        // Links are matched by their names as well.
        assert_eq!(found(folder.path(), "**/other/*.csv"), ["other/b.csv"]);
        assert_eq!(
            found(folder.path(), "other/**/*.csv"),
            ["other/b.csv", "other/up/x/a.csv", "other/up/x/outside/c.csv"]
        );
    }

    /// Checks that folders that link to each other are entered once. There are more than 10⁴⁷ paths without a cycle.
    #[cfg(unix)]
    #[test]
    fn folders_that_link_to_each_other_are_entered_once() {
        distribute_testing::watched(|| {
            let names: Vec<String> = (0..40).map(|i| format!("{i:02}/a.csv")).collect();
            let folder = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
            for (i, j) in (0..40 * 40).map(|n| (n / 40, n % 40)) {
                let link = folder.path().join(format!("{i:02}/to-{j:02}"));
                std::os::unix::fs::symlink(format!("../{j:02}"), link).unwrap();
            }
            assert_eq!(found(folder.path(), "**/*.csv"), names);
            assert_eq!(found(folder.path(), "**/**/a.*"), names);
        });
    }
}
