//! Creating variables.

use super::about::about;
use super::access::VariableKind;
use super::model::Drawn;
use super::placement::{At, Placement, Policy, Purpose};
use super::rows;
use super::storage::Storage;
use super::variable::{Inner, Variable};
use crate::context::{Mode, with_mode};
use crate::strategy::Strategy;
use candle_core::{Tensor, Var};
use distribute_base::{DeviceName, Error, Result, VariableAggregation, VariableSynchronization};
use distribute_cluster::{Fingerprint, Operation};
use distribute_ps_client::internal::{Dynamic, HostCache, Initial, RemoteVariable, Sharded, Where};
use distribute_tensor::{DType, Leaf, Tree};
use std::panic::Location;
use std::sync::Mutex;

const CREATE: &str = "creating a variable";

/// A variable that is about to be created. See [`Variable::builder`].
#[derive(Clone, Debug)]
#[must_use = "call create()"]
pub struct NewVariable {
    name: String,
    initial: Tree<Leaf>,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    trainable: Option<bool>,
    /// Whether an existing variable of this name is returned instead.
    takes_known: bool,
}

impl NewVariable {
    pub(super) fn new(name: String, initial: Tree<Leaf>) -> Self {
        let (synchronization, aggregation) = Default::default();
        Self { name, initial, synchronization, aggregation, trainable: None, takes_known: false }
    }

    /// Sets the time at which the copies are made equal.
    pub fn synchronization(mut self, synchronization: VariableSynchronization) -> Self {
        self.synchronization = synchronization;
        self
    }

    /// Sets the aggregation of the values that replicas write.
    pub fn aggregation(mut self, aggregation: VariableAggregation) -> Self {
        self.aggregation = aggregation;
        self
    }

    /// Sets whether optimizers are meant to train it. By default they train all variables that are not ON_READ.
    pub fn trainable(mut self, trainable: bool) -> Self {
        self.trainable = Some(trainable);
        self
    }

    /// Creates the variable with the current strategy: in its scope, or in its `run`, where all replicas have
    /// to create the same variable and get the same one. If no strategy has been entered, it is an ordinary
    /// variable.
    ///
    /// With several workers all of them make this call, and all get worker 0's initial value.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the initial value is not one tensor, synchronization is NONE with a
    ///   strategy that has replicas, or aggregation is MEAN and the dtype is no float.
    /// - [`Error::Collective`]: replicas, or workers, don't create the same variable.
    #[track_caller]
    pub fn create(self) -> Result<Variable> {
        let at = Location::caller();
        match with_mode(|mode| mode.cloned()) {
            None => self.create_on(Strategy::of_default_context(), None, at),
            Some(Mode::Replica(context)) => {
                let Tree::Leaf(initial) = &self.initial else { return Err(self.one_tensor()) };
                context.merge(self.call(initial, at), CREATE, self, |strategy, replicas| {
                    // All replicas use replica 0's initial value (VAR-5).
                    match replicas.into_iter().next() {
                        Some(first) => first.create_on(strategy, None, at),
                        None => Err(Error::invalid(CREATE, "there is no replica")),
                    }
                })
            }
            Some(mode) => self.create_on(mode.strategy(), mode.colocated(), at),
        }
    }

    // PSV1-10
    /// Returns the current strategy's variable of this name if any handle still exists, or creates it. In
    /// `run`, all replicas get the same one. On parameter servers it is the server's variable of this name, if
    /// each worker runs the program independently.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::Variable;
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let first = strategy.scope(|| Variable::builder("count", 1i64).get_or_create())?;
    /// let again = strategy.run((), |_ctx, ()| Variable::builder("count", 1i64).get_or_create())?;
    /// assert!(again.iter().all(|variable| *variable == first));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), and [`Error::InvalidArgument`] if the existing variable has
    /// another dtype or shape.
    #[doc(alias = "tf.compat.v1.get_variable")]
    #[track_caller]
    pub fn get_or_create(mut self) -> Result<Variable> {
        self.takes_known = true;
        self.create()
    }

    /// Returns the existing variable of this name, if the builder asks for it.
    fn known(&self, strategy: &Strategy) -> Result<Option<Variable>> {
        if !self.takes_known {
            return Ok(None);
        }
        let Some(found) = strategy.variable_named(&self.name) else { return Ok(None) };
        let Tree::Leaf(initial) = &self.initial else { return Err(self.one_tensor()) };
        if found.dims() == initial.dims() && Some(found.dtype()) == initial.dtype().ok() {
            return Ok(Some(found));
        }
        let reason = format!(
            "variable {} is there, of {}{:?}, and was asked for as {}; give another one another name",
            self.name,
            found.dtype(),
            found.dims(),
            initial.describe()
        );
        Err(Error::invalid(CREATE, reason))
    }

    /// Returns the fingerprint of the properties that have to be equal on all replicas.
    fn call(&self, initial: &Leaf, at: &'static Location<'static>) -> Fingerprint {
        let detail = format!(
            "{}{} {}, {}, {}{}",
            if self.takes_known { "known or new " } else { "" },
            self.name,
            initial.describe(),
            self.synchronization,
            self.aggregation,
            self.trainable.map(|trainable| format!(", trainable: {trainable}")).unwrap_or_default()
        );
        Fingerprint::new(Operation::CreateVariable, detail, at)
    }

    fn one_tensor(&self) -> Error {
        let reason = format!("the initial value of {} is not one tensor", self.name);
        Error::invalid(CREATE, reason)
    }

    fn create_on(
        self,
        strategy: &Strategy,
        colocated: Option<Vec<DeviceName>>,
        at: &'static Location<'static>,
    ) -> Result<Variable> {
        if let Some(known) = strategy.or_tell_workers(self.known(strategy))? {
            return Ok(known);
        }
        let (placement, initial) = strategy.or_tell_workers(self.placed(strategy, colocated))?;
        // VAR-5
        let of_first =
            strategy.of_first_worker(CREATE, || self.call(initial, at), std::slice::from_ref(initial))?;
        let of_first = of_first.and_then(|mut first| first.pop());
        let properties = Properties {
            synchronization: self.synchronization,
            aggregation: self.aggregation,
            trainable: self.trainable.unwrap_or(self.synchronization != VariableSynchronization::OnRead),
        };
        let first = First::Value(of_first.as_ref().unwrap_or(initial));
        Variable::placed(strategy, &self.name, first, placement, properties)
    }

    /// Returns the location of the variable, and its initial value.
    fn placed(&self, strategy: &Strategy, colocated: Option<Vec<DeviceName>>) -> Result<(Placement, &Leaf)> {
        let purpose = Purpose::Own { synchronization: self.synchronization, colocated };
        let placement = place(strategy, &self.name, purpose)?;
        let Tree::Leaf(initial) = &self.initial else { return Err(self.one_tensor()) };
        let dtype = initial.dtype().map_err(Error::tensor(CREATE))?;
        let mean = self.aggregation == VariableAggregation::Mean;
        if mean && placement.kind != VariableKind::Ordinary && dtype.mean() != Some(dtype) {
            let reason = format!(
                "{}: aggregation MEAN is for floats, the variable is {dtype}; use SUM or a float",
                self.name
            );
            return Err(Error::invalid(CREATE, reason));
        }
        Ok((placement, initial))
    }
}

fn place(strategy: &Strategy, name: &str, purpose: Purpose) -> Result<Placement> {
    let extended = strategy.extended();
    let policy = Policy {
        placement: extended.variable_placement(),
        replicas: &strategy.devices(),
        parameters: extended.parameter_devices().first().copied().unwrap_or(DeviceName::cpu(0)),
    };
    policy.place(purpose).map_err(|reason| Error::invalid(CREATE, format!("{name}: {reason}")))
}

/// The initial value of a variable, or its source.
enum First<'a> {
    Value(&'a Leaf),
    Drawn(&'a Drawn<'a>),
}

impl First<'_> {
    fn dims(&self) -> &[usize] {
        match self {
            First::Value(leaf) => leaf.dims(),
            First::Drawn(drawn) => drawn.shape.dims(),
        }
    }

    fn dtype(&self) -> Result<DType> {
        match self {
            First::Value(leaf) => leaf.dtype().map_err(Error::tensor(CREATE)),
            First::Drawn(drawn) => drawn.dtype(),
        }
    }

    /// Creates a copy on each device.
    fn on_devices(&self, devices: Vec<DeviceName>) -> Result<Vec<Storage>> {
        let all = |leaf: &Leaf| devices.into_iter().map(|device| Storage::new(leaf, device)).collect();
        match self {
            First::Value(leaf) => all(leaf),
            First::Drawn(drawn) => all(&Leaf::Candle(drawn.values()?)),
        }
    }

    /// Creates a copy on servers. If candle computes with it, it is fetched at once, unless it is looked up by
    /// row.
    fn on_servers(&self, strategy: &Strategy, name: &str, to: Where) -> Result<Storage> {
        let Some(servers) = strategy.extended().parameter_servers() else {
            return Err(Error::invalid(CREATE, format!("{name}: {strategy} has no parameter servers")));
        };
        if let (First::Drawn(drawn), Some(options)) = (self, rows::ids_are_asked_for()) {
            let row = self.dims().get(1..).unwrap_or_default();
            let initial = (drawn.initializer()?, options);
            let rows = Dynamic::create(servers, (name, row, self.dtype()?), initial, to)?;
            let row = Var::zeros(drawn.shape, drawn.candle_dtype, &candle_core::Device::Cpu)?;
            return Ok(Storage::on_servers(RemoteVariable::of_ids(rows, row)));
        }
        let (initial, computed_with) = match self {
            First::Value(leaf) => {
                let var = match leaf {
                    Leaf::Candle(tensor) => Some((HostCache::zeros(tensor.shape(), tensor.dtype())?, false)),
                    _ => None,
                };
                (Initial::Value(leaf.to_host().map_err(Error::tensor(CREATE))?), var)
            }
            First::Drawn(drawn) => {
                let by_row = rows::are_asked_for() && matches!(self.dtype()?, DType::F32 | DType::F64);
                let var = HostCache::zeros(drawn.shape, drawn.candle_dtype)?;
                (Initial::Drawn(drawn.initializer()?), Some((var, by_row)))
            }
        };
        let tables = Sharded::create(servers, (name, self.dims(), self.dtype()?), &initial, to)?;
        let cache = |(var, by_row)| servers.session().register(HostCache::new(tables.clone(), var, by_row));
        let cache = computed_with.map(cache);
        cache.iter().try_for_each(|cache| cache.refresh(CREATE))?;
        Ok(Storage::on_servers(RemoteVariable::new(tables, cache)))
    }
}

/// Creates a copy of a variable on servers.
pub(super) fn on_servers(strategy: &Strategy, name: &str, value: &Leaf, to: Where) -> Result<Storage> {
    First::Value(value).on_servers(strategy, name, to)
}

/// The requested properties of a variable.
struct Properties {
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    trainable: bool,
}

impl Variable {
    /// Creates one of a model's weights: one copy, which the replicas of this process share, or the copies that
    /// [`colocate_vars_with`](Strategy::colocate_vars_with) asks for.
    pub(super) fn weights(strategy: &Strategy, drawn: &Drawn<'_>) -> Result<Variable> {
        // Only optimizers write weights, and they do not need these rules.
        let (synchronization, aggregation) = (VariableSynchronization::OnWrite, VariableAggregation::None);
        let properties = Properties { synchronization, aggregation, trainable: true };
        let colocated = with_mode(|mode| mode.filter(|mode| mode.strategy() == strategy)?.colocated());
        let placement = place(strategy, drawn.name, Purpose::Weights { colocated })?;
        Self::placed(strategy, drawn.name, First::Drawn(drawn), placement, properties)
    }

    /// Creates one of a model's running statistics, with a copy for each replica.
    pub(super) fn statistics(strategy: &Strategy, name: &str, initial: &Tensor) -> Result<Variable> {
        let (synchronization, aggregation) = (VariableSynchronization::OnRead, VariableAggregation::Mean);
        let properties = Properties { synchronization, aggregation, trainable: false };
        let placement = place(strategy, name, Purpose::Statistics)?;
        Self::placed(strategy, name, First::Value(&Leaf::Candle(initial.clone())), placement, properties)
    }

    fn placed(
        strategy: &Strategy,
        name: &str,
        first: First<'_>,
        Placement { at, kind }: Placement,
        Properties { synchronization, aggregation, trainable }: Properties,
    ) -> Result<Variable> {
        let copies = match at {
            At::Devices(devices) => first.on_devices(devices),
            At::Servers { beside } => {
                let to = beside.map_or(Where::Anywhere, Where::Beside);
                first.on_servers(strategy, name, to).map(|one| vec![one])
            }
        };
        // All replicas compute with the first copy of a model's weights. A variable of the program has a copy
        // on each replica's device.
        let is_weight = matches!(first, First::Drawn(_));
        let copies = copies.and_then(|mut copies| {
            if is_weight && !copies.is_empty() {
                let first = copies.remove(0).on_devices_of(strategy)?;
                copies.insert(0, first);
            }
            Ok(copies)
        });
        Ok(Variable::of(Inner {
            id: strategy.next_variable(),
            all_copies: Mutex::new(()),
            name: name.to_string(),
            strategy: strategy.clone(),
            synchronization,
            aggregation,
            kind,
            is_weight,
            trainable,
            dtype: first.dtype()?,
            dims: first.dims().to_vec(),
            copies: copies.map_err(about(name))?,
        }))
    }
}
