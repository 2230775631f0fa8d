//! Checks of `inventory.md` and `pages.md`, whose tables name tests.

mod inventory;
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Reads a file of the repository, by its path from the root.
fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the sources of all crates, by their paths from the root of the repository.
fn sources() -> BTreeMap<PathBuf, String> {
    let root = root();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let folders = crates.flat_map(|path| [path.join("src"), path.join("tests")]);
    let mut folders: Vec<_> = folders.filter(|folder| folder.is_dir()).collect();
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = read(&path);
                files.insert(path.strip_prefix(&root).unwrap().to_path_buf(), text);
            }
        }
    }
    files
}

/// Returns the name of the function whose declaration starts on this line.
fn function(line: &str) -> Option<&str> {
    let name = line.trim_start().trim_start_matches("pub ").strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

/// Returns the names of the functions in a file that `cargo test` runs: tests that are not ignored and not excluded
/// from every build.
fn tests(source: &str) -> Vec<&str> {
    let (mut is_test, mut is_left_out) = (false, false);
    let mut names = Vec::new();
    for line in source.lines().map(str::trim_start) {
        match function(line) {
            _ if line.starts_with("#[") => {
                is_test |= line == "#[test]";
                is_left_out |= line.starts_with("#[ignore") || line.starts_with("#[cfg(any())");
            }
            _ if line.starts_with("//") => {}
            name => {
                names.extend(name.filter(|_| is_test && !is_left_out));
                (is_test, is_left_out) = (false, false);
            }
        }
    }
    names
}

/// Returns the files that are compiled: roots of crates and of their tests, and modules that are declared in the same
/// crate.
fn compiled(sources: &BTreeMap<PathBuf, String>) -> Vec<&Path> {
    let mut modules = BTreeSet::new();
    for (path, source) in sources {
        let names = source.lines().filter_map(|line| {
            let (before, name) = line.trim_start().strip_suffix(';')?.rsplit_once("mod ")?;
            (before.is_empty() || before.starts_with("pub")).then_some(name)
        });
        modules.extend(names.map(|name| (of_crate(path), name)));
    }
    let is_compiled = |path: &&Path| {
        let parts: Vec<&str> = path.iter().skip(2).filter_map(|part| part.to_str()).collect();
        let name = match parts[..] {
            ["src", "lib.rs" | "main.rs"] | ["src", "bin", ..] => return true,
            ["tests", _] | ["tests", _, "main.rs"] => return true,
            [.., folder, "mod.rs"] => folder,
            [.., file] => file.trim_end_matches(".rs"),
            [] => return false,
        };
        modules.contains(&(of_crate(path), name))
    };
    sources.keys().map(PathBuf::as_path).filter(is_compiled).collect()
}

/// Returns the crate of a file. The tests of a crate count as a separate crate.
fn of_crate(path: &Path) -> PathBuf {
    path.iter().take(3).collect()
}

/// Returns the names of all tests that run, with the files that contain them.
fn all_tests(sources: &BTreeMap<PathBuf, String>) -> BTreeMap<&str, Vec<&Path>> {
    let mut all = BTreeMap::<&str, Vec<&Path>>::new();
    for path in compiled(sources) {
        for name in sources.get(path).map(|source| tests(source)).into_iter().flatten() {
            all.entry(name).or_default().push(path);
        }
    }
    all
}

#[test]
fn a_test_is_one_that_runs() {
    let source = "#[test]\n// why\n#[ignore]\nfn a() {}\nfn b() {}\n  #[test]\n  fn c<T>() {}\n#[ignore = \"slow\"]\n#[test]\n\
        fn d() {}\n/// e\n#[test]\n#[cfg(unix)]\nfn e() {}\n#[cfg(any())]\n#[test]\nfn f() {}";
    assert_eq!(tests(source), ["c", "e"]);
    let file = |path: &str, source: &str| (PathBuf::from(path), source.to_string());
    let sources = BTreeMap::from([
        file("crates/x/src/lib.rs", "mod a;\n"),
        file("crates/x/src/a/mod.rs", "    pub(crate) mod b;\n// mod c;\n"),
        file("crates/x/src/a/b.rs", ""),
        file("crates/x/src/a/c.rs", "#[test]\nfn orphan() {}"),
        file("crates/x/tests/t.rs", "mod u;\n#[test]\nfn seen() {}"),
        file("crates/x/tests/t/u.rs", ""),
        file("crates/x/tests/t/v.rs", ""),
        file("crates/y/src/lib.rs", "mod c;\n"),
    ]);
    let compiled: Vec<_> = compiled(&sources).into_iter().map(|path| path.display().to_string()).collect();
    let left_out = ["crates/x/src/a/c.rs", "crates/x/tests/t/v.rs"];
    assert!(left_out.iter().all(|path| !compiled.iter().any(|found| found == path)), "{compiled:?}");
    assert_eq!(compiled.len(), sources.len() - left_out.len(), "{compiled:?}");
    assert_eq!(all_tests(&sources).into_keys().collect::<Vec<_>>(), ["seen"]);
}
