//! Local files whose paths match a pattern.

use crate::{Location, Result};
use glob::{Pattern, PatternError};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// A pattern of paths, part by part.
pub(super) struct PathPattern(Vec<Part>);

enum Part {
    /// A name as it stands, or what comes before names: `/`, `..`.
    Literal(PathBuf),
    /// A name that matches.
    Name(Pattern),
    /// Any number of folders.
    Folders,
}

impl PathPattern {
    pub(super) fn new(pattern: &str) -> std::result::Result<Self, PatternError> {
        // As a whole, for the places of errors.
        Pattern::new(pattern)?;
        let part = |component: Component<'_>| {
            let text = component.as_os_str().to_string_lossy();
            Ok(match component {
                Component::Normal(_) if text == "**" => Part::Folders,
                Component::Normal(_) if text.contains(['*', '?', '[']) => Part::Name(Pattern::new(&text)?),
                other => Part::Literal(other.as_os_str().into()),
            })
        };
        Path::new(pattern).components().map(part).collect::<std::result::Result<_, _>>().map(Self)
    }

    /// The files that match. Links are followed, but no folder is entered from within itself.
    pub(super) fn files(&self) -> Result<BTreeSet<PathBuf>> {
        let mut walk = Walk::default();
        walk.descend(PathBuf::new(), &self.0)?;
        Ok(walk.found)
    }
}

#[derive(Default)]
struct Walk {
    found: BTreeSet<PathBuf>,
    /// Where the folders really are that are being walked through.
    within: Vec<PathBuf>,
}

impl Walk {
    fn descend(&mut self, at: PathBuf, parts: &[Part]) -> Result<()> {
        let Some((part, rest)) = parts.split_first() else {
            if at.symlink_metadata().is_ok() && !at.is_dir() {
                self.found.insert(at);
            }
            return Ok(());
        };
        match part {
            Part::Literal(name) => self.descend(at.join(name), rest),
            Part::Name(pattern) => {
                for entry in entries(&at)? {
                    // What is no text is matched by what stands for a character that is none.
                    let name = entry.file_name().map(|name| name.to_string_lossy());
                    let matches = name.is_some_and(|name| pattern.matches(&name));
                    if matches && (rest.is_empty() || entry.is_dir()) {
                        self.descend(entry, rest)?;
                    }
                }
                Ok(())
            }
            Part::Folders => {
                self.descend(at.clone(), rest)?;
                let Ok(here) = here(&at).canonicalize() else { return Ok(()) };
                if self.within.contains(&here) {
                    return Ok(());
                }
                self.within.push(here);
                for entry in entries(&at)?.into_iter().filter(|entry| entry.is_dir()) {
                    if !self.is_within(&entry) {
                        self.descend(entry, parts)?;
                    }
                }
                self.within.pop();
                Ok(())
            }
        }
    }

    /// Whether a folder is one of those that lead to it.
    fn is_within(&self, folder: &Path) -> bool {
        folder.canonicalize().is_ok_and(|folder| self.within.contains(&folder))
    }
}

/// The folder that a path is, where no path is this one.
fn here(at: &Path) -> &Path {
    if at.as_os_str().is_empty() { Path::new(".") } else { at }
}

/// What is in a folder; nothing if it is none.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Location::from(here(folder)).io_error(e);
    match std::fs::read_dir(here(folder)) {
        Ok(entries) => entries.map(|e| Ok(folder.join(e.map_err(failed)?.file_name()))).collect(),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(e) => Err(failed(e)),
    }
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
        assert_eq!(found("**/*.csv"), ["a.csv", "x/a.csv", "x/y/.c.csv", "x/y/b.csv", "z/[1].csv"]);
        assert_eq!(found("**/y/**/b*"), ["x/y/b.csv"]);
        assert_eq!(found("x/../x/y/[!.]*"), ["x/../x/y/b.csv"]);
        assert_eq!(found("b.txt"), ["b.txt"]);
        assert_eq!(found("z/[[]1].csv"), ["z/[1].csv"]);
        assert_eq!(found("**"), [""; 0]);
        assert_eq!(found("a.csv/*"), [""; 0]);
        assert_eq!(found("none/*"), [""; 0]);
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
        let folder = tree(&["x/a.csv", "x/y/b.csv"]);
        let at = |name: &str| folder.path().join(name);
        symlink("../..", at("x/y/up")).unwrap();
        symlink(".", at("x/self")).unwrap();
        symlink("x/y", at("other")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        let mut files = found(folder.path(), "**/*.csv");
        files.retain(|file| !file.starts_with("other"));
        assert_eq!(files, ["x/a.csv", "x/y/b.csv"]);
        assert!(found(folder.path(), "**/*.csv").contains(&"other/b.csv".to_string()), "links are followed");
        assert!(found(folder.path(), "**/*.csv").len() < 10);
    }
}
