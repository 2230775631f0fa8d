//! A model on every local replica.

use crate::context::unwrap_candle_error;
use crate::strategy::Strategy;
use crate::variables::Variables;
use candle_core::Var;
use candle_nn::VarBuilder;
use distribute_base::Result;
use distribute_values::internal::{require_one_each, short_name};
use distribute_values::{Distributed, PerReplica};
use std::panic::Location;

type Build<M> = Box<dyn Fn(VarBuilder<'static>) -> Result<M> + Send + Sync>;

/// A model on every local replica, and the variables that these models share.
///
/// Pass it to [`run`](Strategy::run) as `&model` to give each replica a `&M`. Pass it as `&mut model` to give each
/// replica a `&mut M`, for models whose `forward` takes `&mut self` and for models that are not `Sync`:
///
/// ```compile_fail,E0277
/// # use distribute::prelude::*;
/// use std::cell::Cell;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|_vb| distribute::Ok(Cell::new(0)))?;
/// strategy.run(&model, |_, calls| Ok(calls.set(calls.get() + 1)))?; // a Cell is not shared
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// ```
/// # use distribute::prelude::*;
/// use std::cell::Cell;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let mut model = strategy.replicate(|_vb| distribute::Ok(Cell::new(0)))?;
/// strategy.run(&mut model, |_, calls| Ok(calls.set(calls.get() + 1)))?; // each replica has its own
/// assert_eq!(model.models().iter().map(Cell::get).collect::<Vec<_>>(), [1, 1]);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// A model that is neither `Sync` nor `Send` cannot be passed in either of these ways. Examples are
/// candle_nn's `Sequential` and any model with an `Rc`:
///
/// ```compile_fail,E0277
/// # use distribute::prelude::*;
/// use candle_nn::{linear, seq};
/// let strategy = MirroredStrategy::cpus(2)?;
/// let mut model = strategy.replicate(|vb| distribute::Ok(seq().add(linear(2, 1, vb)?)))?;
/// strategy.run(&mut model, |_, _| Ok(()))?; // a Box<dyn Module> is not sent
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// `nn::seq` builds the same model from layers that can be shared between threads; `nn::per_thread` builds
/// any model once on each thread that uses it:
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::{Module, linear, seq};
/// use distribute::nn;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| nn::per_thread(vb, |vb| Ok(seq().add(linear(2, 1, vb)?))))?;
/// let x = candle_core::Tensor::zeros((3, 2), candle_core::DType::F32, &candle_core::Device::Cpu)?;
/// let y = strategy.run(&model, |_, model| Ok(model.forward(&x)?))?;
/// assert_eq!(y.values()[1].dims(), [3, 1]);
/// # Ok::<(), distribute::Error>(())
/// ```
pub struct Replicated<M> {
    models: PerReplica<M>,
    build: Build<M>,
    /// The variables of the model, by name.
    pub variables: Variables,
}

impl<M> Replicated<M> {
    #[track_caller]
    pub(crate) fn build(strategy: &Strategy, seed: u64, build: Build<M>) -> Result<Self> {
        let at = Location::caller();
        let variables = Variables::new(strategy, seed);
        let models = || {
            let mut models = Vec::new();
            for replica in 0..strategy.extended().max_replicas() {
                models.push(build(variables.builder(replica)?).map_err(unwrap_candle_error)?);
                variables.require_same_names(replica)?;
            }
            Ok(models)
        };
        let models = strategy.abort_peers_on_err(models())?;
        variables.require_same_on_workers(at)?;
        Ok(Self { models: PerReplica::from_values(models), build, variables })
    }

    /// Returns the models, one for each local replica. If the workers share logical replicas, the number of local
    /// replicas may grow. There are then models for the largest number, and only the first of them are in use.
    pub fn models(&self) -> &PerReplica<M> {
        &self.models
    }

    pub(crate) fn models_mut(&mut self) -> &mut PerReplica<M> {
        &mut self.models
    }

    /// Returns a single model, for evaluation or export on one device, with a snapshot of the variables.
    /// Running statistics are averaged over the replicas. If the model has running statistics, all workers
    /// must make this call.
    ///
    /// # Errors
    /// Returns the errors of the closure that builds the model, and of reading its variables.
    #[track_caller]
    pub fn merged(&self) -> Result<M> {
        (self.build)(self.variables.snapshot_builder()?)
    }
}

impl<M> std::fmt::Debug for Replicated<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replicated({} replicas, {:?})", self.models.len(), self.variables)
    }
}

impl Strategy {
    /// Builds a model on every local replica. Variables are created once and mirrored: replicas that use the
    /// same memory share them.
    ///
    /// `build` is called once per replica with a candle `VarBuilder`, so any model that takes one can be
    /// built. It returns candle's `Result` or this crate's; if it ends in a bare `Ok`, use
    /// [`distribute::Ok`](distribute_base::Ok) to name the error type. Initial values depend on the seed
    /// (here 0) and on the variable's name.
    ///
    /// Two layers that request the same path share its variables, as with candle alone. This ties their
    /// weights, which may be a mistake, so it is logged at level `debug`.
    ///
    /// With several workers, all must make this call, and their models are compared.
    ///
    /// # Errors
    /// - The error of `build`.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): replicas request different
    ///   variables, or two layers request the same path with different shapes. The error names them.
    /// - [`Error::Failed`](distribute_base::Error::Failed): variables or initial values differ between
    ///   workers. The error names them.
    /// - [`Error::Collective`](distribute_base::Error::Collective): a worker makes a different call, disconnects or
    ///   times out.
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext),
    ///   [`Error::MixedStrategies`](distribute_base::Error::MixedStrategies): called inside `run`, or inside another
    ///   strategy's scope.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
    /// assert_eq!(model.variables.names(), ["fc.bias", "fc.weight"]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[track_caller]
    pub fn replicate<M, E>(
        &self,
        build: impl Fn(VarBuilder<'static>) -> Result<M, E> + Send + Sync + 'static,
    ) -> Result<Replicated<M>>
    where
        distribute_base::Error: From<E>,
    {
        self.replicate_seeded(0, build)
    }

    /// Acts like [`Strategy::replicate`], but initial values depend on `seed` and the variable's name.
    ///
    /// # Errors
    /// Returns the errors of [`Strategy::replicate`].
    #[track_caller]
    pub fn replicate_seeded<M, E>(
        &self,
        seed: u64,
        build: impl Fn(VarBuilder<'static>) -> Result<M, E> + Send + Sync + 'static,
    ) -> Result<Replicated<M>>
    where
        distribute_base::Error: From<E>,
    {
        let _scope = self.enter("replicate", "build models before run")?;
        Replicated::build(self, seed, Box::new(move |vb| Ok(build(vb)?)))
    }
}

fn describe_model<M>(strategy: &Strategy) -> String {
    format!("a model {} of {strategy}", short_name::<M>())
}

/// Returns how many of `models` models the replicas of the current world use. Only logical replicas leave some unused.
fn used(strategy: &Strategy, models: usize) -> usize {
    let world = strategy.world();
    if world.logical_replicas().is_some() { world.replicas() } else { models }
}

/// Gives each replica a mutable reference to its model, for methods that take `&mut self`, such as many in
/// candle_transformers.
impl<'a, M: Send> Distributed for &'a mut Replicated<M> {
    type Local = &'a mut M;
    fn split(self, replicas: usize) -> Result<Vec<&'a mut M>> {
        let strategy = self.variables.strategy().clone();
        let used = used(&strategy, self.models.len());
        let models = self.models_mut().iter_mut().take(used).collect();
        require_one_each(models, replicas, || describe_model::<M>(&strategy))
    }
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        self.variables.own_variables(replica)
    }
}

// Makes the compiler give advice for a model that is not `Sync`.
#[diagnostic::do_not_recommend]
impl<'a, M: Sync> Distributed for &'a Replicated<M> {
    type Local = &'a M;
    fn split(self, replicas: usize) -> Result<Vec<&'a M>> {
        let strategy = self.variables.strategy();
        let models = self.models().iter().take(used(strategy, self.models.len())).collect();
        require_one_each(models, replicas, || describe_model::<M>(strategy))
    }
    fn own_variables(&self, replica: usize) -> Vec<Var> {
        self.variables.own_variables(replica)
    }
}
