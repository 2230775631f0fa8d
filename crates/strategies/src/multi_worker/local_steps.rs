//! Local steps: each worker trains alone, and the workers agree on new weights from time to time.

use super::builder::MultiWorkerMirroredStrategyBuilder;
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_core::strategy::LocalSteps;

const OPERATION: &str = "MultiWorkerMirroredStrategy";

impl MultiWorkerMirroredStrategyBuilder {
    /// Lets each worker train alone for several steps of an optimizer, after which the workers agree on new weights in
    /// an *outer step*. Only outer steps send weights: if there is one every N steps, a step sends one Nth of the bytes
    /// on average. Between outer steps, a worker waits for no other one, except in calls of the program.
    ///
    /// The workers [average their weights](distribute_core::strategy::Outer::Average), or make a [step of
    /// DiLoCo](distribute_core::strategy::Outer::Nesterov). An average after every step is the same as training without
    /// this setting. The setting must be the same on all workers.
    ///
    /// The replicas of a worker still train in lock step. After each outer step, weights are bit-identical on all
    /// workers. Between outer steps they differ, and so do the slots of the rule at all times. Losses that a step
    /// returns are those of the worker. Collectives in closures, and `reduce`, still include all workers.
    ///
    /// Checkpoints can be saved after an outer step, and contain the slots of each worker. Between outer steps, call
    /// [`Optimizer::finish_local_steps`](https://docs.rs/distribute/latest/distribute/struct.Optimizer.html#method.finish_local_steps)
    /// on all workers before saving, and before an evaluation.
    ///
    /// With a [`compression`](Self::compression), an outer step sends what the worker has changed since the last one in
    /// that form, with error feedback. The residual is that of the worker. Gradients are not compressed.
    ///
    /// This does not combine with tables on workers or servers, logical replicas, a minimum number of workers, a
    /// sharded state, averages of weights, or models whose graphs contain collectives.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::Init;
    /// use distribute::strategy::{Links, LocalSteps, Outer};
    /// let local = LocalSteps { steps: 2, outer: Outer::Average };
    /// let weights = MultiWorkerMirroredStrategy::builder().local_steps(local).on_threads(Links::Memory, 2, |strategy|
    ///     { let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(0.)))?;
    ///     let optimizer = Sgd::new(&model.variables, 1.)?;
    ///     let slope = [-1., -2.][strategy.world().worker()];
    ///     let mut all = Vec::new();
    ///     for _ in 0..2 {
    ///         strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w * slope)?, 1))?;
    ///         all.push(model.variables.get("w")?.to_scalar::<f32>()?);
    ///     }
    ///     Ok(all)
    /// })?;
    /// assert_eq!(weights, [[1., 3.], [2., 3.]]); // the mean of 2 and 4
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "DiLoCo")]
    #[doc(alias = "FedAvg")]
    #[doc(alias = "PostLocalSGDOptimizer")]
    pub fn local_steps(mut self, local: LocalSteps) -> Self {
        self.local_steps = Some(local);
        self
    }
}

/// Returns the local steps of the workers; `None` if they train in lock step.
///
/// # Errors
/// - [`Error::InvalidArgument`]: local steps are not possible with these numbers or other settings.
pub(super) fn checked(
    local: Option<LocalSteps>,
    world: World,
    is_elastic: bool,
    has_tables: bool,
) -> Result<Option<LocalSteps>> {
    let Some(local) = local.filter(|local| !local.is_lock_step()) else { return Ok(None) };
    match local.contradiction(Some(world), is_elastic, has_tables) {
        None => Ok(Some(local)),
        Some(reason) => Err(Error::invalid(OPERATION, format!("it has {reason}"))),
    }
}
