//! The calls that make a step: backward, reduce, update.

use super::contribution::Contribution;
use super::gradients::require_scalar;
use super::{Gradients, Optimizer, Weighting, pass, rate};
use crate::context::{Mode, enter, mixed};
use crate::deposit::{self, Bucket};
use crate::error::panicked;
use crate::{Error, ReplicaContext, Result};
use candle_core::{DType, Tensor};
use distribute_cluster::{Fingerprint, Operation};
use distribute_optim::{Rule, Step};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

impl<R: Rule> Optimizer<R> {
    /// One training step: backward from `loss`, which is the mean over this replica's `examples`; reduction of the
    /// gradients over all replicas, weighted by examples; update of the variables. Gives the mean loss over all
    /// examples of all replicas, detached. The loss is taken by value: its graph is freed here.
    ///
    /// All replicas have to call this, or [`skip`](Optimizer::skip) or [`minimize_each`](Optimizer::minimize_each), the
    /// same number of times. With 0 examples the loss has no weight; what this replica gave to collectives in the model
    /// still counts in the others' losses.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where one does not come or fails; [`Error::InvalidArgument`] for a loss
    /// that is not a scalar or depends on none of the variables, where no replica has examples, or while another step of
    /// this optimizer is being made; [`Error::Candle`] where backward fails; [`Error::Panicked`] where a closure or a
    /// schedule of your own panics. The variables have not changed then. Where a rule of your own panics, what it had
    /// written stays.
    #[doc(alias = "tf.keras.optimizers.Optimizer.minimize")]
    #[track_caller]
    pub fn minimize(&self, ctx: &ReplicaContext, loss: Tensor, examples: usize) -> Result<Tensor> {
        let at = Location::caller();
        self.require(ctx, "minimize")?;
        let mut sum = Losses::new(self, ctx);
        // A replica that is alone has the same bits as without a strategy; others may be in each other's graphs.
        let weighting = match ctx.member() {
            Some(_) => Weighting::SumOver(examples),
            None => Weighting::MeanOver(examples),
        };
        sum.add(self, ctx, loss, weighting, at)?;
        sum.weighting = weighting;
        self.step(ctx, "minimize", sum, at)
    }

    /// One training step over several micro-batches: as [`minimize`](Optimizer::minimize), with the gradients of all
    /// of them accumulated before the one reduction. Each item is a loss and its number of examples; they are asked for
    /// one after another, and the graph of each is freed before the next.
    ///
    /// Replicas may have different numbers of micro-batches, as long as no graph of this run holds collectives. Where one
    /// may, since the model has some or something with a graph went into `all_reduce`, all replicas go backward together,
    /// and need the same number: a replica with fewer gives losses over 0 examples in place of those it lacks. What is
    /// only logged is best detached before it is reduced.
    ///
    /// # Errors
    /// As [`minimize`](Optimizer::minimize), and those of the items.
    #[track_caller]
    pub fn minimize_each(
        &self,
        ctx: &ReplicaContext,
        losses: impl IntoIterator<Item = Result<(Tensor, usize)>>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        self.require(ctx, "minimize_each")?;
        let (mut sum, mut all) = (Losses::new(self, ctx), 0usize);
        for item in losses {
            let (loss, examples) = item?;
            sum.add(self, ctx, loss, Weighting::SumOver(examples), at)?;
            let too_many =
                || Error::invalid("minimize_each", format!("{all} and {examples} examples are too many"));
            all = all.checked_add(examples).ok_or_else(too_many)?;
        }
        sum.weighting = Weighting::SumOver(all);
        self.step(ctx, "minimize_each", sum, at)
    }

    /// Takes part in a step without an example: for a replica whose piece of the batch is empty.
    ///
    /// # Errors
    /// As [`minimize`](Optimizer::minimize); [`Error::InvalidArgument`] where the others' losses depend, through a
    /// collective, on what this replica gave: that takes `minimize` with 0 examples.
    #[track_caller]
    pub fn skip(&self, ctx: &ReplicaContext) -> Result<Tensor> {
        let at = Location::caller();
        self.require(ctx, "skip")?;
        let mut sum = Losses::new(self, ctx);
        sum.join(self, ctx, None, at)?;
        self.step(ctx, "skip", sum, at)
    }

    /// One training step by gradients that are there: their reduction over all replicas, as `weighting` says, and the
    /// update of the variables. [`minimize`](Optimizer::minimize) does this with the gradients of a loss.
    ///
    /// A number of examples as `weighting` says that the gradients are of the mean loss over them; a [`ReduceOp`] that
    /// they are to be added up, or averaged, over the replicas as they are. All replicas have to call this, with the
    /// same `ReduceOp` or all of them with examples. With 0 examples the gradients have no weight.
    ///
    /// [`ReduceOp`]: crate::ReduceOp
    ///
    /// # Errors
    /// As [`minimize`](Optimizer::minimize); [`Error::InvalidArgument`] for gradients of another optimizer, or where no
    /// replica has any.
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
        self.require(ctx, "apply_gradients")?;
        let weighting = match weighting.into() {
            // Given over no examples, they have no weight; only `minimize` knows those that are the others' losses'.
            Weighting::SumOver(0) => Weighting::MeanOver(0),
            weighting => weighting,
        };
        let given = Losses { gradients, bucket: None, weighting, loss: 0., dtype: DType::F32 };
        self.step(ctx, "apply_gradients", given, at).map(drop)
    }

    /// Whether this is the place for a step.
    fn require(&self, ctx: &ReplicaContext, operation: &'static str) -> Result<()> {
        ctx.require_current(operation)?;
        if ctx.strategy() != &self.trained.strategy {
            let mut names = self.trained.variables.iter().map(|(name, _)| name.as_str());
            let first = names.next().unwrap_or_default();
            let what = match names.count() {
                0 => format!("the {} optimizer of {first}", self.rule.name()),
                more => format!("the {} optimizer of {first} and {more} more", self.rule.name()),
            };
            return Err(mixed(operation, Some(what), &self.trained.strategy));
        }
        Ok(())
    }

    fn step(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        mine: Losses,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let _update = tracing::trace_span!("update").entered();
        let weighting = mine.weighting;
        let mine = Contribution::new(&self.trained, mine, &self.before_reduce)?;
        let outcome = match ctx.member() {
            None => {
                let outcome = self.update(operation, &[Arc::new(mine)], &pass::Workers::alone());
                Arc::new(outcome.map_err(Arc::new))
            }
            Some(member) => {
                let detail = match weighting {
                    Weighting::Replicas(op) => format!("{} {} {op}", self.rule.name(), self.id),
                    _ => format!("{} {}", self.rule.name(), self.id),
                };
                member.cooperate(
                    Fingerprint::new(Operation::Minimize, detail, at),
                    mine,
                    |all, helpers| {
                        let broadcast = |work: &pass::Work<'_>| helpers.broadcast(work);
                        let workers = pass::Workers { count: helpers.size(), broadcast: &broadcast };
                        self.update(operation, &all, &workers).map_err(Arc::new)
                    },
                )?
            }
        };
        match &*outcome {
            Ok(mean) => Ok(Tensor::new(mean.value, &candle_core::Device::Cpu)?.to_dtype(mean.dtype)?),
            // The one error is told on every replica: it is about the step, not about a replica.
            Err(error) => Err(Error::Shared(error.clone())),
        }
    }

    /// On replica 0, with the other replicas as workers.
    fn update(
        &self,
        operation: &'static str,
        all: &[Arc<Contribution>],
        workers: &pass::Workers<'_>,
    ) -> Result<MeanLoss> {
        let examples = Contribution::examples(all);
        let Some(first) = all.iter().find(|c| c.weighting.examples() != Some(0)) else {
            return Err(Error::invalid(
                operation,
                "no replica has an example; a global batch has at least one",
            ));
        };
        if all.iter().all(|c| c.gradients.iter().all(Option::is_none)) {
            return Err(Error::invalid(
                operation,
                "no replica has a gradient for any of this optimizer's variables; \
                 compute the loss with the model whose variables were given to the optimizer, and do not detach it",
            ));
        }
        let mean = MeanLoss { value: all.iter().map(|c| c.loss).sum::<f64>() / examples, dtype: first.dtype };
        let weighted: Vec<_> =
            all.iter().map(|c| (c.weight(examples, all.len()), c.gradients.as_slice())).collect();

        let mut progress = self.progress.change(operation)?;
        let finished = self.finished_steps();
        // Schedules and closures are the users' own, and called once for all replicas: a collective has nobody to meet.
        let _once = enter(Mode::CrossReplica(self.trained.strategy.clone()));
        // A panic would be told of replica 0 only.
        let learning_rate = catch_unwind(AssertUnwindSafe(|| self.rate.after(finished)))
            .map_err(|panic| panicked(&*panic))?;
        rate::require(learning_rate, operation)?;
        let step = Step::after(finished, learning_rate);
        let slots = &mut progress.slots;
        pass::run(&self.rule, step, &self.after_reduce, &self.trained, slots, &weighted, workers)?;
        progress.set_finished(finished + 1);
        Ok(mean)
    }
}

/// What a replica's losses come to.
pub(super) struct Losses {
    /// Those that candle has found.
    pub(super) gradients: Gradients,
    /// Those that layers have put there.
    pub(super) bucket: Option<Bucket>,
    pub(super) weighting: Weighting,
    /// The losses of all examples, added up.
    pub(super) loss: f64,
    pub(super) dtype: DType,
}

impl Losses {
    fn new<R>(optimizer: &Optimizer<R>, ctx: &ReplicaContext) -> Self {
        Self {
            gradients: Gradients::new(optimizer),
            bucket: Some(optimizer.trained.buckets.take(ctx.replica_id_in_sync_group())),
            weighting: Weighting::SumOver(0),
            loss: 0.,
            dtype: DType::F32,
        }
    }

    /// Adds a mean loss over examples, and its gradients in the form that `weighting` says. One over none has no weight,
    /// but takes part in the gradients of the others' collectives.
    fn add<R>(
        &mut self,
        optimizer: &Optimizer<R>,
        ctx: &ReplicaContext,
        loss: Tensor,
        weighting: Weighting,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let _backward = tracing::trace_span!("backward").entered();
        let Some(examples) = weighting.examples().filter(|examples| *examples > 0) else {
            return self.join(optimizer, ctx, Some(&loss), at);
        };
        require_scalar("minimize", &loss)?;
        let shared = ctx.announce_gradients(&loss, at)?;
        let summed = matches!(weighting, Weighting::SumOver(_));
        // Half precision has no room for losses added up: where nobody else's are among the gradients, they wait.
        let later = summed && !shared && !matches!(loss.dtype(), DType::F32 | DType::F64);
        let root = if summed && !later { added_up(&loss, examples)? } else { loss.clone() };
        match later {
            false => self.backward(optimizer, &root)?,
            true => {
                let mut gradients = Gradients::of(optimizer, &root)?;
                gradients.scale(examples as f64)?;
                self.gradients.add(gradients)?;
            }
        }
        self.dtype = loss.dtype();
        self.loss += loss.to_dtype(DType::F64)?.to_scalar::<f64>()? * examples as f64;
        Ok(())
    }

    /// Adds the gradients that the others' losses have here.
    fn join<R>(
        &mut self,
        optimizer: &Optimizer<R>,
        ctx: &ReplicaContext,
        loss: Option<&Tensor>,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let _backward = tracing::trace_span!("backward").entered();
        match ctx.join_gradients(loss, at)? {
            Some(root) => self.backward(optimizer, &root),
            None => Ok(()),
        }
    }

    /// Adds the gradients of a scalar.
    fn backward<R>(&mut self, optimizer: &Optimizer<R>, root: &Tensor) -> Result<()> {
        let found = deposit::collect(&mut self.bucket, || Gradients::of(optimizer, root))?;
        self.gradients.add(found)
    }
}

/// The losses added up over the examples, from their mean.
fn added_up(mean: &Tensor, examples: usize) -> Result<Tensor> {
    let dtype = mean.dtype();
    if !matches!(dtype, DType::F32 | DType::F64) {
        let held = Tensor::new(examples as f64, mean.device())?.to_dtype(dtype)?.to_dtype(DType::F64)?;
        if held.to_scalar::<f64>()? != examples as f64 {
            let reason = format!(
                "the loss is of {dtype:?}, which cannot hold the number {examples} by which it is weighed; with collectives \
                 in the model, give loss.to_dtype(DType::F32)?"
            );
            return Err(Error::invalid("minimize", reason));
        }
    }
    Ok((mean * examples as f64)?)
}

struct MeanLoss {
    value: f64,
    dtype: DType,
}
