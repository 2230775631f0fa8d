//! How the copies of a variable are kept equal, and how the replicas' writes combine.

use std::fmt;

/// When the copies of a variable are made to agree.
#[doc(alias = "tf.VariableSynchronization")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableSynchronization {
    /// As the strategy sees fit: [`OnWrite`](Self::OnWrite).
    #[doc(alias = "tf.VariableSynchronization.AUTO")]
    #[default]
    Auto,
    /// Never. Strategies with replicas refuse it: say when.
    #[doc(alias = "tf.VariableSynchronization.NONE")]
    None,
    /// At every write: all copies are always equal. For what is read often, such as weights.
    #[doc(alias = "tf.VariableSynchronization.ON_WRITE")]
    #[doc(alias = "ON_WRITE")]
    OnWrite,
    /// At a read from outside of `run`: each replica writes its own copy, without waiting for the others. For what is
    /// written often and read rarely, such as metrics.
    #[doc(alias = "tf.VariableSynchronization.ON_READ")]
    #[doc(alias = "ON_READ")]
    OnRead,
}

/// How what the replicas write, or have written, becomes one value. Always to be given where it matters.
#[doc(alias = "tf.VariableAggregation")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableAggregation {
    /// Not at all: replicas cannot write such a variable together, nor can it be read in one piece.
    #[doc(alias = "tf.VariableAggregation.NONE")]
    #[default]
    None,
    /// The sum over replicas.
    #[doc(alias = "tf.VariableAggregation.SUM")]
    Sum,
    /// The mean over replicas. For floats only.
    #[doc(alias = "tf.VariableAggregation.MEAN")]
    Mean,
    /// What replica 0 has.
    #[doc(alias = "tf.VariableAggregation.ONLY_FIRST_REPLICA")]
    #[doc(alias = "ONLY_FIRST_REPLICA")]
    OnlyFirstReplica,
}

impl fmt::Display for VariableSynchronization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "AUTO",
            Self::None => "NONE",
            Self::OnWrite => "ON_WRITE",
            Self::OnRead => "ON_READ",
        })
    }
}

impl fmt::Display for VariableAggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "NONE",
            Self::Sum => "SUM",
            Self::Mean => "MEAN",
            Self::OnlyFirstReplica => "ONLY_FIRST_REPLICA",
        })
    }
}
