//! The synchronization and aggregation of variables.

use std::fmt;

/// The rule that determines when the copies of a variable are synchronized.
#[doc(alias = "tf.VariableSynchronization")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableSynchronization {
    /// The default of the strategy, which is [`OnWrite`](Self::OnWrite).
    #[doc(alias = "tf.VariableSynchronization.AUTO")]
    #[default]
    Auto,
    /// The copies are never synchronized. Strategies with replicas do not support this; choose another value.
    #[doc(alias = "tf.VariableSynchronization.NONE")]
    None,
    /// Every write synchronizes, so all copies are always equal. This is suitable for values that are read often, such
    /// as weights.
    #[doc(alias = "tf.VariableSynchronization.ON_WRITE")]
    #[doc(alias = "ON_WRITE")]
    OnWrite,
    /// A read outside `run` synchronizes. Each replica writes its own copy without waiting for the others. This is
    /// suitable for values that are written often and read rarely, such as metrics.
    #[doc(alias = "tf.VariableSynchronization.ON_READ")]
    #[doc(alias = "ON_READ")]
    OnRead,
}

/// The rule that determines how the values that replicas write are combined. It must be set if several values are to be
/// combined.
#[doc(alias = "tf.VariableAggregation")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableAggregation {
    /// The values are not combined. Replicas cannot write the variable together, and separate copies cannot be read as
    /// one value.
    #[doc(alias = "tf.VariableAggregation.NONE")]
    #[default]
    None,
    /// The sum over the replicas.
    #[doc(alias = "tf.VariableAggregation.SUM")]
    Sum,
    /// The mean over the replicas. It is only defined for floating-point dtypes.
    #[doc(alias = "tf.VariableAggregation.MEAN")]
    Mean,
    /// The value of replica 0. The values of the other replicas are ignored.
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
