//! Checks that `inventory.md` is complete and true: each name has an item and a test that exist, and its item can be
//! found by the TensorFlow name.

use super::{all_tests, read, sources};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The text that names without an implementation have in place of a test.
const WITHOUT_A_TEST: &str = "out of scope";

/// A row of a table: a name of TensorFlow, and its equivalent here.
struct Row<'a> {
    name: &'a str,
    here: &'a str,
    test: &'a str,
    aliases: &'a str,
}

/// Returns the rows of all tables.
fn table(page: &str) -> Vec<Row<'_>> {
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

/// Returns the parts of a cell that are in backticks.
fn codes(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the items in a cell and the files that they link to: ``[`item`](file)``.
fn items(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    cell.split("[`").skip(1).map(|link| {
        let (item, rest) = link.split_once("`](../../../../../").expect("a link into the repository");
        (item, rest.split_once(')').expect("the end of a link").0)
    })
}

/// Returns whether `rest` begins with `name`, and the name ends there.
fn names(rest: &str, name: &str) -> bool {
    let after = rest.strip_prefix(name);
    after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Returns the line on which a source declares a public name: an item, a variant, a field, or a trait's function.
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

/// Returns whether the documentation above a line contains an example.
fn has_example(source: &str, line: usize) -> bool {
    let above: Vec<&str> = source.lines().take(line).map(str::trim_start).collect();
    let documentation =
        above.iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
    documentation.into_iter().any(|line| *line == "/// ```")
}

/// The sources of all crates, and the tests in them that `cargo test` runs.
struct Repository<'a> {
    sources: &'a BTreeMap<PathBuf, String>,
    tests: BTreeMap<&'a str, Vec<&'a Path>>,
}

impl<'a> Repository<'a> {
    fn of(sources: &'a BTreeMap<PathBuf, String>) -> Self {
        Self { sources, tests: all_tests(sources) }
    }
}

/// Returns the mistakes in a row.
fn faults(row: &Row<'_>, Repository { sources, tests }: &Repository<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for (item, file) in items(row.here) {
        let name = item.rsplit("::").next().unwrap_or(item);
        if sources.get(Path::new(file)).and_then(|source| declaration(source, name)).is_none() {
            faults.push(format!("{file} has no public {item}"));
        }
    }
    if row.test.is_empty() || row.here.is_empty() {
        faults.push("has no item or no test".into());
    } else if row.test == WITHOUT_A_TEST {
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
            tests.contains_key(test)
        };
        if !is_there {
            faults.push(format!(
                "there is no {} {test}",
                if doctest { "example of" } else { "test that runs," }
            ));
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

#[test]
fn every_name_has_an_item_and_a_test_and_is_found_by_its_tensorflow_name() {
    let (page, sources) = (read("crates/distribute/tests/computing/ledgers/inventory.md"), sources());
    let repository = Repository::of(&sources);
    let rows = table(&page);
    // The number of rows in the list of the specification, so that a lost row is noticed.
    assert_eq!(rows.len(), 193, "rows");
    let faults: Vec<String> = rows
        .iter()
        .flat_map(|row| faults(row, &repository).into_iter().map(|fault| format!("{}: {fault}", row.name)))
        .collect();
    assert!(faults.is_empty(), "inventory.md:\n{}", faults.join("\n"));
}

#[test]
fn a_row_that_is_not_true_is_found() {
    let sources = sources();
    let repository = Repository::of(&sources);
    let fault =
        |row: &str| table(row).iter().flat_map(|row| faults(row, &repository)).collect::<Vec<_>>().join("; ");
    let file = "crates/core/src/ops/run/mod.rs";
    let item = format!("[`Strategy::run`](../../../../../{file})");
    let test = "`run_3_each_replica_gets_its_component_of_distributed_values_and_all_other_values`";
    assert_eq!(fault(&format!("| run | calls | {item} | {test} | `tf.distribute.Strategy.run` |")), "");
    assert_eq!(fault("| run | calls | — | out of scope | |"), "");
    for coming in ["several machines", "parameter servers"] {
        assert!(fault(&format!("| run | calls | — | {coming} | |")).contains("neither a test"));
    }
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
        fault(&format!("| run | calls | [`Strategy::walk`](../../../../../{file}) | {test} | |")),
        format!("{file} has no public Strategy::walk")
    );
    assert_eq!(fault(&format!("| run | calls | {item} | `run_3` | |")), "there is no test that runs, run_3");
    // A function, but not a test.
    assert_eq!(
        fault(&format!("| run | calls | {item} | `has_example` | |")),
        "there is no test that runs, has_example"
    );
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
