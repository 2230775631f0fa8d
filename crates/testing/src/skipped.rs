//! Tests of what not every machine has.

use std::fmt::Display;

/// Says that a test is skipped, and why.
///
/// # Panics
/// With `DISTRIBUTE_TEST_ALL=1`, as in CI where what it needs is there: a test that nobody runs shall be noticed.
pub fn skipped(why: impl Display) {
    assert!(std::env::var_os("DISTRIBUTE_TEST_ALL").is_none(), "a test is not run: {why}");
    println!("skipped: {why}");
}
