//! The kinds of context that code can run in.

use std::fmt;

/// The kind of context that code runs in. Errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextKind {
    /// No strategy has been entered. Every thread starts in this context.
    Default,
    /// Code inside `scope` or a merge function, which runs once for all replicas.
    CrossReplica,
    /// Code inside the closure of `run`, which runs once per replica.
    Replica,
    /// Code inside the closure of `update`, which runs once per copy of a variable. It is a kind of
    /// cross-replica context.
    Update,
}

impl fmt::Display for ContextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ContextKind::Default => "the default context",
            ContextKind::CrossReplica => "cross-replica context",
            ContextKind::Replica => "replica context",
            ContextKind::Update => "update context",
        })
    }
}
