//! docs/inventory.md is complete and true: every name has an item that exists and a test that exists, and is found by
//! its TensorFlow name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What may stand in place of a test, of names that are not there (yet).
const WITHOUT_A_TEST: [&str; 3] = ["several machines", "parameter servers", "out of scope"];

/// A row of a table: a name of TensorFlow's, and what there is of it here.
struct Row<'a> {
    name: &'a str,
    here: &'a str,
    test: &'a str,
    aliases: &'a str,
}

/// The rows of all tables.
fn rows(page: &str) -> Vec<Row<'_>> {
    let of = |line| {
        let cells: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        let ["", name, meaning, here, test, aliases, ""] = cells[..] else {
            panic!("not five columns: {line}")
        };
        assert!(!name.is_empty() && !meaning.is_empty(), "an empty cell: {line}");
        Row { name, here, test, aliases }
    };
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| TensorFlow |");
    page.lines().filter(is_row).map(of).collect()
}

/// What stands in backticks.
fn codes(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Items and the files they are linked to: ``[`item`](file)``.
fn items(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    cell.split("[`").skip(1).map(|link| {
        let (item, rest) = link.split_once("`](../").expect("a link into the repository");
        (item, rest.split_once(')').expect("the end of a link").0)
    })
}

/// All Rust sources under a folder, by their path from the root of the repository.
fn sources(root: &Path, folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(root, &path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            found.insert(path.strip_prefix(root).expect("under the root").to_path_buf(), text);
        }
    }
}

/// Whether a line goes on with this name, and the name ends there.
fn names(rest: &str, name: &str) -> bool {
    let after = rest.strip_prefix(name);
    after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// The line on which a source makes a name public: an item, a variant, a field, or a trait's function.
fn declaration(source: &str, name: &str) -> Option<usize> {
    let mut block = "";
    source.lines().position(|line| {
        if line.starts_with("pub ") || line.starts_with("impl") || line.starts_with("fn ") {
            block = line;
        }
        let code = line.trim_start();
        let item = ["pub fn ", "pub struct ", "pub enum ", "pub trait "]
            .iter()
            .any(|kind| code.strip_prefix(kind).is_some_and(|rest| names(rest, name)));
        let of_trait = (block.starts_with("pub trait")
            || block.starts_with("impl") && block.contains(" for "))
            && code.strip_prefix("fn ").is_some_and(|rest| names(rest, name));
        let variant = block.starts_with("pub enum") && line.starts_with("    ") && names(code, name);
        let field = code.strip_prefix("pub ").is_some_and(|rest| rest.starts_with(&format!("{name}:")));
        item || of_trait || variant || field
    })
}

/// Whether the documentation above a line has an example.
fn has_example(source: &str, line: usize) -> bool {
    let above: Vec<&str> = source.lines().take(line).map(str::trim_start).collect();
    let documentation =
        above.iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
    documentation.into_iter().any(|line| *line == "/// ```")
}

/// Whether a source has a test of this name.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let is_it = |line: &str| line.strip_prefix("fn ").is_some_and(|rest| names(rest, name));
    let at = lines.iter().position(|line| is_it(line));
    at.is_some_and(|at| lines[..at].iter().rev().take_while(|l| l.starts_with("#[")).any(|l| *l == "#[test]"))
}

/// What is wrong with a row.
fn faults(row: &Row<'_>, sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (item, file) in items(row.here) {
        let name = item.rsplit("::").next().unwrap_or(item);
        if sources.get(Path::new(file)).and_then(|source| declaration(source, name)).is_none() {
            faults.push(format!("{file} has no public {item}"));
        }
    }
    if row.test.is_empty() || row.here.is_empty() {
        faults.push("has no item or no test".into());
    } else if WITHOUT_A_TEST.contains(&row.test) {
        return faults;
    }
    if items(row.here).next().is_none() {
        faults.push("names no item".into());
    }
    let doctest = row.test.starts_with("doctest of ");
    for test in codes(row.test) {
        let is_there = if doctest {
            sources
                .values()
                .any(|source| declaration(source, test).is_some_and(|line| has_example(source, line)))
        } else {
            sources.values().any(|source| has_test(source, test))
        };
        if !is_there {
            faults.push(format!("there is no {} {test}", if doctest { "example of" } else { "test" }));
        }
    }
    if codes(row.test).next().is_none() {
        faults.push(format!("{:?} is neither a test nor a reason for none", row.test));
    }
    for alias in codes(row.aliases) {
        let attribute = format!("#[doc(alias = \"{alias}\")]");
        let in_src = |(path, source): (&PathBuf, &String)| {
            path.components().any(|part| part.as_os_str() == "src") && source.contains(&attribute)
        };
        if !sources.iter().any(in_src) {
            faults.push(format!("no item has {attribute}"));
        }
    }
    faults
}

fn repository() -> (String, BTreeMap<PathBuf, String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let page = std::fs::read_to_string(root.join("docs/inventory.md")).expect("docs/inventory.md");
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(root.join("crates")).expect("crates") {
        for folder in ["src", "tests"].map(|name| entry.as_ref().expect("a crate").path().join(name)) {
            if folder.is_dir() {
                sources(&root, &folder, &mut all);
            }
        }
    }
    (page, all)
}

#[test]
fn every_name_has_an_item_and_a_test_and_is_found_by_its_tensorflow_name() {
    let (page, sources) = repository();
    let rows = rows(&page);
    // Those of the specification's list: a row that is lost is noticed, too.
    assert_eq!(rows.len(), 193, "rows");
    let faults: Vec<String> = rows
        .iter()
        .flat_map(|row| faults(row, &sources).into_iter().map(|fault| format!("{}: {fault}", row.name)))
        .collect();
    assert!(faults.is_empty(), "docs/inventory.md:\n{}", faults.join("\n"));
}

#[test]
fn a_row_that_is_not_true_is_found() {
    let (_, sources) = repository();
    let fault =
        |row: &str| rows(row).iter().flat_map(|row| faults(row, &sources)).collect::<Vec<_>>().join("; ");
    let file = "crates/distribute/src/strategy/run.rs";
    let item = format!("[`Strategy::run`](../{file})");
    let test = "`run_3_each_replica_gets_its_part_of_what_is_distributed_and_all_of_the_rest`";
    assert_eq!(fault(&format!("| run | calls | {item} | {test} | `tf.distribute.Strategy.run` |")), "");
    assert_eq!(fault("| run | calls | — | several machines | |"), "");
    assert_eq!(
        fault(&format!("| run | calls | {item} | | |")),
        "has no item or no test; \"\" is neither a test nor a reason for none"
    );
    assert_eq!(
        fault(&format!("| run | calls | {item} | later | |")),
        "\"later\" is neither a test nor a reason for none"
    );
    assert_eq!(fault(&format!("| run | calls | runs | {test} | |")), "names no item");
    assert_eq!(
        fault(&format!("| run | calls | [`Strategy::walk`](../{file}) | {test} | |")),
        format!("{file} has no public Strategy::walk")
    );
    assert_eq!(fault(&format!("| run | calls | {item} | `run_3` | |")), "there is no test run_3");
    // A function, but not a test.
    assert_eq!(fault(&format!("| run | calls | {item} | `has_example` | |")), "there is no test has_example");
    assert_eq!(
        fault(&format!("| run | calls | {item} | doctest of `Weighting` | |")),
        "there is no example of Weighting"
    );
    let walk = "tf.distribute.Strategy.walk";
    assert_eq!(
        fault(&format!("| run | calls | {item} | {test} | `{walk}` |")),
        format!("no item has #[doc(alias = \"{walk}\")]")
    );
}
