//! The names, in a checkpoint, of the state next to a variable that has a copy for each replica.

/// Returns the name of the copies, with a row for each replica.
pub(crate) fn of_replicas(prefix: &str) -> String {
    format!("{prefix}/per_replica")
}

/// Returns the name of the last common value of the copies of running statistics.
pub(crate) fn in_common(prefix: &str) -> String {
    format!("{prefix}/common")
}
