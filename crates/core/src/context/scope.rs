//! The scope of a strategy.

use super::{ContextGuard, enter_cross_replica, enter_default};
use crate::strategy::Strategy;
use distribute_base::Result;

impl Strategy {
    /// Makes this strategy current on this thread while `body` runs, in cross-replica context.
    ///
    /// `run`, `reduce`, `gather` and `replicate` enter the scope automatically, so they behave the same
    /// inside and outside it.
    ///
    /// # Errors
    /// - [`Error::MixedStrategies`](distribute_base::Error::MixedStrategies): called inside another strategy's scope or
    ///   `run`.
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside this strategy's `run`.
    /// - The error of `body`.
    ///
    /// ```
    /// use distribute::context::{get_strategy, has_strategy, in_cross_replica_context};
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// assert!(!has_strategy());
    /// strategy.scope(|| {
    ///     assert!(get_strategy() == strategy && in_cross_replica_context());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// [`replicate`](Strategy::replicate) creates mirrored variables. A candle `Var` is an ordinary tensor,
    /// even inside a scope:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::Init;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.scope(|| {
    ///     strategy.replicate(|vb| vb.get_with_hints((), "mirrored", Init::Const(1.)))
    /// })?;
    /// assert_eq!(model.models().to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=float32, data=1.0>,
    ///   1: <Tensor: shape=(), dtype=float32, data=1.0>
    /// }");
    /// assert!(model.variables.strategy() == &strategy);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.scope")]
    pub fn scope<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let _scope = if self.is_default() {
            enter_default(self)?
        } else {
            enter_cross_replica(self, "scope", "use the replica context's merge_call to leave it")?
        };
        body()
    }

    /// Enters the cross-replica context for an operation that requires it.
    pub(crate) fn enter(&self, operation: &'static str, advice: &'static str) -> Result<ContextGuard> {
        enter_cross_replica(self, operation, advice)
    }
}
