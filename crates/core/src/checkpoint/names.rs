//! Names under which a checkpoint stores the state that a variable has once per replica.

/// Returns the name of the tensor that holds all replicas' copies, one row per replica.
pub(crate) fn copies_name(prefix: &str) -> String {
    format!("{prefix}/per_replica")
}

/// Returns the name of the tensor that holds the value to which a running statistic was last set on all replicas.
pub(crate) fn common_name(prefix: &str) -> String {
    format!("{prefix}/common")
}
