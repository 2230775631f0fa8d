//! The names, in a checkpoint, of what is kept beside a variable that has a copy for each replica.

/// Where the copies are: a row for each replica.
pub(crate) fn of_replicas(prefix: &str) -> String {
    format!("{prefix}/per_replica")
}

/// Where that is what the copies of running statistics last had in common.
pub(crate) fn in_common(prefix: &str) -> String {
    format!("{prefix}/common")
}
