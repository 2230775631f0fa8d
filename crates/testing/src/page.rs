//! Reads blocks of pages of the documentation, which tests compare with what the code does.

use std::path::Path;

/// Returns the lines of the block of a page in `docs/` whose fence has the given words, for example `hex hello`.
pub fn block(page: &str, words: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let Some((_, rest)) = text.split_once(&format!("```{words}\n")) else {
        panic!("{page} has no block {words}")
    };
    rest.split("```\n").next().unwrap_or_default().to_owned()
}

/// Compares bytes with the block `hex NAME` of a page. Line breaks do not count.
///
/// # Panics
/// Panics if they differ, with the bytes as the page should have them.
pub fn compare_bytes(page: &str, name: &str, bytes: &[u8]) {
    let found: Vec<String> =
        block(page, &format!("hex {name}")).split_whitespace().map(str::to_owned).collect();
    let expected: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = expected.chunks(32).map(|line| line.join(" ")).collect();
    assert!(found == expected, "{page} should have, as {name}:\n{}\n", lines.join("\n"));
}
