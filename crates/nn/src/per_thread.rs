//! Models that can be neither shared between threads nor sent to one: each thread builds its own.

use candle_core::{Error, Module, ModuleT, Result, Tensor};
use candle_nn::VarBuilder;
use distribute_core::internal::again;
use std::any::{Any, type_name};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

thread_local! {
    /// The models that this thread has built, by the number of their [`PerThread`].
    static MODELS: RefCell<HashMap<u64, Built>> = RefCell::default();
}

struct Built {
    /// A handle that is alive as long as the [`PerThread`] of the model.
    owner: Weak<()>,
    model: Rc<dyn Any>,
}

type Build<M> = Box<dyn Fn(VarBuilder<'static>) -> Result<M> + Send + Sync>;

/// A model that each thread builds for itself, with the same variables.
///
/// Use it to train a model that is neither `Send` nor `Sync`, such as candle_nn's `Sequential`, or one with an
/// `Rc` or a `Box<dyn Module>`. [`per_thread`](per_thread()) creates it. It is a `Module` if the model is one.
/// [`forward_t`](PerThread::forward_t) calls the method of a `ModuleT`, and [`get`](PerThread::get) returns
/// the model itself.
pub struct PerThread<M> {
    number: u64,
    vb: VarBuilder<'static>,
    build: Build<M>,
    alive: Arc<()>,
}

/// Creates a model that each thread builds for itself, for types that can be neither shared between threads
/// nor sent to one.
///
/// `build` is called immediately, which creates the variables. It is called again on every other thread when
/// the thread first uses the model, usually in the first step of each replica. There it gets the existing
/// variables, so it has to ask for the same ones each time; a new variable is an error. Anything that `build`
/// computes from variables uses their values during the call.
///
/// A thread keeps its model until the thread exits, or until it builds another model after the [`PerThread`]
/// was dropped. A strategy keeps the threads of its replicas. A thread that is replaced, or several concurrent
/// runs, call `build` again. There, a model that changes itself (by a `Cell`) starts from its initial state: keep
/// such state in variables.
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
/// A component of a model can also be built in this way. Its constructor takes a `VarBuilder<'static>`, as
/// [`replicate`] passes it:
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
/// If a model's methods take `&mut self`, wrap it in a `RefCell`:
/// `per_thread(vb, |vb| Ok(RefCell::new(Model::new(vb)?)))`, and `model.get()?.borrow_mut()`.
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
    all.keep((all.build)(all.vb.clone())?)?;
    Ok(all)
}

impl<M: 'static> PerThread<M> {
    /// Returns this thread's model. Builds the model if this is the thread's first use of it.
    ///
    /// # Errors
    /// - `build` returns an error.
    /// - `build` asks for a variable that did not exist after its first call.
    pub fn get(&self) -> Result<Rc<M>> {
        let find = |models: &RefCell<HashMap<u64, Built>>| {
            models.borrow().get(&self.number).map(|built| built.model.clone())
        };
        let found = MODELS.try_with(find).map_err(|_| ended::<M>())?;
        match found.and_then(|model| model.downcast().ok()) {
            Some(model) => Ok(model),
            None => self.keep(again(|| (self.build)(self.vb.clone()))?),
        }
    }

    /// Stores a model for this thread, and drops those whose [`PerThread`] was dropped.
    fn keep(&self, model: M) -> Result<Rc<M>> {
        let model = Rc::new(model);
        let built = Built { owner: Arc::downgrade(&self.alive), model: model.clone() };
        let dropped = MODELS.try_with(|models| {
            let mut models = models.borrow_mut();
            let dropped: Vec<_> = models.extract_if(|_, built| built.owner.strong_count() == 0).collect();
            models.insert(self.number, built);
            dropped
        });
        // Not while the map is borrowed: a model may hold a `PerThread` that accesses it.
        drop(dropped.map_err(|_| ended::<M>())?);
        Ok(model)
    }

    /// Calls `forward_t` of this thread's model.
    ///
    /// # Errors
    /// - [`get`](PerThread::get) returns an error.
    /// - The model returns an error.
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
    /// Drops this thread's model. Other threads drop theirs when they next build one.
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
fn ended<M>() -> Error {
    Error::msg(format!("{} is used on a thread that has ended", type_name::<M>()))
}
