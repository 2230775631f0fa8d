//! The calls that make a step.

use crate::step::backward::Losses;
use crate::{Gradients, Inner, Optimizer, Weighting};
use candle_core::{DType, Tensor};
use distribute_base::{Error, Result};
use distribute_core::ReplicaContext;
use distribute_core::internal::mixed;
use distribute_optim::Rule;
use std::panic::Location;

impl<R: Rule> Optimizer<R> {
    /// Makes one training step: goes backward from `loss`, the mean over `n` examples of this replica; reduces the
    /// gradients over all replicas, weighted by `n`; updates the variables. Returns the mean loss over all examples
    /// of all replicas, detached. The loss is taken by value, so its graph is freed here. With a single GPU replica
    /// this returns without synchronizing, and the returned tensor stays on the GPU.
    ///
    /// `n` is the number over which this replica's `loss` is a mean: nearly always the rows of its piece of the batch,
    /// `labels.dim(0)?`. It is not the size of the global batch, and pieces may differ in size: 9 rows in batches of 4
    /// end with pieces of 1 row and of none. Where the loss is a mean over tokens with padding left out, `n` is the
    /// number of tokens that it counts. Only the proportions between the replicas of a step matter.
    ///
    /// One number on pieces of different sizes is warned of once, unless it is more than any batch has rows. An `n`
    /// above the rows of its piece is not, by itself: a row may have many tokens.
    ///
    /// All replicas have to call this, or [`skip`](Optimizer::skip) or [`minimize_each`](Optimizer::minimize_each), the
    /// same number of times. With 0 examples the loss has no weight; what this replica gave to collectives in the model
    /// still counts in the others' losses.
    ///
    /// # Errors
    /// - [`Error::Collective`], on every replica: a replica times out or fails.
    /// - [`Error::InvalidArgument`]: the loss is not a scalar or depends on none of the variables; no replica has
    ///   examples; another step of this optimizer is in progress; or `n` is above 0 although this replica's batch is
    ///   empty.
    /// - [`Error::MissingGradients`] and [`Error::NotFinite`], if they were asked for.
    /// - [`Error::Candle`]: backward fails.
    /// - [`Error::Panicked`]: a closure, a schedule or a custom rule panics.
    ///
    /// No variable has changed then. An error of a GPU after the update says that the step was applied.
    #[doc(alias = "tf.keras.optimizers.Optimizer.minimize")]
    #[track_caller]
    pub fn minimize(&self, ctx: &ReplicaContext, loss: Tensor, n: usize) -> Result<Tensor> {
        self.minimize_at(ctx, loss, n, Location::caller())
    }

    /// Does the same as [`minimize`](Optimizer::minimize) for closures of this crate: errors name the caller's line
    /// `at`.
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
        let mut sum = Losses::new(&self.inner, ctx);
        // A replica that is alone has the same bits as without a strategy; others may be in each other's graphs.
        let weighting = match ctx.num_replicas_in_sync() {
            1 => Weighting::MeanOver(n),
            _ => Weighting::SumOver(n),
        };
        sum.add(&self.inner, ctx, loss, weighting, at)?;
        sum.weighting = weighting;
        self.inner.step(ctx, "minimize", sum, at)
    }

    /// One training step over several micro-batches: as [`minimize`](Optimizer::minimize), with the gradients of all of
    /// them accumulated before the one reduction. Each item is a loss and its number `n` of examples; they are asked
    /// for one after another, and the graph of each is freed before the next.
    ///
    /// Replicas may have different numbers of micro-batches, as long as no graph of this run holds collectives. Where
    /// one may, since the model has some or something with a graph went into `all_reduce`, all replicas go backward
    /// together, and need the same number: a replica with fewer gives losses over 0 examples in place of those it
    /// lacks. What is only logged is best detached before it is reduced.
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
        let (mut sum, mut all) = (Losses::new(&self.inner, ctx), 0usize);
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

    /// Takes part in a step without examples, on a replica whose piece of the batch is empty.
    ///
    /// # Errors
    /// - The errors of [`minimize`](Optimizer::minimize).
    /// - [`Error::InvalidArgument`]: the losses of other replicas depend, through a collective, on a tensor of this
    ///   replica. Call `minimize` with 0 examples instead.
    #[track_caller]
    pub fn skip(&self, ctx: &ReplicaContext) -> Result<Tensor> {
        let at = Location::caller();
        self.inner.require(ctx, "skip")?;
        let mut sum = Losses::new(&self.inner, ctx);
        sum.join(&self.inner, ctx, None, at)?;
        self.inner.step(ctx, "skip", sum, at)
    }

    /// One training step by gradients that are there: their reduction over all replicas, as `weighting` says, and the
    /// update of the variables. [`minimize`](Optimizer::minimize) does this with the gradients of a loss.
    ///
    /// A number of examples as `weighting` says that the gradients are of the mean loss over them; a [`ReduceOp`] that
    /// they are to be added up, or averaged, over the replicas as they are. All replicas have to call this, with the
    /// same `ReduceOp` or all of them with examples. With 0 examples the gradients have no weight.
    ///
    /// [`ReduceOp`]: distribute_tensor::ReduceOp
    ///
    /// # Errors
    /// - The errors of [`minimize`](Optimizer::minimize).
    /// - [`Error::InvalidArgument`]: the gradients are of another optimizer, or no replica has any.
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
    /// // As TensorFlow does: the sum, whatever the gradients are of.
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
        let weighting = weighting.into();
        require_rows(ctx, "apply_gradients", weighting.examples().unwrap_or(0))?;
        let weighting = match weighting {
            // Given over no examples, they have no weight; only `minimize` knows those that are the others' losses'.
            Weighting::SumOver(0) => Weighting::MeanOver(0),
            weighting => weighting,
        };
        let losses = Vec::new();
        let (dtype, early, stale) = (DType::F32, false, None);
        let given = Losses { gradients, bucket: None, weighting, losses, dtype, early, stale };
        self.inner.step(ctx, "apply_gradients", given, at).map(drop)
    }
}

impl Inner {
    /// Refuses a step outside of a replica of this optimizer's strategy, and of variables that can't be trained.
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

/// Refuses examples of an empty per-replica batch.
fn require_rows(ctx: &ReplicaContext, operation: &'static str, n: usize) -> Result<()> {
    if n == 0 || ctx.rows().is_none_or(|rows| !rows.is_empty()) {
        return Ok(());
    }
    let reason = format!(
        "n is {n}, but this replica's piece of the batch has no rows; n is the number of examples of this piece: give \
         labels.dim(0)?, which is 0 here, or call skip in place of it"
    );
    Err(Error::invalid(operation, reason))
}
