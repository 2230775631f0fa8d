//! Creating variables.

use super::about::about;
use super::access::VariableKind;
use super::model::Drawn;
use super::placement::{At, Placement, Policy, Purpose};
use super::rows;
use super::storage::Storage;
use super::variable::{Inner, Variable};
use crate::context::{Here, here};
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
    /// Whether one of this name that is there is the one.
    takes_known: bool,
}

impl NewVariable {
    pub(super) fn new(name: String, initial: Tree<Leaf>) -> Self {
        let (synchronization, aggregation) = Default::default();
        Self { name, initial, synchronization, aggregation, trainable: None, takes_known: false }
    }

    /// When the copies are made to agree.
    pub fn synchronization(mut self, synchronization: VariableSynchronization) -> Self {
        self.synchronization = synchronization;
        self
    }

    /// How what replicas write becomes one value.
    pub fn aggregation(mut self, aggregation: VariableAggregation) -> Self {
        self.aggregation = aggregation;
        self
    }

    /// Whether optimizers are meant to train it. By default those that are not ON_READ are.
    pub fn trainable(mut self, trainable: bool) -> Self {
        self.trainable = Some(trainable);
        self
    }

    /// Creates the variable, with the strategy that is current: in its scope, or in its `run`, where all replicas have
    /// to create the same and get the same variable. Where no strategy has been entered, it is an ordinary one.
    ///
    /// Over several workers it is a call of all of them, and worker 0's initial value is everybody's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an initial value that is not one tensor, synchronization NONE with a strategy
    /// that has replicas, and aggregation MEAN of what is no float; [`Error::Collective`] where replicas, or workers, don't
    /// create the same.
    #[track_caller]
    pub fn create(self) -> Result<Variable> {
        let at = Location::caller();
        match here() {
            Here::Default => self.create_on(Strategy::of_default_context(), None, at),
            Here::CrossReplica(strategy, colocated) => self.create_on(&strategy, colocated, at),
            Here::Update(context) => self.create_on(context.strategy(), None, at),
            Here::Replica(context) => {
                let Tree::Leaf(initial) = &self.initial else { return Err(self.one_tensor()) };
                context.merge(self.call(initial, at), CREATE, self, |strategy, replicas| {
                    // Replica 0's initial value is everybody's (VAR-5).
                    match replicas.into_iter().next() {
                        Some(first) => first.create_on(strategy, None, at),
                        None => Err(Error::invalid(CREATE, "there is no replica")),
                    }
                })
            }
        }
    }

    // PSV1-10
    /// The variable of this name that the current strategy has, as long as somebody keeps it, or a new one. In `run`, all replicas get the
    /// same. On parameter servers it is that of its name there, if all workers run the program by themselves.
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
    /// Those of [`create`](Self::create); [`Error::InvalidArgument`] where the variable that is there has another dtype or shape.
    #[doc(alias = "tf.compat.v1.get_variable")]
    #[track_caller]
    pub fn get_or_create(mut self) -> Result<Variable> {
        self.takes_known = true;
        self.create()
    }

    /// The variable of this name, if there is one and it is to be taken.
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

    /// What has to be equal on all replicas.
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

    /// Where the variable goes, and its initial value.
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

/// First values of a variable.
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

    /// A copy on each device.
    fn on_devices(&self, devices: Vec<DeviceName>) -> Result<Vec<Storage>> {
        let all = |leaf: &Leaf| devices.into_iter().map(|device| Storage::new(leaf, device)).collect();
        match self {
            First::Value(leaf) => all(leaf),
            First::Drawn(drawn) => all(&Leaf::Candle(drawn.values()?)),
        }
    }

    /// One on servers. Where candle computes with it, it is fetched at once, unless it is looked up by row.
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

/// A copy of a variable on servers.
pub(super) fn on_servers(strategy: &Strategy, name: &str, value: &Leaf, to: Where) -> Result<Storage> {
    First::Value(value).on_servers(strategy, name, to)
}

/// What a variable was asked to be.
struct Properties {
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    trainable: bool,
}

impl Variable {
    /// Creates one of a model's weights: one copy, which the replicas of this process share, or copies where
    /// [`colocate_vars_with`](Strategy::colocate_vars_with) says.
    pub(super) fn weights(strategy: &Strategy, drawn: &Drawn<'_>) -> Result<Variable> {
        // Only optimizers write, who know how.
        let (synchronization, aggregation) = (VariableSynchronization::OnWrite, VariableAggregation::None);
        let properties = Properties { synchronization, aggregation, trainable: true };
        let colocated = match here() {
            Here::CrossReplica(current, devices) if current == *strategy => devices,
            _ => None,
        };
        let placement = place(strategy, drawn.name, Purpose::Weights { colocated })?;
        Self::placed(strategy, drawn.name, First::Drawn(drawn), placement, properties)
    }

    /// Of a model's running statistics: a copy for each replica.
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
        // Replicas compute with the first copy of a model's weights; of what users make, each has a copy on its device.
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
