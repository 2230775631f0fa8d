//! The names of tensors in checkpoints, and lists of names in error messages.

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
    const SHOWN: usize = 20;
    if names.len() > SHOWN {
        format!("{} and {} more", names[..SHOWN].join(between), names.len() - SHOWN)
    } else {
        names.join(between)
    }
}
