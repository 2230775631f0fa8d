//! Methods that run a training step.

use crate::step::backward::ReplicaLosses;
use crate::{Gradients, Inner, Optimizer, Weighting};
use candle_core::{DType, Tensor};
use distribute_base::{Error, Result};
use distribute_core::ReplicaContext;
use distribute_core::internal::mixed;
use distribute_optim::Rule;
use std::panic::Location;

impl<R: Rule> Optimizer<R> {
    /// Runs one training step: computes the gradients of `loss`, which is the mean over `n` examples of this replica,
    /// reduces them over all replicas, weighted by `n`, and updates the variables. Returns the mean loss over all
    /// examples of all replicas, detached from the graph. The loss is passed by value, so its graph is freed in this
    /// call. With a single GPU replica this returns without synchronizing, and the returned tensor stays on the GPU.
    ///
    /// `n` is the number of examples over which `loss` is the mean. Usually this is the number of rows in the
    /// per-replica batch, `labels.dim(0)?`. It is not the size of the global batch. Per-replica batches may differ in
    /// size: if 9 rows are split into batches of 4, the last batches have 1 row and 0 rows. If the loss is a mean over
    /// tokens without padding, `n` is the number of these tokens. Only the proportions between the replicas of a step
    /// matter.
    ///
    /// A warning is logged once if batches of different sizes have the same `n`, unless `n` exceeds the rows of all
    /// batches. `n` may be larger than the number of rows, because a row may have many tokens.
    ///
    /// All replicas must call this, [`skip`](Optimizer::skip) or [`minimize_each`](Optimizer::minimize_each) the
    /// same number of times. With 0 examples the loss has no weight. Values that this replica contributed to
    /// collectives in the model still count in the losses of the other replicas.
    ///
    /// # Errors
    /// - [`Error::Collective`], on every replica: a replica times out or fails.
    /// - [`Error::InvalidArgument`]: the loss is not a scalar or does not depend on any variable; no replica has
    ///   examples; another step of this optimizer is in progress; `n` is greater than 0 but this replica's batch is
    ///   empty; or a variable that is not [frozen](Optimizer::freeze) is neither f32 nor f64.
    /// - [`Error::MissingGradients`] and [`Error::NotFinite`], if enabled.
    /// - [`Error::Candle`]: the backward pass fails.
    /// - [`Error::Panicked`]: a closure, a schedule or a custom rule panics.
    /// - [`Error::WrongContext`], [`Error::StaleContext`]: `ctx` is not the context of the closure that is running.
    /// - [`Error::MixedStrategies`]: the optimizer belongs to a different strategy.
    /// - [`Error::Failed`] of the kind `Disagreement`: the workers have different settings of this optimizer.
    /// - [`Error::NotSupported`]: the workers make [local steps](distribute_core::strategy::LocalSteps), and the graph
    ///   of a loss contains collectives.
    /// - [`Error::IncompleteState`]: this step, or an earlier one, has failed after it changed the [sharded
    ///   state](Optimizer::shard_state), or tables that workers store together.
    ///
    /// After an error, no variable has changed, with two exceptions. Parameter servers, and workers that store tables,
    /// may have applied some of the gradients. If a GPU fails after the update, the message of the error says that the
    /// step was applied.
    #[doc(alias = "tf.keras.optimizers.Optimizer.minimize")]
    #[track_caller]
    pub fn minimize(&self, ctx: &ReplicaContext, loss: Tensor, n: usize) -> Result<Tensor> {
        self.minimize_at(ctx, loss, n, Location::caller())
    }

    /// Acts like [`minimize`](Optimizer::minimize), but errors name the source location `at`. Use this in code that
    /// makes steps on behalf of a program, such as a training loop.
    #[doc(hidden)]
    pub fn minimize_at(
        &self,
        ctx: &ReplicaContext,
        loss: Tensor,
        n: usize,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        self.inner.require(ctx, "minimize")?;
        require_rows(ctx, "minimize", n)?;
        let mut sum = ReplicaLosses::new(&self.inner, ctx);
        // A single replica has the same bits as without a strategy. The losses of several may depend on each other.
        let weighting = match ctx.num_replicas_in_sync() {
            1 => Weighting::MeanOver(n),
            _ if self.inner.local.is_some() && ctx.strategy().world().replicas() == 1 => {
                Weighting::MeanOver(n)
            }
            _ => Weighting::SumOver(n),
        };
        sum.add(&self.inner, ctx, loss, weighting, at)?;
        sum.weighting = weighting;
        self.inner.step(ctx, "minimize", sum, at)
    }

    /// Runs one training step over several micro-batches. This acts like [`minimize`](Optimizer::minimize), but adds up
    /// all gradients before a single reduction. Each item is a loss and its number `n` of examples. The graph of a loss
    /// is freed before the next item is requested.
    ///
    /// If no graph in this run contains collectives, replicas may have different numbers of micro-batches. Otherwise,
    /// all replicas go backward together and need the same number, so a replica with fewer must pass losses over 0
    /// examples. A graph contains collectives if the model uses them, or if a tensor with a graph was passed to
    /// `all_reduce`. Detach values that are only logged before reducing them.
    ///
    /// # Errors
    /// - The errors of [`minimize`](Optimizer::minimize).
    /// - The error of an item.
    #[track_caller]
    pub fn minimize_each(
        &self,
        ctx: &ReplicaContext,
        losses: impl IntoIterator<Item = Result<(Tensor, usize)>>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        self.inner.require(ctx, "minimize_each")?;
        let (mut sum, mut all) = (ReplicaLosses::new(&self.inner, ctx), 0usize);
        for item in losses {
            let (loss, examples) = item?;
            require_rows(ctx, "minimize_each", examples)?;
            sum.add(&self.inner, ctx, loss, Weighting::SumOver(examples), at)?;
            let too_many =
                || Error::invalid("minimize_each", format!("{all} and {examples} examples are too many"));
            all = all.checked_add(examples).ok_or_else(too_many)?;
        }
        sum.weighting = Weighting::SumOver(all);
        self.inner.step(ctx, "minimize_each", sum, at)
    }

    /// Takes part in a step without examples. Call this on a replica whose per-replica batch is empty.
    ///
    /// # Errors
    /// - The errors of [`minimize`](Optimizer::minimize).
    /// - [`Error::InvalidArgument`]: the losses of other replicas depend, through a collective, on a tensor of this
    ///   replica. Call `minimize` with 0 examples instead.
    #[track_caller]
    pub fn skip(&self, ctx: &ReplicaContext) -> Result<Tensor> {
        let at = Location::caller();
        self.inner.require(ctx, "skip")?;
        let mut sum = ReplicaLosses::new(&self.inner, ctx);
        sum.join(&self.inner, ctx, None, at)?;
        self.inner.step(ctx, "skip", sum, at)
    }

    /// Runs one training step with the given gradients: reduces them over all replicas with `weighting`, and
    /// updates the variables. [`minimize`](Optimizer::minimize) does the same with the gradients of a loss.
    ///
    /// If `weighting` is a number of examples, the gradients must be those of the mean loss over these examples. With 0
    /// examples they have no weight. If `weighting` is a [`ReduceOp`], the gradients are added up or averaged over the
    /// replicas unchanged. All replicas must make this call with the same `ReduceOp`, or all with numbers of examples.
    ///
    /// [`ReduceOp`]: distribute_tensor::ReduceOp
    ///
    /// # Errors
    /// - The errors of [`minimize`](Optimizer::minimize).
    /// - [`Error::InvalidArgument`]: the gradients belong to a different optimizer, or no replica has any.
    ///
    /// ```
    /// # use distribute::{optimizer::Gradients, prelude::*};
    /// # use candle_core::Tensor;
    /// # use candle_nn::Init;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(0.)))?;
    /// let optimizer = Sgd::new(&model.variables, 1.)?;
    /// strategy.run(&model, |ctx, w| {
    ///     // 8 examples and 2, whose losses have the gradients 1 and 6: the mean over all 10 has (8 · 1 + 2 · 6) / 10.
    ///     let (slope, examples) = [(1., 8), (6., 2)][ctx.replica_id_in_sync_group()];
    ///     let gradients = Gradients::of(&optimizer, &(w.sum_all()? * slope)?)?;
    ///     optimizer.apply_gradients(ctx, gradients, examples)
    /// })?;
    /// assert_eq!(model.variables.get("w")?.to_vec1::<f32>()?, [-2.]);
    ///
    /// // As TensorFlow does: the sum of the gradients of all replicas, without weights.
    /// strategy.run(&model, |ctx, w| {
    ///     let gradients = Gradients::of(&optimizer, &w.sum_all()?)?;
    ///     optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
    /// })?;
    /// assert_eq!(model.variables.get("w")?.to_vec1::<f32>()?, [-4.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.keras.optimizers.Optimizer.apply_gradients")]
    #[track_caller]
    pub fn apply_gradients(
        &self,
        ctx: &ReplicaContext,
        gradients: Gradients,
        weighting: impl Into<Weighting>,
    ) -> Result<()> {
        let at = Location::caller();
        self.inner.require(ctx, "apply_gradients")?;
        ctx.require_own_graph("apply_gradients")?;
        let weighting = weighting.into();
        require_rows(ctx, "apply_gradients", weighting.examples().unwrap_or(0))?;
        let weighting = match weighting {
            // Over no examples they have no weight; only `minimize` knows which belong to the losses of others.
            Weighting::SumOver(0) => Weighting::MeanOver(0),
            weighting => weighting,
        };
        let mut gradients = gradients;
        // All gradients of a step have the loss scale, whichever call they come from.
        if let Some(factor) = self.inner.loss_scaling.factor() {
            gradients.scale(factor)?;
        }
        let losses = Vec::new();
        let (dtype, early, stale) = (DType::F32, false, None);
        let given = ReplicaLosses { gradients, bucket: None, weighting, losses, dtype, early, stale };
        self.inner.step(ctx, "apply_gradients", given, at).map(drop)
    }
}

impl Inner {
    /// Returns an error if called outside a replica of this optimizer's strategy, or if a variable that cannot be
    /// trained is not frozen.
    fn require(&self, ctx: &ReplicaContext, operation: &'static str) -> Result<()> {
        ctx.require_current(operation)?;
        if ctx.strategy() != &self.parameters.strategy {
            let mut names = self.variable_names();
            let first = names.next().unwrap_or_default();
            let what = match names.count() {
                0 => format!("the {} optimizer of {first}", self.groups.rule().name()),
                more => format!("the {} optimizer of {first} and {more} more", self.groups.rule().name()),
            };
            return Err(mixed(operation, Some(what), &self.parameters.strategy));
        }
        self.parameters.require_fit(operation)
    }
}

/// Returns an error if `n` is not 0 although the per-replica batch is empty.
fn require_rows(ctx: &ReplicaContext, operation: &'static str, n: usize) -> Result<()> {
    if n == 0 || ctx.rows().is_none_or(|rows| !rows.is_empty()) {
        return Ok(());
    }
    let reason = format!(
        "n is {n}, but this per-replica batch has no rows; n is the number of its examples: pass labels.dim(0)?, \
         which is 0 here, or call skip instead"
    );
    Err(Error::invalid(operation, reason))
}
