//! The names of tensors in checkpoints, and lists of names in messages.

use std::borrow::Borrow;

/// Returns the name of the tensor that holds all replicas' copies, one row per replica.
pub fn copies_name(prefix: &str) -> String {
    format!("{prefix}/per_replica")
}

/// Returns the name of the tensor that holds the value to which a running statistic was last set on all replicas.
pub fn common_name(prefix: &str) -> String {
    format!("{prefix}/common")
}

/// Formats the names in a file or checkpoint as a sorted list, for an error message.
pub fn list_names(mut names: Vec<String>) -> String {
    names.sort();
    if names.is_empty() { "no tensors".into() } else { first_names(&names, ", ") }
}

/// Joins up to 20 names with `between`. If there are more, appends the number of names that were omitted.
pub fn first_names(names: &[String], between: &str) -> String {
    join_first(names, 20, between)
}

/// Joins up to 10 names of variables with commas. If there are more, appends the number of names that were omitted.
pub fn variable_names(names: &[&str]) -> String {
    join_first(names, 10, ", ")
}

fn join_first<N: Borrow<str>>(names: &[N], shown: usize, between: &str) -> String {
    match names.get(..shown).filter(|_| names.len() > shown) {
        Some(first) => format!("{} and {} more", first.join(between), names.len() - shown),
        None => names.join(between),
    }
}
