//! A model's variables: created once, by name, shared by the replicas of one memory.
//!
//! | file | what it is |
//! |---|---|
//! | `running`, `norms` | the running statistics among them, and the layers that don't train theirs |
//! | `builder`, `init` | candle's `VarBuilder` over them, and their initial values |
//! | `again` | building a model again |
//! | `files` | safetensors, and the checksum |
//! | `same` | checks that all workers have the same |
//! | `state` | all of them as a component of a checkpoint |

mod again;
mod builder;
mod files;
mod init;
mod norms;
mod running;
mod same;
mod state;

use super::about::about;
use super::{Variable, rows};
use crate::context::require_outside_of_run;
use crate::strategy::Strategy;
pub use again::again;
use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_log::heard;
use distribute_tensor::Leaf;
pub(super) use init::Drawn;
pub use norms::Evaluated;
use running::Running;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// The variables of one model, by name.
///
/// A variable is mirrored: the replicas of one memory share one copy, and only optimizers write it, for all
/// replicas at once; [`variable`](Variables::variable) returns it as a [`Variable`]. The running statistics of
/// batch-norm (variables whose last name is `running_mean` or `running_var`) are different: each replica writes
/// a separate copy, and a read from outside returns the mean over replicas (synchronization ON_READ,
/// aggregation MEAN).
///
/// A clone is another handle of the same variables.
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
    kind: Kind,
    /// The replicas that have asked for it while their model was built.
    asked: BTreeSet<usize>,
}

#[derive(Clone)]
enum Kind {
    /// ON_WRITE: one copy, which all replicas share.
    Mirrored(Variable),
    /// ON_READ, MEAN: a copy for each replica.
    Running(Running),
}

impl Variables {
    #[doc(hidden)]
    pub fn new(strategy: &Strategy, seed: u64) -> Self {
        Self(Arc::new(Store { strategy: strategy.clone(), seed, entries: Mutex::default() }))
    }

    /// Returns the names of all variables, sorted.
    pub fn names(&self) -> Vec<String> {
        self.entries().keys().cloned().collect()
    }

    /// Returns the total number of elements of all variables. Tables of ids, whose rows are created and
    /// evicted, are not counted.
    pub fn elements(&self) -> usize {
        self.entries().values().map(|entry| entry.kind.elements()).sum()
    }

    /// Returns a copy of the value of a variable, which later steps do not change. For running statistics it is
    /// the mean over the replicas, and all workers have to make this call.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the name is unknown. The error lists the known names.
    /// - [`Error::Collective`]: not all workers make this call for running statistics.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.find("get", name)?.read()
    }

    /// Sets a variable on all replicas of this worker. With several workers each has to set the same value.
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`Error::InvalidArgument`]: the name is unknown, or the value has another shape or dtype.
    /// - [`Error::WrongContext`]: called inside `run`, other than in `merge_call`.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<()> {
        require_outside_of_run("Variables::set", WRITE)?;
        let kind = self.find("set", name)?;
        kind.require_fit("set", name, value, "the value")?;
        match kind {
            Kind::Mirrored(variable) => {
                let set_all =
                    || (0..variable.copy_count()).try_for_each(|copy| variable.copy(copy)?.set(value));
                variable.writing(set_all).map_err(about(name))?;
                variable.strategy().count_write();
            }
            Kind::Running(running) => running.set(value).map_err(about(name))?,
        }
        Ok(())
    }

    /// Returns a variable for reads and writes by the rules of [`Variable`], for example in an update function.
    ///
    /// Running statistics that are read in this way are the mean over all replicas. It includes replicas that
    /// have seen no rows; [`get`](Variables::get) leaves these out.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the name is unknown. The error lists the known names.
    pub fn variable(&self, name: &str) -> Result<Variable> {
        Ok(match self.find("variable", name)? {
            Kind::Mirrored(variable) => variable,
            Kind::Running(running) => running.variable().clone(),
        })
    }

    /// Returns the variables that optimizers train, by name: all but running statistics. They are candle's,
    /// which all replicas of one memory share.
    ///
    /// A write changes the value for all replicas without any check. Candle's optimizers must therefore step
    /// outside `run`. Inside, one would use the gradients of a single replica, and step once for each replica;
    /// use an `Optimizer` there.
    ///
    /// # Errors
    /// - [`Error::WrongContext`]: called inside `run`, other than in `merge_call`.
    /// - [`Error::NotSupported`]: variables are on parameter servers, where candle's are copies that the next
    ///   step fetches again; or the model was created inside
    ///   [`colocate_vars_with`](Strategy::colocate_vars_with) with copies on several devices.
    pub fn trainable(&self) -> Result<Vec<(String, Var)>> {
        const OPERATION: &str = "Variables::trainable";
        if self.0.strategy.extended().parameter_servers().is_some() {
            return Err(Error::NotSupported {
                operation: OPERATION,
                strategy: self.0.strategy.extended().kind(),
                what: "writing variables through candle, since they are on servers",
                advice: "train them by one of distribute's optimizers, and write them with set",
            });
        }
        require_outside_of_run(
            OPERATION,
            "replicas share the variables: train them by one of distribute's optimizers, made outside of run, read them with \
             get, and write them between runs",
        )?;
        let of = |(name, variable): (String, Variable)| {
            if variable.has_followers() {
                return Err(Error::NotSupported {
                    operation: OPERATION,
                    strategy: self.0.strategy.extended().kind(),
                    what: "writing through candle the variables of a model that colocate_vars_with has given several copies",
                    advice: "train them by one of distribute's optimizers, and write them with set",
                });
            }
            // Reads and writes through the candle variable are not tracked.
            variable.device_copies().into_iter().try_for_each(|copies| copies.unwatched())?;
            Ok((name, variable.var(0)?.clone()))
        };
        self.trained().into_iter().map(of).collect()
    }

    /// Returns the variables that optimizers train, by name.
    #[doc(hidden)]
    pub fn trained(&self) -> Vec<(String, Variable)> {
        let entries = self.entries();
        let mirrored = entries.iter().filter_map(|(name, entry)| match &entry.kind {
            Kind::Mirrored(variable) => Some((name.clone(), variable.clone())),
            Kind::Running(_) => None,
        });
        mirrored.collect()
    }

    /// Returns the variables that only local replica `replica` writes: its running statistics.
    pub(crate) fn own_variables(&self, replica: usize) -> Vec<Var> {
        let of_replica = |entry: &Entry| match &entry.kind {
            Kind::Mirrored(_) => None,
            Kind::Running(running) => running.variable().var(replica).ok().cloned(),
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
        let backend = builder::OfReplica { variables: self.clone(), replica };
        Ok(VarBuilder::from_backend(Box::new(backend), DType::F32, device))
    }

    pub(crate) fn snapshot_builder(&self) -> Result<VarBuilder<'static>> {
        let tensors = self.snapshot()?.into_iter().collect();
        Ok(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))
    }

    /// Returns copies of all variables, by name.
    #[track_caller]
    pub(crate) fn snapshot(&self) -> Result<BTreeMap<String, Tensor>> {
        let kinds: Vec<_> =
            self.entries().iter().map(|(name, entry)| (name.clone(), entry.kind.clone())).collect();
        let mut values = BTreeMap::new();
        for (name, kind) in kinds {
            values.insert(name, kind.read()?);
        }
        Ok(values)
    }

    // RUN-9, RUN-10
    /// Returns an error if a later replica asked for more or fewer variables than replica 0 created.
    pub(crate) fn require_same_names(&self, replica: usize) -> Result<()> {
        let entries = self.entries();
        let not_asked_by = |replica: usize| -> Vec<String> {
            entries
                .iter()
                .filter(|(_, e)| !e.asked.contains(&replica))
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

    /// Returns the variable for one replica. Creates it on the first request.
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
            let drawn = Drawn { name, shape, candle_dtype: dtype, init, seed: self.0.seed };
            let strategy = &self.0.strategy;
            let kind = if is_running_statistic(name) {
                Kind::Running(Running::new(strategy, name, &drawn.values().map_err(about(name))?)?)
            } else {
                Kind::Mirrored(Variable::weights(strategy, &drawn)?)
            };
            entries.insert(name.to_string(), Entry { kind, asked: BTreeSet::new() });
        }
        let Some(entry) = entries.get_mut(name) else { return Err(unknown("replicate", name, &entries)) };
        let again = !entry.asked.insert(replica);
        let variable = match &entry.kind {
            Kind::Mirrored(variable) => variable.var(0)?,
            Kind::Running(running) => running.variable().var(replica)?,
        };
        if variable.shape() != shape || variable.dtype() != dtype {
            let advice = if again {
                "two layers of the model have this path: give each a path of its own, vb.pp(\"…\")"
            } else {
                "build the same model on every replica"
            };
            let reason = format!(
                "variable {name} was created with shape {:?} and dtype {:?}, and is asked for with {:?} and {dtype:?}; \
                 {advice}",
                variable.dims(),
                variable.dtype(),
                shape.dims()
            );
            return Err(Error::invalid("replicate", reason));
        }
        let mut computed_with = variable;
        if let Kind::Mirrored(weights) = &entry.kind {
            let on_device = self.table_on_device(weights, replica);
            rows::asked(weights, replica, on_device.is_some())?;
            if let Some(copy) = on_device {
                computed_with = copy;
            } else if !rows::are_asked_for() {
                computed_with =
                    weights.of_replica(replica).map_err(|error| self.not_copied(weights, replica, &error))?;
            } else if let Some(copies) = weights.device_copies() {
                // Rows are looked up in CPU memory, and only these rows are copied to a device.
                copies.read_directly()?;
            }
        }
        if again && replica == 0 {
            tracing::debug!("two layers of the model share variable {name}: both asked for this path");
        }
        Ok(computed_with.as_tensor().clone())
    }

    /// Returns the error that a replica's device has no copy of a variable.
    fn not_copied(&self, variable: &Variable, replica: usize, error: &Error) -> Error {
        let device = self.0.strategy.devices().get(replica).map(ToString::to_string).unwrap_or_default();
        let error = error.to_string();
        let why = if variable.dims().contains(&0) {
            "a GPU gives no memory for no elements; leave the variable out"
        } else {
            error.lines().next().unwrap_or_default()
        };
        let (name, dtype, dims) = (variable.name(), variable.dtype(), variable.dims());
        Error::Device {
            name: device,
            reason: format!("variable {name}, {dtype}{dims:?}, cannot be copied there: {why}"),
        }
    }

    /// Returns the copy of a table on a replica's device, if rows are looked up there. That is so if no other
    /// process needs the table, no replica computes in CPU memory, and the device has memory for it.
    fn table_on_device<'v>(&self, weights: &'v Variable, replica: usize) -> Option<&'v Var> {
        let is_table = rows::are_asked_for() && rows::ids_are_asked_for().is_none();
        // candle's kernels look rows up by 32-bit indices.
        let is_small = weights.dims().iter().product::<usize>() <= u32::MAX as usize;
        if !is_table
            || !self.0.strategy.keeps_tables_on_devices()
            || weights.device_copies().is_none()
            || !is_small
        {
            return None;
        }
        match weights.of_replica(replica) {
            Ok(copy) => Some(copy),
            Err(error) => {
                heard(|| {
                    tracing::warn!(
                        "table {} stays in the memory of the CPU, and only its rows go to the device of local replica {replica}: {error}",
                        weights.name()
                    )
                });
                None
            }
        }
    }

    /// Whether a replica has asked for a variable. Later replicas take the same path through their model's code
    /// as the first, which finds no variable yet.
    fn has_asked(&self, replica: usize, name: &str) -> bool {
        self.entries().get(name).is_some_and(|entry| entry.asked.contains(&replica))
    }

    fn find(&self, operation: &'static str, name: &str) -> Result<Kind> {
        let entries = self.entries();
        entries.get(name).map(|entry| entry.kind.clone()).ok_or_else(|| unknown(operation, name, &entries))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        lock(&self.0.entries)
    }
}

impl Kind {
    /// Checks that a value fits: shape and dtype of all components are the same.
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
            Kind::Mirrored(variable) if variable.is_dynamic() => 0,
            kind => kind.any().map_or(0, |var| var.elem_count()),
        }
    }

    /// Returns any copy, for shape and dtype.
    fn any(&self) -> Result<&Var> {
        match self {
            Kind::Mirrored(variable) => variable.var(0),
            Kind::Running(running) => running.variable().var(0),
        }
    }

    /// Returns a copy, because optimizers write variables in place.
    #[track_caller]
    fn read(&self) -> Result<Tensor> {
        match self {
            Kind::Mirrored(variable) => {
                variable.strategy().await_updates()?;
                match variable.copy(0)?.read()? {
                    Leaf::Candle(value) => Ok(value),
                    other => Ok(other.to_host()?.to_candle(&Device::Cpu)?),
                }
            }
            Kind::Running(running) => running.mean(),
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

/// The advice for a write inside `run`.
const WRITE: &str =
    "replicas share the variables: write them between runs, or once for all of them in ctx.merge_call";

/// Whether a variable has the name of running statistics of candle's batch-norm, which sets them in forward, on
/// each replica.
fn is_running_statistic(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("running_mean" | "running_var"))
}

/// Returns the error that a replica asked for other variables than replica 0.
fn other_variables(replica: usize, missing: &[String], extra: &[String]) -> Error {
    Error::invalid(
        "replicate",
        format!(
            "replica {replica} did not ask for the variables {missing:?} that replica 0 has, and asked for {extra:?} \
             that it has not; build the same model on every replica"
        ),
    )
}

fn unknown(operation: &'static str, name: &str, entries: &BTreeMap<String, Entry>) -> Error {
    let names: Vec<_> = entries.keys().take(20).collect();
    Error::invalid(
        operation,
        format!("no variable is named {name:?}; the {} there are: {names:?}", entries.len()),
    )
}
