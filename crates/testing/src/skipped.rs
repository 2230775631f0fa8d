//! Skips tests that require something that not every machine has.

use std::fmt::Display;

/// Reports that a test is skipped, and the reason.
///
/// # Panics
/// Panics if `DISTRIBUTE_TEST_ALL` is set, as in CI with all requirements, because a test that never runs must be
/// noticed.
pub fn skipped(why: impl Display) {
    assert!(std::env::var_os("DISTRIBUTE_TEST_ALL").is_none(), "a test is not run: {why}");
    println!("skipped: {why}");
}
