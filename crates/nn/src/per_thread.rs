//! Models that can be neither shared between threads nor sent to another thread, so each thread builds its own.

// - **INV-79** A model that threads cannot share is built once on each thread that uses it, from the variables that
//   its first build created: none is created after that. Tests: `computing/layers/per_thread.rs`.

use candle_core::{Error, Module, ModuleT, Result, Tensor};
use candle_nn::VarBuilder;
use distribute_core::internal::rebuild;
use std::any::{Any, type_name};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

thread_local! {
    /// The models that this thread has built, keyed by the id of their [`PerThread`].
    static MODELS: RefCell<HashMap<u64, BuiltModel>> = RefCell::default();
}

struct BuiltModel {
    /// A weak reference that is valid as long as this model's [`PerThread`] exists.
    owner: Weak<()>,
    model: Rc<dyn Any>,
}

type Build<M> = Box<dyn Fn(VarBuilder<'static>) -> Result<M> + Send + Sync>;

/// A model that each thread builds for itself. It has the same variables on all threads.
///
/// Use this to train a model that is not `Send` and `Sync`, such as candle_nn's `Sequential`, or a model with an `Rc`
/// or a `Box<dyn Module>`. Create it with [`per_thread`](per_thread()). It implements `Module` if the model does.
/// [`forward_t`](PerThread::forward_t) calls the method of a `ModuleT`, and [`get`](PerThread::get) returns the model
/// itself.
pub struct PerThread<M> {
    number: u64,
    vb: VarBuilder<'static>,
    build: Build<M>,
    alive: Arc<()>,
}

/// Creates a model that each thread builds for itself, for types that can be neither shared between threads nor sent to
/// another thread.
///
/// `build` is called immediately, and creates the variables. It is called again on every other thread that uses the
/// model for the first time, usually in the first step of each replica. There it gets the existing variables, so it
/// must always request the same ones; a new variable is an error. If `build` computes something from variables, it uses
/// their values at the time of the call.
///
/// A thread keeps its model until the thread exits, drops the [`PerThread`], or builds another model after the
/// [`PerThread`] was dropped. A strategy keeps the threads of its replicas. If a thread is replaced, or if there are
/// several concurrent runs, `build` is called again. A model that changes itself (with a `Cell`) then starts from its
/// initial state. Store such state in variables instead.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{Activation, linear, seq};
/// use distribute::nn;
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| {
///     nn::per_thread(vb, |vb| {
///         // candle_nn's own
///         Ok(seq().add(linear(8, 16, vb.pp("0"))?).add(Activation::Gelu).add(linear(16, 1, vb.pp("2"))?))
///     })
/// })?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let x = Tensor::ones((3, 8), DType::F32, &Device::Cpu)?;
/// strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, 3))?;
/// // Methods of the model itself, and evaluation of the merged model.
/// assert_eq!(model.merged()?.get()?.forward_all(&x)?.len(), 3);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// A part of a model can also be built in this way. Its constructor must take a `VarBuilder<'static>`, as passed by
/// [`replicate`]:
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::{Linear, Sequential, VarBuilder, linear, seq};
/// use distribute::nn::{self, PerThread};
///
/// struct Model {
///     body: PerThread<Sequential>,
///     head: Linear,
/// }
/// impl Model {
///     fn new(vb: VarBuilder<'static>) -> candle_core::Result<Self> {
///         let body = nn::per_thread(vb.pp("body"), |vb| Ok(seq().add(linear(8, 8, vb.pp("0"))?)))?;
///         Ok(Self { body, head: linear(8, 2, vb.pp("head"))? })
///     }
/// }
/// let model = MirroredStrategy::new(["cpu:0", "cpu:1"])?.replicate(Model::new)?;
/// assert_eq!(model.variables.names(), ["body.0.bias", "body.0.weight", "head.bias", "head.weight"]);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// If methods of the model take `&mut self`, wrap the model in a `RefCell`: `per_thread(vb, |vb|
/// Ok(RefCell::new(Model::new(vb)?)))`, and `model.get()?.borrow_mut()`.
///
/// [`replicate`]: distribute_core::Strategy::replicate
///
/// # Errors
/// Returns the errors of `build`.
pub fn per_thread<M: 'static>(
    vb: VarBuilder<'static>,
    build: impl Fn(VarBuilder<'static>) -> Result<M> + Send + Sync + 'static,
) -> Result<PerThread<M>> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let all = PerThread { number, vb, build: Box::new(build), alive: Arc::new(()) };
    all.store((all.build)(all.vb.clone())?)?;
    Ok(all)
}

impl<M: 'static> PerThread<M> {
    /// Returns the model of this thread. Builds it if the thread uses it for the first time.
    ///
    /// # Errors
    /// Returns the error of `build`, and an error in these cases:
    /// - `build` requests a variable that did not exist after its first call.
    /// - The thread is exiting.
    pub fn get(&self) -> Result<Rc<M>> {
        let find = |models: &RefCell<HashMap<u64, BuiltModel>>| {
            models.borrow().get(&self.number).map(|built| built.model.clone())
        };
        let found = MODELS.try_with(find).map_err(|_| thread_ended_error::<M>())?;
        match found.and_then(|model| model.downcast().ok()) {
            Some(model) => Ok(model),
            None => self.store(self.rebuilt()?),
        }
    }

    /// Builds another model, from the current values of the variables. The model that [`get`](PerThread::get) returns
    /// does not change.
    ///
    /// Call this method in each step if the model computes something from its variables while it is built, such as the
    /// product of an adapter ([`Lora`](super::Lora)), or keeps something from the step before.
    ///
    /// # Errors
    /// Returns the error of `build`, and an error if `build` requests a variable that did not exist after its first
    /// call.
    pub fn rebuilt(&self) -> Result<M> {
        rebuild(|| (self.build)(self.vb.clone()))
    }

    /// Stores the model of this thread and returns it. Drops this thread's other models whose [`PerThread`] was
    /// dropped.
    fn store(&self, model: M) -> Result<Rc<M>> {
        let model = Rc::new(model);
        let built = BuiltModel { owner: Arc::downgrade(&self.alive), model: model.clone() };
        let dropped = MODELS.try_with(|models| {
            let mut models = models.borrow_mut();
            let dropped: Vec<_> = models.extract_if(|_, built| built.owner.strong_count() == 0).collect();
            models.insert(self.number, built);
            dropped
        });
        // Not while the map is borrowed: a model may hold a `PerThread` that accesses it.
        drop(dropped.map_err(|_| thread_ended_error::<M>())?);
        Ok(model)
    }

    /// Calls the `forward_t` method of this thread's model.
    ///
    /// # Errors
    /// - The errors of [`get`](PerThread::get).
    /// - The error of the model.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor>
    where
        M: ModuleT,
    {
        self.get()?.forward_t(xs, train)
    }
}

impl<M: Module + 'static> Module for PerThread<M> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.get()?.forward(xs)
    }
}

impl<M> Drop for PerThread<M> {
    /// Drops the model of this thread. Other threads drop theirs when they build another model or exit.
    fn drop(&mut self) {
        let model = MODELS.try_with(|models| models.try_borrow_mut().ok()?.remove(&self.number));
        drop(model);
    }
}

impl<M> fmt::Debug for PerThread<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerThread({})", type_name::<M>())
    }
}

/// Returns the error for a model that is used while its thread exits.
fn thread_ended_error<M>() -> Error {
    Error::msg(format!("{} is used on a thread that has ended", type_name::<M>()))
}
