//! Variables: single variables of a strategy, and the variables of a model.

#[doc(alias = "tf.VariableAggregation")]
#[doc(inline)]
pub use distribute_base::VariableAggregation;
#[doc(alias = "tf.VariableSynchronization")]
#[doc(inline)]
pub use distribute_base::VariableSynchronization;
#[doc(alias = "ShardedVariable.variables")]
#[doc(inline)]
pub use distribute_core::Shard;
#[doc(alias = "tf.Variable")]
#[doc(alias = "MirroredVariable")]
#[doc(alias = "SyncOnReadVariable")]
#[doc(alias = "AggregatingVariable")]
#[doc(inline)]
pub use distribute_core::Variable;
#[doc(inline)]
pub use distribute_core::VariableBuilder;
#[doc(alias = "tf.Variable")]
#[doc(alias = "MirroredVariable")]
#[doc(inline)]
pub use distribute_core::Variables;
