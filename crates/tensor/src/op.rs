//! The operations that combine values of several replicas.

/// An operation that combines the values of several replicas. There is no default, so the caller must choose one.
#[doc(alias = "tf.distribute.ReduceOp")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum over the replicas.
    #[doc(alias = "tf.distribute.ReduceOp.SUM")]
    Sum,
    /// The sum over the replicas, divided by their number. For integers the result is a float.
    #[doc(alias = "tf.distribute.ReduceOp.MEAN")]
    Mean,
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "SUM",
            ReduceOp::Mean => "MEAN",
        })
    }
}
