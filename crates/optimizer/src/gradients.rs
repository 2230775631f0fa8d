//! The gradients of a model's variables on one replica, and their weighting.

use crate::Optimizer;
use crate::parameters::Parameters;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use distribute_base::internal::{
    Dense, EitherFloat, Number, ReplicaGradient, RowValues, Rows, to_device, to_host,
};
use distribute_base::{Error, Result};
use distribute_core::internal::unwrap_candle_error;
use distribute_optim::merge_rows;
use distribute_tensor::{HostTensor, IndexedSlices, ReduceOp};
use std::sync::Arc;

/// The gradient of one variable.
#[derive(Clone, Debug)]
pub enum Gradient {
    /// A tensor with the shape and dtype of the variable.
    Dense(Tensor),
    /// Some rows, with the dtype of the variable. All other rows have a gradient of zero. Rows that occur more than
    /// once are added.
    Rows(IndexedSlices),
}

impl From<Tensor> for Gradient {
    fn from(tensor: Tensor) -> Self {
        Gradient::Dense(tensor)
    }
}

impl From<IndexedSlices> for Gradient {
    fn from(rows: IndexedSlices) -> Self {
        Gradient::Rows(rows)
    }
}

/// The weight of a replica's gradients when they are combined with those of the other replicas.
///
/// Gradients of batches with different sizes must not be averaged equally: with 8 and 2 examples, the mean of the two
/// means is not the mean over all 10. A weighting therefore contains a number of examples. A plain sum or mean over the
/// replicas must be requested explicitly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// The gradients of the *mean* loss over the given number of examples of this replica: Σ nᵣgᵣ / Σ nᵣ. A plain
    /// number converts to this.
    MeanOver(usize),
    /// The gradients of the *sum* of the losses over the given number of examples of this replica: Σ gᵣ / Σ nᵣ. Use
    /// this if the model contains collectives, which make losses depend on tensors of other replicas. The gradients of
    /// a replica then include contributions from the losses of the others, weighted by those replicas' examples.
    SumOver(usize),
    /// The plain sum or mean of the gradients over the replicas, ignoring the numbers of examples. A replica without a
    /// gradient is treated as zero. Use the sum if each loss has already been divided by the number of examples on
    /// *all* replicas.
    Replicas(ReduceOp),
}

impl From<usize> for Weighting {
    fn from(examples: usize) -> Self {
        Weighting::MeanOver(examples)
    }
}

impl From<ReduceOp> for Weighting {
    fn from(op: ReduceOp) -> Self {
        Weighting::Replicas(op)
    }
}

impl Weighting {
    /// Returns the number of examples of this replica; `None` if examples are ignored.
    pub(crate) fn examples(self) -> Option<usize> {
        match self {
            Weighting::MeanOver(examples) | Weighting::SumOver(examples) => Some(examples),
            Weighting::Replicas(_) => None,
        }
    }
}

/// The gradients of an optimizer's variables on one replica, dense or by row. They come from a loss or from the
/// program.
///
/// [`Optimizer::apply_gradients`] reduces them over the replicas and updates the variables.
///
/// ```
/// # use distribute::{optimizer::Gradients, prelude::*, tensor::IndexedSlices};
/// # use candle_nn::Init;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let table = strategy.replicate(|vb| vb.get_with_hints((3, 2), "table", Init::Const(0.)))?;
/// let optimizer = Sgd::new(&table.variables, 1.)?;
/// strategy.run((), |ctx, ()| {
///     // Row 0 of replica 0, row 1 of replica 1, and nothing of row 2.
///     let row = HostTensor::new(vec![1f32, 2.], [1, 2])?;
///     let index = HostTensor::vector(vec![ctx.replica_id_in_sync_group() as i64]);
///     let mut gradients = Gradients::new(&optimizer);
///     gradients.insert("table", IndexedSlices::new(row, index, None)?)?;
///     optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
/// })?;
/// assert_eq!(table.variables.get("table")?.to_vec2::<f32>()?, [[-1., -2.], [-1., -2.], [0., 0.]]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gradients {
    parameters: Arc<Parameters>,
    /// The gradient of each variable, checked and contiguous; `None` for a variable without one.
    all: Vec<Option<Gradient>>,
}

impl Gradients {
    /// Creates empty gradients. Fill them with [`insert`](Gradients::insert), or use them to take part in a step
    /// without any gradients.
    pub fn new<R>(optimizer: &Optimizer<R>) -> Self {
        Self::none(&optimizer.inner.parameters)
    }

    pub(crate) fn none(parameters: &Arc<Parameters>) -> Self {
        Self { all: vec![None; parameters.variables.len()], parameters: parameters.clone() }
    }

    /// Computes the gradients of a scalar loss with [`backward`].
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the loss is not a scalar.
    /// - [`Error::Candle`]: the backward pass fails.
    /// - [`Error::Collective`]: a collective in the graph fails.
    #[doc(alias = "tf.keras.optimizers.Optimizer.compute_gradients")]
    #[doc(alias = "tf.GradientTape.gradient")]
    pub fn of<R>(optimizer: &Optimizer<R>, loss: &Tensor) -> Result<Self> {
        Self::from_loss(&optimizer.inner.parameters, loss)
    }

    pub(crate) fn from_loss(parameters: &Arc<Parameters>, loss: &Tensor) -> Result<Self> {
        let _backward = tracing::trace_span!("backward").entered();
        require_scalar("Gradients::of", loss)?;
        let mut store = backward(loss)?;
        let parameters = parameters.clone();
        let of = |number| Ok(parameters.take_from(number, &mut store)?.map(Gradient::Dense));
        Ok(Self { all: (0..parameters.variables.len()).map(of).collect::<Result<_>>()?, parameters })
    }

    /// Copies the gradients of the optimizer's variables from a store that [`backward`] has returned. A store of
    /// candle's own backward pass is also accepted, but candle computes wrong gradients for [some
    /// operations](backward).
    ///
    /// # Errors
    /// Returns the errors of [`insert`](Gradients::insert).
    pub fn from_store<R>(optimizer: &Optimizer<R>, store: &GradStore) -> Result<Self> {
        let mut gradients = Self::new(optimizer);
        for (index, (_, variable)) in optimizer.inner.parameters.variables.iter().enumerate() {
            for tensor in gradients.parameters.clone().replica_tensors(index, variable) {
                if let Some(gradient) = store.get(tensor) {
                    let found = gradients.parameters.check(index, gradient.clone().into())?;
                    let before = gradients.all[index].take();
                    gradients.all[index] = Some(match before {
                        Some(before) => before.add(found, variable)?,
                        None => found,
                    });
                }
            }
        }
        Ok(gradients)
    }

    /// Sets the gradient of a variable to a tensor or [`IndexedSlices`]. Replaces the previous gradient, if there
    /// is one.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable is unknown, the shape or dtype differs from the variable's, or a row
    ///   is outside the variable.
    /// - [`Error::NotSupported`]: the variable is a table of ids on parameter servers.
    pub fn insert(&mut self, variable: &str, gradient: impl Into<Gradient>) -> Result<()> {
        let index = self.parameters.position("Gradients::insert", variable)?;
        self.all[index] = Some(self.parameters.check(index, gradient.into())?);
        Ok(())
    }

    /// Returns the gradient of a variable, or `None` if the variable has no gradient or is unknown.
    pub fn get(&self, variable: &str) -> Option<&Gradient> {
        self.iter().find(|(name, _)| *name == variable).map(|(_, gradient)| gradient)
    }

    /// Returns an iterator over the gradients, each with the name of its variable.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Gradient)> {
        let names = self.parameters.variables.iter().map(|(name, _)| name.as_str());
        names.zip(&self.all).filter_map(|(name, gradient)| Some((name, gradient.as_ref()?)))
    }

    /// Adds the gradients in `other`, for example those of another micro-batch or another loss.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `other` was created for a different optimizer.
    /// - [`Error::Candle`], [`Error::Tensor`]: two gradients cannot be added, for example because there is not enough
    ///   memory.
    pub fn add(&mut self, other: Gradients) -> Result<()> {
        self.parameters.require_same("Gradients::add", &other)?;
        for ((mine, other), (_, variable)) in
            self.all.iter_mut().zip(other.all).zip(&self.parameters.variables)
        {
            *mine = match (mine.take(), other) {
                (Some(mine), Some(other)) => Some(mine.add(other, variable)?),
                (mine, other) => mine.or(other),
            };
        }
        Ok(())
    }

    pub(crate) fn scale(&mut self, factor: f64) -> Result<()> {
        for gradient in self.all.iter_mut().flatten() {
            *gradient = match gradient {
                Gradient::Dense(tensor) => Gradient::Dense((&*tensor * factor)?),
                Gradient::Rows(rows) => Gradient::Rows(rows.divide(1. / factor)?),
            };
        }
        Ok(())
    }

    pub(crate) fn into_checked(self, parameters: &Parameters) -> Result<Vec<Option<Gradient>>> {
        parameters.require_same("apply_gradients", &self)?;
        Ok(self.all)
    }
}

impl Gradient {
    fn add(self, other: Self, variable: &Var) -> Result<Self> {
        let dense = |gradient| match gradient {
            Gradient::Dense(tensor) => Ok::<_, Error>(tensor),
            Gradient::Rows(rows) => Ok(rows.to_dense()?.to_candle(variable.device())?),
        };
        let sum = |mine: Tensor, other: Tensor| -> candle_core::Result<_> {
            to_device(&mine, other.device())? + other
        };
        match (self, other) {
            (Gradient::Rows(mine), Gradient::Rows(other)) => {
                let indices = HostTensor::concat(&[&mine.indices, &other.indices], 0)?;
                let values = HostTensor::concat(&[&mine.values, &other.values], 0)?;
                Ok(Gradient::Rows(IndexedSlices::new(values, indices, mine.dense_shape)?))
            }
            (mine, other) => Ok(Gradient::Dense(sum(dense(mine)?, dense(other)?)?)),
        }
    }

    /// Converts the gradient to the form that the reduction uses, on the host. Rows that occur more than once are
    /// added.
    pub(crate) fn into_host(self, variable: &Var) -> Result<ReplicaGradient> {
        fn merged<F: Number>(slices: &IndexedSlices, row_len: usize) -> Result<Rows> {
            let values = slices.values.as_slice::<F>().unwrap_or_default();
            let (rows, values) = merge_rows(slices.indices.as_slice().unwrap_or_default(), values, row_len)?;
            Ok(Rows::new(rows, F::into_elements(values)))
        }
        let row_len = row_len(variable);
        Ok(match (self, variable.dtype()) {
            (Gradient::Dense(tensor), _) => ReplicaGradient::Dense(Dense::Host(to_host(&tensor)?)),
            (Gradient::Rows(slices), DType::F32) => ReplicaGradient::Rows(merged::<f32>(&slices, row_len)?),
            (Gradient::Rows(slices), _) => ReplicaGradient::Rows(merged::<f64>(&slices, row_len)?),
        })
    }

    /// Converts the gradient to the form that the update on devices uses, on the device of `copy`. Rows that occur more
    /// than once are added.
    pub(crate) fn into_device(self, copy: &Var) -> Result<ReplicaGradient> {
        match self {
            Gradient::Dense(tensor) => {
                Ok(ReplicaGradient::Dense(Dense::Device(to_device(&tensor, copy.device())?)))
            }
            rows => Ok(rows.into_host(copy)?.into_device(copy)?),
        }
    }

    /// Converts a reduced gradient on the host to its public form.
    pub(crate) fn from_reduced(gradient: ReplicaGradient, variable: &Var) -> Result<Self> {
        let rows = match gradient {
            ReplicaGradient::Dense(dense) => return Ok(Self::Dense(dense.tensor(variable)?)),
            ReplicaGradient::Rows(rows) => rows,
        };
        let whole = variable.dims().to_vec();
        let mut shape = whole.clone();
        shape[0] = rows.rows.len();
        let values = match rows.values {
            RowValues::Host(EitherFloat::F32(values)) => HostTensor::new(values, shape)?,
            RowValues::Host(EitherFloat::F64(values)) => HostTensor::new(values, shape)?,
            RowValues::Device(_) => {
                return Err(Error::invalid("optimizer step", "rows of a gradient are on a device"));
            }
        };
        let indices = HostTensor::vector(rows.rows.into_iter().map(|row| row as i64).collect());
        Ok(Self::Rows(IndexedSlices::new(values, indices, Some(whole))?))
    }
}

/// Returns the number of elements in a row, which is the product of all dimensions except the first; 0 for a scalar.
pub(crate) fn row_len(variable: &Var) -> usize {
    variable.dims().get(1..).map_or(0, |rest| rest.iter().product())
}

impl Parameters {
    /// Removes the gradient of a variable from `store` and returns it on its device, with the gradients of the
    /// variable's copies added.
    fn take_from(&self, number: usize, store: &mut GradStore) -> Result<Option<Tensor>> {
        let mut sum: Option<Tensor> = None;
        for variable in self.replica_tensors(number, &self.variables[number].1) {
            let Some(gradient) = store.remove(variable) else { continue };
            let gradient = gradient.detach().contiguous()?;
            sum = Some(match sum {
                Some(sum) => (to_device(&sum, gradient.device())? + gradient)?,
                None => gradient,
            });
        }
        Ok(sum)
    }

    /// Checks that a gradient matches its variable. Returns it as a separate contiguous tensor without a graph, or as
    /// rows with the dense shape and int64 indices.
    pub(crate) fn check(&self, index: usize, gradient: Gradient) -> Result<Gradient> {
        let (name, variable) = &self.variables[index];
        let does_not_fit = |what: String| {
            let reason = format!(
                "the gradient of {name} is {what}, and the variable {:?}{:?}",
                variable.dtype(),
                variable.dims()
            );
            Error::invalid("gradients", reason)
        };
        if self.strategy.container(variable.id()).is_some_and(|variable| variable.is_dynamic()) {
            return Err(Error::NotSupported {
                operation: "gradients",
                strategy: "ParameterServerStrategy",
                what: "custom gradients of a table of ids",
                advice: "train it with minimize and a nn::DynamicEmbedding",
            });
        }
        match gradient {
            Gradient::Dense(tensor) => {
                if tensor.dims() != variable.dims() || tensor.dtype() != variable.dtype() {
                    return Err(does_not_fit(format!("{:?}{:?}", tensor.dtype(), tensor.dims())));
                }
                // A copy, because a step would deadlock if users pass the variable itself as its gradient.
                let own = if tensor.is_contiguous() { tensor.copy() } else { tensor.contiguous() };
                Ok(Gradient::Dense(own?.detach()))
            }
            Gradient::Rows(rows) => {
                let dtype = match variable.dtype() {
                    DType::F32 => distribute_tensor::DType::F32,
                    _ => distribute_tensor::DType::F64,
                };
                let rest = (rows.values.dims().get(1..), variable.dims().get(1..));
                let whole = variable.dims().to_vec();
                let fits = rest.0 == rest.1 && rest.0.is_some() && rows.values.dtype() == dtype;
                if !fits || rows.dense_shape.as_ref().is_some_and(|shape| *shape != whole) {
                    return Err(does_not_fit(rows.describe()));
                }
                // Checked again, because fields can be set directly; now with the number of rows.
                let indices = rows.indices.cast(distribute_tensor::DType::I64)?;
                IndexedSlices::new(rows.values.clone(), rows.indices, Some(whole.clone()))
                    .map_err(|error| does_not_fit(format!("not one of its rows: {error}")))?;
                Ok(Gradient::Rows(IndexedSlices { values: rows.values, indices, dense_shape: Some(whole) }))
            }
        }
    }

    fn require_same(&self, operation: &'static str, gradients: &Gradients) -> Result<()> {
        if std::ptr::eq(self, &*gradients.parameters) {
            return Ok(());
        }
        Err(Error::invalid(
            operation,
            "these gradients belong to another optimizer's variables; create them with this optimizer",
        ))
    }
}

/// Computes the gradients of a loss like candle's `Tensor::backward`, but correctly for all operations of candle.
/// [`Optimizer::minimize`] and [`Gradients::of`] use this function.
///
/// The backward pass of candle 0.11 silently computes wrong gradients for pooling, upsampling, scattering, 1-d
/// convolutions and ties of maxima; docs/reference/gradients.md has a table. The returned store contains only the
/// gradients of variables.
///
/// ```
/// use candle_core::{Device, Var};
/// use distribute::optimizer::backward;
///
/// let x = Var::new(&[[[[1f32, 2.], [3., 4.]]]], &Device::Cpu)?;
/// let loss = x.max_pool2d(2)?.sum_all()?;
/// let of_x = |store: candle_core::backprop::GradStore| store.get(&x).unwrap().flatten_all()?.to_vec1::<f32>();
/// assert_eq!(of_x(backward(&loss)?)?, [0., 0., 0., 1.]);
/// assert_eq!(of_x(loss.backward()?)?, [0., 0., 0., 0.25]); // candle's own
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// - [`Error::Candle`]: an operation has no gradient, or computing it fails.
/// - [`Error::Collective`]: a collective in the graph fails.
#[doc(alias = "tf.GradientTape.gradient")]
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    distribute_nn::internal::backward(loss).map_err(|error| unwrap_candle_error(error.into()))
}

pub(crate) fn require_scalar(operation: &'static str, loss: &Tensor) -> Result<()> {
    match loss.rank() {
        0 => Ok(()),
        _ => {
            let reason = format!(
                "the loss has shape {:?}; pass a scalar, the mean over this replica's examples",
                loss.dims()
            );
            Err(Error::invalid(operation, reason))
        }
    }
}
