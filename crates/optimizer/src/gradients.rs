//! The gradients of a model's variables on one replica, and what they are of.

use crate::Optimizer;
use crate::parameters::Parameters;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use distribute_base::internal::{Any, Dense, Number, ReplicaGradient, RowValues, Rows, to_device, to_host};
use distribute_base::{Error, Result};
use distribute_core::internal::raised;
use distribute_optim::merge_rows;
use distribute_tensor::{HostTensor, IndexedSlices, ReduceOp};
use std::sync::Arc;

/// The gradient of one variable.
#[derive(Clone, Debug)]
pub enum Gradient {
    /// A number for each element: of the variable's shape and dtype.
    Dense(Tensor),
    /// Rows of it, of the variable's dtype; rows that are not there are zeros. Rows that come more than once add up.
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

/// The weighting of a replica's gradients when they are combined with those of the other replicas.
///
/// Replicas whose batches differ in size must not be averaged as if they were equal: of 8 and 2 examples, the mean of
/// the two means is not the mean over the 10. So the number of examples goes with the gradients, and a plain sum or
/// mean over replicas is taken only where one is asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// They are of the *mean* loss over this many examples of this replica: Σ nᵣgᵣ / Σ nᵣ. A plain number means this.
    MeanOver(usize),
    /// They are of the losses *added up* over this many examples of this replica: Σ gᵣ / Σ nᵣ. Where replicas take part
    /// in each other's graphs, through collectives in the model, this is the form to go backward in: a replica's
    /// gradients then contain the others' losses, which weigh by their own examples.
    SumOver(usize),
    /// The plain sum of the gradients over the replicas, or the mean, ignoring numbers of examples. A replica without
    /// a gradient counts as zero. If each loss has already been divided by the number of examples on *all* replicas,
    /// the sum is right.
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
    /// The examples of this replica, where they count.
    pub(crate) fn examples(self) -> Option<usize> {
        match self {
            Weighting::MeanOver(examples) | Weighting::SumOver(examples) => Some(examples),
            Weighting::Replicas(_) => None,
        }
    }
}

/// The gradients of an optimizer's variables on one replica, dense or by row: those of a loss, or any others.
///
/// [`Optimizer::apply_gradients`] reduces them over the replicas and updates the variables.
///
/// ```
/// # use distribute::{IndexedSlices, optimizer::Gradients, prelude::*};
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
    /// The gradient of each variable that has one: checked and contiguous.
    all: Vec<Option<Gradient>>,
}

impl Gradients {
    /// None yet: for [`insert`](Gradients::insert), or to take part in a step without any.
    pub fn new<R>(optimizer: &Optimizer<R>) -> Self {
        Self::none(&optimizer.inner.parameters)
    }

    pub(crate) fn none(parameters: &Arc<Parameters>) -> Self {
        Self { all: vec![None; parameters.variables.len()], parameters: parameters.clone() }
    }

    /// Computes the gradients of a loss, which is a scalar, by [`backward`].
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the loss is not a scalar.
    /// - [`Error::Candle`]: backward fails.
    /// - [`Error::Collective`]: a collective in the graph fails.
    #[doc(alias = "tf.keras.optimizers.Optimizer.compute_gradients")]
    #[doc(alias = "tf.GradientTape.gradient")]
    pub fn of<R>(optimizer: &Optimizer<R>, loss: &Tensor) -> Result<Self> {
        Self::found(&optimizer.inner.parameters, loss)
    }

    pub(crate) fn found(parameters: &Arc<Parameters>, loss: &Tensor) -> Result<Self> {
        let _backward = tracing::trace_span!("backward").entered();
        require_scalar("Gradients::of", loss)?;
        let mut store = backward(loss)?;
        let parameters = parameters.clone();
        let of = |number| Ok(parameters.found(number, &mut store)?.map(Gradient::Dense));
        Ok(Self { all: (0..parameters.variables.len()).map(of).collect::<Result<_>>()?, parameters })
    }

    /// Takes the gradients of the optimizer's variables from a store: [`backward`]'s, or that of candle's own backward,
    /// some of whose gradients are wrong.
    ///
    /// # Errors
    /// The errors of [`insert`](Gradients::insert).
    pub fn from_store<R>(optimizer: &Optimizer<R>, store: &GradStore) -> Result<Self> {
        let mut gradients = Self::new(optimizer);
        for (index, (_, variable)) in optimizer.inner.parameters.variables.iter().enumerate() {
            for computed_with in gradients.parameters.clone().computed_with(index, variable) {
                if let Some(gradient) = store.get(computed_with) {
                    let found = gradients.parameters.check(index, gradient.clone().into())?;
                    let before = gradients.all[index].take();
                    gradients.all[index] = Some(match before {
                        Some(before) => before.plus(found, variable)?,
                        None => found,
                    });
                }
            }
        }
        Ok(gradients)
    }

    /// Sets the gradient of a variable, a tensor or [`IndexedSlices`], in place of the one it had.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown variable, another shape or dtype, or a row outside of the variable.
    pub fn insert(&mut self, variable: &str, gradient: impl Into<Gradient>) -> Result<()> {
        let index = self.parameters.position("Gradients::insert", variable)?;
        self.all[index] = Some(self.parameters.check(index, gradient.into())?);
        Ok(())
    }

    /// The gradient of a variable, if it has one.
    pub fn get(&self, variable: &str) -> Option<&Gradient> {
        self.iter().find(|(name, _)| *name == variable).map(|(_, gradient)| gradient)
    }

    /// All there are, with the names of their variables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Gradient)> {
        let names = self.parameters.variables.iter().map(|(name, _)| name.as_str());
        names.zip(&self.all).filter_map(|(name, gradient)| Some((name, gradient.as_ref()?)))
    }

    /// Adds others of the same optimizer to these: of another micro-batch, or another loss.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for those of another optimizer.
    pub fn add(&mut self, other: Gradients) -> Result<()> {
        self.parameters.require_same("Gradients::add", &other)?;
        for ((mine, other), (_, variable)) in
            self.all.iter_mut().zip(other.all).zip(&self.parameters.variables)
        {
            *mine = match (mine.take(), other) {
                (Some(mine), Some(other)) => Some(mine.plus(other, variable)?),
                (mine, other) => mine.or(other),
            };
        }
        Ok(())
    }

    /// Multiplies all of them.
    pub(crate) fn scale(&mut self, factor: f64) -> Result<()> {
        for gradient in self.all.iter_mut().flatten() {
            *gradient = match gradient {
                Gradient::Dense(tensor) => Gradient::Dense((&*tensor * factor)?),
                Gradient::Rows(rows) => Gradient::Rows(rows.divide(1. / factor)?),
            };
        }
        Ok(())
    }

    pub(crate) fn of_optimizer(self, parameters: &Parameters) -> Result<Vec<Option<Gradient>>> {
        parameters.require_same("apply_gradients", &self)?;
        Ok(self.all)
    }
}

impl Gradient {
    fn plus(self, other: Self, variable: &Var) -> Result<Self> {
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

    /// Converts it to the form of the reduction, on the host. Rows that occur several times are summed.
    pub(crate) fn on_host(self, variable: &Var) -> Result<ReplicaGradient> {
        fn merged<F: Number>(slices: &IndexedSlices, row_len: usize) -> Result<Rows> {
            let values = slices.values.as_slice::<F>().unwrap_or_default();
            let (rows, values) = merge_rows(slices.indices.as_slice().unwrap_or_default(), values, row_len)?;
            Ok(Rows::new(rows, F::vector(values)))
        }
        let row_len = row_len(variable);
        Ok(match (self, variable.dtype()) {
            (Gradient::Dense(tensor), _) => ReplicaGradient::Dense(Dense::Host(to_host(&tensor)?)),
            (Gradient::Rows(slices), DType::F32) => ReplicaGradient::Rows(merged::<f32>(&slices, row_len)?),
            (Gradient::Rows(slices), _) => ReplicaGradient::Rows(merged::<f64>(&slices, row_len)?),
        })
    }

    /// Converts it to the form of the update on devices, on the device of `copy`. Rows that occur several times are
    /// summed.
    pub(crate) fn on_device(self, copy: &Var) -> Result<ReplicaGradient> {
        match self {
            Gradient::Dense(tensor) => {
                Ok(ReplicaGradient::Dense(Dense::Device(to_device(&tensor, copy.device())?)))
            }
            rows => Ok(rows.on_host(copy)?.into_device(copy)?),
        }
    }

    /// Converts a gradient on the host to the public form.
    pub(crate) fn from_reduced(gradient: ReplicaGradient, variable: &Var) -> Result<Self> {
        let rows = match gradient {
            ReplicaGradient::Dense(dense) => return Ok(Self::Dense(dense.tensor(variable)?)),
            ReplicaGradient::Rows(rows) => rows,
        };
        let whole = variable.dims().to_vec();
        let mut shape = whole.clone();
        shape[0] = rows.rows.len();
        let values = match rows.values {
            RowValues::Host(Any::F32(values)) => HostTensor::new(values, shape)?,
            RowValues::Host(Any::F64(values)) => HostTensor::new(values, shape)?,
            RowValues::Device(_) => {
                return Err(Error::invalid("optimizer step", "rows of a gradient are on a device"));
            }
        };
        let indices = HostTensor::vector(rows.rows.into_iter().map(|row| row as i64).collect());
        Ok(Self::Rows(IndexedSlices::new(values, indices, Some(whole))?))
    }
}

/// The elements of a row: of everything but the first axis.
pub(crate) fn row_len(variable: &Var) -> usize {
    variable.dims().get(1..).map_or(0, |rest| rest.iter().product())
}

impl Parameters {
    /// Takes the gradient of a variable from the store, on the device where it was found: its own and those of its
    /// copies, added up.
    fn found(&self, number: usize, store: &mut GradStore) -> Result<Option<Tensor>> {
        let mut sum: Option<Tensor> = None;
        for variable in self.computed_with(number, &self.variables[number].1) {
            let Some(gradient) = store.remove(variable) else { continue };
            let gradient = gradient.detach().contiguous()?;
            sum = Some(match sum {
                Some(sum) => (to_device(&sum, gradient.device())? + gradient)?,
                None => gradient,
            });
        }
        Ok(sum)
    }

    /// A gradient that fits its variable: a contiguous tensor of its own without a graph, rows with the shape of the
    /// whole and int64 indices.
    pub(crate) fn check(&self, index: usize, gradient: Gradient) -> Result<Gradient> {
        let (name, variable) = &self.variables[index];
        let unfit = |what: String| {
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
                what: "gradients of one's own of a table of ids",
                advice: "train it by minimize, with a nn::DynamicEmbedding",
            });
        }
        match gradient {
            Gradient::Dense(tensor) => {
                if tensor.dims() != variable.dims() || tensor.dtype() != variable.dtype() {
                    return Err(unfit(format!("{:?}{:?}", tensor.dtype(), tensor.dims())));
                }
                // A copy: where users give a variable itself, the step would wait for ever to write what it reads.
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
                    return Err(unfit(rows.describe()));
                }
                // Again, since fields can be set by hand; now with the number of rows there are.
                let indices = rows.indices.cast(distribute_tensor::DType::I64)?;
                IndexedSlices::new(rows.values.clone(), rows.indices, Some(whole.clone()))
                    .map_err(|error| unfit(format!("not one of its rows: {error}")))?;
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
            "these are gradients of another optimizer's variables; make them with this one",
        ))
    }
}

/// Computes the gradients of a loss as candle's `Tensor::backward` does, but right ones of all of candle's operations.
/// [`Optimizer::minimize`] and [`Gradients::of`] call it.
///
/// candle 0.11's own backward gives wrong gradients of pooling, upsampling, scattering, convolutions of sequences and
/// ties of maxima, without an error; docs/from-candle.md has the table. The store has the gradients of variables alone.
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
/// - [`Error::Candle`]: an operation has no gradient.
/// - [`Error::Collective`]: a collective in the graph fails.
#[doc(alias = "tf.GradientTape.gradient")]
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    crate::backward::backward(loss).map_err(|error| raised(error.into()))
}

pub(crate) fn require_scalar(operation: &'static str, loss: &Tensor) -> Result<()> {
    match loss.rank() {
        0 => Ok(()),
        _ => {
            let reason = format!(
                "the loss has shape {:?}; give the mean over this replica's examples, a scalar",
                loss.dims()
            );
            Err(Error::invalid(operation, reason))
        }
    }
}
