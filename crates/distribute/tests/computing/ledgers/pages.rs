//! Checks that `pages.md` names a test for each sentence of the pages, and that the test exists.

use super::{all_tests, function, read, sources, tests};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The test files in `contexts` that were written for the pages.
const OF_PAGES: [&str; 7] =
    ["beside", "documents", "partitioners", "replica_context", "scope", "strategy", "strategy_extended"];

/// A row of a table: its location, how the page's statement holds here, and the names in its last two cells.
struct Row {
    line: usize,
    holds: String,
    rules: Vec<String>,
    proofs: Vec<Proof>,
}

#[derive(Debug, PartialEq)]
enum Proof {
    Test(String),
    Doctest(String),
    CompileFail(String),
    Unreadable(String),
}

impl Proof {
    fn read(text: &str) -> Self {
        let quoted = |text: &str| text.strip_prefix('`')?.strip_suffix('`').map(String::from);
        let proof = match text.split_once(' ') {
            Some(("doctest", item)) => quoted(item).map(Proof::Doctest),
            Some(("compile_fail", item)) => quoted(item).map(Proof::CompileFail),
            _ => quoted(text).map(Proof::Test),
        };
        proof.unwrap_or_else(|| Proof::Unreadable(text.into()))
    }
}

fn rows(page: &str) -> Vec<Row> {
    let list = |cell: &str| cell.split(", ").filter(|s| !s.is_empty()).map(String::from).collect::<Vec<_>>();
    let row = |(line, text): (usize, &str)| {
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [says, holds, rules, proofs] = cells[..] else {
            panic!("line {line} has not four cells: {text}")
        };
        let is_head = says == "page says" || says.starts_with("---") || says.starts_with("**");
        let proofs = list(proofs).iter().map(|proof| Proof::read(proof)).collect();
        (!is_head).then(|| Row { line, holds: holds.into(), rules: list(rules), proofs })
    };
    (1..).zip(page.lines()).filter(|(_, line)| line.starts_with('|')).filter_map(row).collect()
}

/// Returns whether the documentation of an item, `Type` or `Type::function`, has a code block whose beginning matches
/// `begins`.
fn has_block(files: &BTreeMap<PathBuf, String>, item: &str, begins: impl Fn(&str) -> bool) -> bool {
    let (of, name) = item.split_once("::").map_or((None, item), |(of, name)| (Some(of), name));
    let declares = |line: &str| match of {
        Some(_) => function(line) == Some(name),
        None => ["pub struct ", "pub trait ", "pub enum "].iter().any(|kind| {
            let rest = line.strip_prefix(kind);
            rest.is_some_and(|rest| rest.split(|c: char| !c.is_alphanumeric()).next() == Some(name))
        }),
    };
    let in_file = |source: &str| {
        let of_type = |line: &str| {
            line.starts_with("impl") && of.is_none_or(|of| line.split([' ', '<']).any(|word| word == of))
        };
        if of.is_some() && !source.lines().any(of_type) {
            return false;
        }
        let lines: Vec<&str> = source.lines().collect();
        let documented = |i: usize| {
            let docs = lines[..i].iter().rev().map(|line| line.trim_start());
            // Blocks open and close by turns; seen from below, every second fence opens one.
            let docs = docs.take_while(|line| line.starts_with("///") || line.starts_with("#["));
            let fences: Vec<&str> = docs.filter_map(|line| line.strip_prefix("/// ```")).collect();
            fences.iter().skip(1).step_by(2).any(|fence| begins(fence))
        };
        (0..lines.len()).any(|i| declares(lines[i]) && documented(i))
    };
    files
        .iter()
        .any(|(path, source)| path.components().any(|part| part.as_os_str() == "src") && in_file(source))
}

#[test]
fn every_row_names_existing_tests() {
    let (page, differences) = (
        read("crates/distribute/tests/computing/ledgers/pages.md"),
        read("docs/from-tensorflow/differences.md"),
    );
    let files = sources();
    let tests = all_tests(&files);
    let mut complaints = Vec::new();
    let mut not_yet = 0;
    let rows = rows(&page);
    for row in &rows {
        let mut complain = |text: String| complaints.push(format!("pages.md:{}: {text}", row.line));
        match &*row.holds {
            "as written" | "by type" => {}
            "differs" => {
                let stated = |rule: &String| {
                    let cells =
                        differences.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
                    cells.flat_map(|cell| cell.trim().split(", ")).any(|word| word == rule)
                };
                row.rules.iter().filter(|rule| !stated(rule)).for_each(|rule| {
                    complain(format!("docs/from-tensorflow/differences.md has no row for {rule}"));
                });
            }
            "not yet" => not_yet += 1,
            other => complain(format!("how does it hold: {other:?}?")),
        }
        if row.proofs.is_empty() != (row.holds == "not yet") {
            complain("a row names a test, or is not yet true".into());
        }
        for proof in &row.proofs {
            let is_there = match proof {
                Proof::Test(name) => tests.contains_key(&**name),
                Proof::Doctest(item) => has_block(&files, item, str::is_empty),
                Proof::CompileFail(item) => {
                    has_block(&files, item, |fence| fence.starts_with("compile_fail"))
                }
                Proof::Unreadable(_) => false,
            };
            if !is_there {
                complain(format!("there is no {proof:?} that runs"));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(rows.len() > 100, "the table was not read: {} rows", rows.len());
    assert_eq!(not_yet, 0, "all that the pages say is there");
}

#[test]
fn every_test_of_the_pages_is_in_a_row() {
    let page = read("crates/distribute/tests/computing/ledgers/pages.md");
    let proofs: Vec<Proof> = rows(&page).into_iter().flat_map(|row| row.proofs).collect();
    let of_pages = |path: &Path| {
        let file = path.strip_prefix("crates/distribute/tests/computing/contexts").ok();
        file.and_then(Path::file_stem).is_some_and(|name| OF_PAGES.iter().any(|file| name == *file))
    };
    let sources: Vec<_> = sources().into_iter().filter(|(path, _)| of_pages(path)).collect();
    assert_eq!(sources.len(), OF_PAGES.len());
    for (path, source) in sources {
        for name in tests(&source) {
            let is_cited = proofs.contains(&Proof::Test(name.into()));
            assert!(is_cited, "pages.md has no row for {name} of {}", path.display());
        }
    }
}

#[test]
fn a_ledger_row_without_an_existing_name_is_detected() {
    let page = "| page says | holds | rule | test |\n|---|---|---|---|\n| **Head** | | | |\n\
        | a | as written | MC-1, MC-2 | `b`, doctest `C::d`, compile_fail `E`, f |\n| g | by type | | |";
    let rows = rows(page);
    assert_eq!(rows.iter().map(|row| row.line).collect::<Vec<_>>(), [4, 5]);
    let expected = [
        Proof::Test("b".into()),
        Proof::Doctest("C::d".into()),
        Proof::CompileFail("E".into()),
        Proof::Unreadable("f".into()),
    ];
    assert_eq!((&rows[0].proofs[..], rows[0].rules.len(), rows[1].proofs.len()), (&expected[..], 2, 0));

    let source = "impl C {\n/// ```\n/// x\n/// ```\n#[must_use]\npub fn d() {}\n/// none\npub fn e() {}\n}\n\
        /// ```compile_fail,E0277\n/// ```\npub struct E;\npub struct Ex;";
    let files = BTreeMap::from([(PathBuf::from("src/c.rs"), source.to_string())]);
    let has = |item: &str| {
        (has_block(&files, item, str::is_empty), has_block(&files, item, |f| f.contains("compile_fail")))
    };
    assert_eq!(
        ["C::d", "C::e", "E", "Ex", "X::d"].map(has),
        [(true, false), (false, false), (false, true), (false, false), (false, false)]
    );
}
