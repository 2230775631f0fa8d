//! The contexts that code can run in, by name.

use std::fmt;

/// The context that code runs in, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextKind {
    /// No strategy has been entered: the context in which every thread starts.
    Default,
    /// Inside of `scope` or of a merge function: once for all replicas.
    CrossReplica,
    /// Inside of the closure given to `run`: once for each replica.
    Replica,
    /// Inside of the closure given to `update`: once for each copy of a variable. A kind of cross-replica context.
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
