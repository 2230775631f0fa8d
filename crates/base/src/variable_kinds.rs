//! The synchronization and the aggregation of variables.

use std::fmt;

/// The time at which the copies of a variable are synchronized.
#[doc(alias = "tf.VariableSynchronization")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableSynchronization {
    /// The choice of the strategy: [`OnWrite`](Self::OnWrite).
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

/// The aggregation of the values that replicas write or have written. It must be given where it matters.
#[doc(alias = "tf.VariableAggregation")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableAggregation {
    /// No aggregation: replicas cannot write such a variable together, and it cannot be read as one value.
    #[doc(alias = "tf.VariableAggregation.NONE")]
    #[default]
    None,
    /// The sum over replicas.
    #[doc(alias = "tf.VariableAggregation.SUM")]
    Sum,
    /// The mean over replicas. For floats only.
    #[doc(alias = "tf.VariableAggregation.MEAN")]
    Mean,
    /// The value of replica 0.
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
