//! The variables of a model. They are created once, by name. Replicas that use the same memory share them.
//!
//! | file | contents |
//! |---|---|
//! | `running`, `norms` | running statistics; the batch-norm layers whose statistics have not changed |
//! | `builder`, `init` | the candle `VarBuilder` that creates the variables; their initial values |
//! | `rebuild` | building a model again |
//! | `files` | safetensors files, and the checksum of all variables |
//! | `compare` | checks that all workers have the same variables |
//! | `state` | the variables as a component of a checkpoint |

mod builder;
mod compare;
mod files;
mod init;
mod norms;
mod rebuild;
mod running;
mod state;

use super::error::with_name;
use super::{Variable, rows};
use crate::context::require_outside_of_run;
use crate::strategy::Strategy;
use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_log::warn_or_stderr;
use distribute_tensor::Leaf;
pub(super) use init::ModelInit;
pub use norms::UnchangedNorm;
pub use rebuild::rebuild;
use running::Running;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// The variables of a model, by name.
///
/// Most variables are mirrored: replicas that use the same memory share one copy, and only optimizers write it, for all
/// replicas at once. [`variable`](Variables::variable) returns one as a [`Variable`]. The exceptions are running
/// statistics of batch norm, which are the variables whose path ends with `running_mean` or `running_var`. Each replica
/// writes its own copy of them, and a read outside `run` returns the mean over the replicas (synchronization ON_READ,
/// aggregation MEAN).
///
/// A clone is another handle to the same variables.
#[doc(alias = "tf.Variable")]
#[doc(alias = "MirroredVariable")]
#[derive(Clone)]
pub struct Variables(Arc<Store>);

struct Store {
    strategy: Strategy,
    seed: u64,
    entries: Mutex<BTreeMap<String, Entry>>,
}

struct Entry {
    kind: ModelVariable,
    /// The replicas whose model requested the variable while it was being built.
    requested_by: BTreeSet<usize>,
}

#[derive(Clone)]
enum ModelVariable {
    /// An ON_WRITE variable with one copy, which all replicas share, unless `colocate_vars_with` requests several
    /// copies.
    Mirrored(Variable),
    /// An ON_READ variable with aggregation MEAN. Each replica has its own copy.
    Running(Running),
}

impl Variables {
    #[doc(hidden)]
    pub fn new(strategy: &Strategy, seed: u64) -> Self {
        Self(Arc::new(Store { strategy: strategy.clone(), seed, entries: Mutex::default() }))
    }

    /// Returns the names of all variables in sorted order.
    pub fn names(&self) -> Vec<String> {
        self.entries().keys().cloned().collect()
    }

    /// Returns the total number of elements of all variables. Dynamic embeddings are not counted, because their rows
    /// are created and evicted during training.
    pub fn elements(&self) -> usize {
        self.entries().values().map(|entry| entry.kind.elements()).sum()
    }

    /// Returns a copy of a variable's value, which later steps do not change. For running statistics, returns
    /// the mean over the replicas; all workers must make this call.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there is no variable with this name. The error lists the existing names.
    /// - [`Error::Collective`]: a worker does not make this call for running statistics.
    /// - [`Error::NotSupported`]: the variable is a dynamic embedding.
    /// - [`Error::Server`]: a parameter server failed.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.find("get", name)?.read()
    }

    /// Sets a variable on all replicas of this worker. With several workers, each worker must set the same value.
    ///
    /// # Errors
    /// Nothing has been changed if an error is returned, unless a device or a parameter server failed.
    /// - [`Error::InvalidArgument`]: there is no variable with this name, or the value has a different shape or dtype.
    /// - [`Error::WrongContext`]: called inside `run` but outside `merge_call`.
    /// - [`Error::NotSupported`]: the variable is a dynamic embedding.
    /// - [`Error::Server`]: a parameter server failed.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<()> {
        require_outside_of_run("Variables::set", WRITE)?;
        let kind = self.find("set", name)?;
        kind.require_fit("set", name, value, "the value")?;
        match kind {
            ModelVariable::Mirrored(variable) => {
                let set_all =
                    || (0..variable.copy_count()).try_for_each(|copy| variable.copy(copy)?.set(value));
                let what = variable.describe_set(value).map_err(with_name(name))?;
                variable.writing_as(&what, set_all).map_err(with_name(name))?;
                variable.strategy().record_write();
                variable.strategy().record_equal(&variable);
            }
            ModelVariable::Running(running) => running.set(value).map_err(with_name(name))?,
        }
        Ok(())
    }

    /// Returns a handle that reads and writes a variable by the rules of [`Variable`], for example in an update
    /// function.
    ///
    /// If running statistics are read through this handle, the result is the mean over all replicas, including replicas
    /// that have processed no rows. [`get`](Variables::get) skips such replicas.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there is no variable with this name. The error lists the existing names.
    pub fn variable(&self, name: &str) -> Result<Variable> {
        Ok(match self.find("variable", name)? {
            ModelVariable::Mirrored(variable) => variable,
            ModelVariable::Running(running) => running.variable().clone(),
        })
    }

    /// Returns the variables that optimizers train, by name. These are all variables except running statistics. Each is
    /// a candle variable that replicas in the same memory share.
    ///
    /// A write changes the value for all replicas, without any check. Candle's optimizers must therefore step
    /// outside `run`. Inside, they would use the gradients of a single replica, and step once per replica;
    /// use an `Optimizer` there.
    ///
    /// # Errors
    /// - [`Error::WrongContext`]: called inside `run`, but not in `merge_call`.
    /// - [`Error::NotSupported`]: the variables are on parameter servers, so candle's variables are copies that the
    ///   next step fetches again; or the model was created inside [`colocate_vars_with`](Strategy::colocate_vars_with),
    ///   with copies on several devices; or a mirrored table is stored in bf16.
    pub fn trainable(&self) -> Result<Vec<(String, Var)>> {
        const OPERATION: &str = "Variables::trainable";
        let trained = self.trained();
        if trained.iter().any(|(_, variable)| variable.remote().is_some()) {
            return Err(Error::NotSupported {
                operation: OPERATION,
                strategy: self.0.strategy.extended().kind(),
                what: "writing through candle variables that are on servers",
                advice: "train them with one of distribute's optimizers, and write them with set",
            });
        }
        require_outside_of_run(
            OPERATION,
            "replicas share the variables: train them with one of distribute's optimizers, created outside run, read \
             them with get, and write them between runs",
        )?;
        let of = |(name, variable): (String, Variable)| {
            if variable.rounding().is_some() {
                return Err(Error::NotSupported {
                    operation: OPERATION,
                    strategy: self.0.strategy.extended().kind(),
                    what: "writing tables through candle that are stored in bf16",
                    advice: "train them with one of distribute's optimizers, and write them with set",
                });
            }
            if variable.has_followers() {
                return Err(Error::NotSupported {
                    operation: OPERATION,
                    strategy: self.0.strategy.extended().kind(),
                    what: "writing through candle the variables of a model that colocate_vars_with has given several copies",
                    advice: "train them with one of distribute's optimizers, and write them with set",
                });
            }
            // Reads and writes through the candle variable are not tracked.
            variable.device_copies().into_iter().try_for_each(|copies| copies.disable_tracking())?;
            Ok((name, variable.var(0)?.clone()))
        };
        trained.into_iter().map(of).collect()
    }

    /// Returns the variables that optimizers train, with their names.
    #[doc(hidden)]
    pub fn trained(&self) -> Vec<(String, Variable)> {
        let entries = self.entries();
        let mirrored = entries.iter().filter_map(|(name, entry)| match &entry.kind {
            ModelVariable::Mirrored(variable) => Some((name.clone(), variable.clone())),
            ModelVariable::Running(_) => None,
        });
        mirrored.collect()
    }

    /// Returns the running statistics of local replica `replica`, which only this replica writes.
    pub(crate) fn own_variables(&self, replica: usize) -> Vec<Var> {
        let of_replica = |entry: &Entry| match &entry.kind {
            ModelVariable::Mirrored(_) => None,
            ModelVariable::Running(running) => running.variable().var(replica).ok().cloned(),
        };
        self.entries().values().filter_map(of_replica).collect()
    }

    /// Returns the strategy whose replicas share the variables.
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    #[doc(hidden)]
    pub fn builder(&self, replica: usize) -> Result<VarBuilder<'static>> {
        let device = match self.0.strategy.extended().worker_devices().get(replica) {
            Some(name) => name.to_candle()?,
            None => Device::Cpu,
        };
        let backend = builder::ReplicaBackend { variables: self.clone(), replica };
        Ok(VarBuilder::from_backend(Box::new(backend), DType::F32, device))
    }

    pub(crate) fn snapshot_builder(&self) -> Result<VarBuilder<'static>> {
        let tensors = self.snapshot(&|_| true)?.into_iter().collect();
        Ok(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))
    }

    /// Returns copies of the values of the variables that `names` selects, by variable name.
    #[track_caller]
    pub(crate) fn snapshot(&self, names: &dyn Fn(&str) -> bool) -> Result<BTreeMap<String, Tensor>> {
        let kinds: Vec<_> =
            self.entries().iter().map(|(name, entry)| (name.clone(), entry.kind.clone())).collect();
        // Not under the lock, because this is code of users.
        let kinds: Vec<_> = kinds.into_iter().filter(|(name, _)| names(name)).collect();
        let mut values = BTreeMap::new();
        for (name, kind) in kinds {
            values.insert(name, kind.read()?);
        }
        Ok(values)
    }

    // RUN-9, RUN-10
    /// Returns an error if `replica` requested more or fewer variables than replica 0.
    pub(crate) fn require_same_names(&self, replica: usize) -> Result<()> {
        let entries = self.entries();
        let not_asked_by = |replica: usize| -> Vec<String> {
            entries
                .iter()
                .filter(|(_, e)| !e.requested_by.contains(&replica))
                .map(|(name, _)| name.clone())
                .collect()
        };
        let (missing, extra) = (not_asked_by(replica), not_asked_by(0));
        if missing.is_empty() && extra.is_empty() {
            Ok(())
        } else {
            Err(other_variables(replica, &missing, &extra))
        }
    }

    /// Returns the tensor of a variable for one replica. Creates the variable on the first request.
    fn get_or_create(
        &self,
        replica: usize,
        name: &str,
        shape: &Shape,
        init: &Init,
        dtype: DType,
    ) -> Result<Tensor> {
        let mut entries = self.entries();
        if !entries.contains_key(name) {
            let model_init = ModelInit { name, shape, candle_dtype: dtype, init, seed: self.0.seed };
            let strategy = &self.0.strategy;
            let kind = if is_running_statistic(name) {
                ModelVariable::Running(Running::new(
                    strategy,
                    name,
                    &model_init.values().map_err(with_name(name))?,
                )?)
            } else {
                ModelVariable::Mirrored(Variable::weights(strategy, &model_init)?)
            };
            entries.insert(name.to_string(), Entry { kind, requested_by: BTreeSet::new() });
        }
        let Some(entry) = entries.get_mut(name) else { return Err(unknown("replicate", name, &entries)) };
        let is_shared = !entry.requested_by.insert(replica);
        let variable = match &entry.kind {
            ModelVariable::Mirrored(variable) => variable.var(0)?,
            ModelVariable::Running(running) => running.variable().var(replica)?,
        };
        if variable.shape() != shape || variable.dtype() != dtype {
            let advice = if is_shared {
                "two layers of the model have this path: give each a separate path, vb.pp(\"…\")"
            } else {
                "build the same model on every replica"
            };
            let reason = format!(
                "variable {name} was created with shape {:?} and dtype {:?}, but is requested with {:?} and {dtype:?}; \
                 {advice}",
                variable.dims(),
                variable.dtype(),
                shape.dims()
            );
            return Err(Error::invalid("replicate", reason));
        }
        let mut computed_with = variable;
        if let ModelVariable::Mirrored(weights) = &entry.kind {
            let on_device = self.table_on_device(weights, replica);
            rows::record_request(weights, replica, on_device.is_some())?;
            if let Some(copy) = on_device {
                computed_with = copy;
            } else if !rows::rows_are_requested() {
                computed_with = weights
                    .replica_var(replica)
                    .map_err(|error| self.copy_error(weights, replica, &error))?;
            } else if let Some(copies) = weights.device_copies() {
                // Rows are looked up in CPU memory, and only these rows are copied to a device.
                copies.disable_read_tracking()?;
            }
        }
        if is_shared && replica == 0 {
            tracing::debug!("two layers of the model share variable {name}: both requested this path");
        }
        Ok(computed_with.as_tensor().clone())
    }

    /// Returns the error for a variable that could not be copied to a replica's device.
    fn copy_error(&self, variable: &Variable, replica: usize, error: &Error) -> Error {
        let device = self.0.strategy.devices().get(replica).map(ToString::to_string).unwrap_or_default();
        let error = error.to_string();
        let why = if variable.dims().contains(&0) {
            "a GPU allocates no empty memory; leave the variable out"
        } else {
            error.lines().next().unwrap_or_default()
        };
        let (name, dtype, dims) = (variable.name(), variable.dtype(), variable.dims());
        Error::Device {
            name: device,
            reason: format!("variable {name}, {dtype}{dims:?}, cannot be copied there: {why}"),
        }
    }

    /// Returns the copy of a table on a replica's device, if rows are looked up there. This requires that no other
    /// process uses the table, that no replica computes in CPU memory, and that 32-bit indices suffice. If the device
    /// has too little memory, logs a warning and returns `None`.
    fn table_on_device<'v>(&self, weights: &'v Variable, replica: usize) -> Option<&'v Var> {
        let is_table = rows::rows_are_requested() && rows::requested_ids().is_none();
        // candle's kernels look rows up by 32-bit indices.
        let is_small = weights.dims().iter().product::<usize>() <= u32::MAX as usize;
        if !is_table
            || !self.0.strategy.keeps_tables_on_devices()
            || weights.device_copies().is_none()
            || !is_small
        {
            return None;
        }
        match weights.replica_var(replica) {
            Ok(copy) => Some(copy),
            Err(error) => {
                warn_or_stderr(|| {
                    tracing::warn!(
                        "table {} stays in the memory of the CPU, and only its rows are copied to the device of local \
                         replica {replica}: {error}",
                        weights.name()
                    )
                });
                None
            }
        }
    }

    /// Returns `true` if a replica has already requested a variable. A later replica thus takes the same path through
    /// the model's code as the first replica, for which no variable existed yet.
    fn has_requested(&self, replica: usize, name: &str) -> bool {
        self.entries().get(name).is_some_and(|entry| entry.requested_by.contains(&replica))
    }

    fn find(&self, operation: &'static str, name: &str) -> Result<ModelVariable> {
        let entries = self.entries();
        entries.get(name).map(|entry| entry.kind.clone()).ok_or_else(|| unknown(operation, name, &entries))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        lock(&self.0.entries)
    }
}

impl ModelVariable {
    /// Checks that a value has the shape and dtype of the variable.
    fn require_fit(&self, operation: &'static str, name: &str, value: &Tensor, from: &str) -> Result<()> {
        let variable = self.any()?;
        if variable.shape() == value.shape() && variable.dtype() == value.dtype() {
            return Ok(());
        }
        Err(Error::invalid(
            operation,
            format!(
                "variable {name} is {:?}{:?}, {from} {:?}{:?}",
                variable.dtype(),
                variable.dims(),
                value.dtype(),
                value.dims()
            ),
        ))
    }

    fn elements(&self) -> usize {
        match self {
            ModelVariable::Mirrored(variable) if variable.is_dynamic() => 0,
            kind => kind.any().map_or(0, |var| var.elem_count()),
        }
    }

    /// Returns one of the copies, to inspect its shape and dtype.
    fn any(&self) -> Result<&Var> {
        match self {
            ModelVariable::Mirrored(variable) => variable.var(0),
            ModelVariable::Running(running) => running.variable().var(0),
        }
    }

    /// Returns a copy of the value, because optimizers write variables in place.
    #[track_caller]
    fn read(&self) -> Result<Tensor> {
        match self {
            ModelVariable::Mirrored(variable) => {
                variable.strategy().await_updates()?;
                match variable.copy(0)?.read()? {
                    Leaf::Candle(value) => Ok(value),
                    other => Ok(other.to_host()?.to_candle(&Device::Cpu)?),
                }
            }
            ModelVariable::Running(running) => running.mean(),
        }
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // One after the other, because both take the lock.
        let (count, elements) = (self.names().len(), self.elements());
        write!(f, "Variables({count} variables, {elements} elements)")
    }
}

/// The advice in errors about a write inside `run`.
const WRITE: &str =
    "replicas share the variables: write them between runs, or once for all of them in ctx.merge_call";

/// Returns `true` if a variable has the name of a running statistic. candle's batch norm writes such variables during
/// forward, on each replica.
fn is_running_statistic(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("running_mean" | "running_var"))
}

/// Returns the error for a replica that requested different variables than replica 0.
fn other_variables(replica: usize, missing: &[String], extra: &[String]) -> Error {
    Error::invalid(
        "replicate",
        format!(
            "replica {replica} did not request the variables {missing:?} that replica 0 has, and requested {extra:?} \
             that it does not have; build the same model on every replica"
        ),
    )
}

fn unknown(operation: &'static str, name: &str, entries: &BTreeMap<String, Entry>) -> Error {
    let names: Vec<_> = entries.keys().take(20).collect();
    Error::invalid(
        operation,
        format!("no variable is named {name:?}; the {} variables are: {names:?}", entries.len()),
    )
}
