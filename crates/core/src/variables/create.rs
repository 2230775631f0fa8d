//! [`VariableBuilder`]: creation of variables.

use super::error::with_name;
use super::model::ModelInit;
use super::rows;
use super::storage::Storage;
use super::variable::{Inner, Variable};
use crate::context::{Mode, with_mode};
use crate::strategy::Strategy;
use candle_core::{Tensor, Var};
use distribute_base::{DeviceName, Error, Result, VariableAggregation, VariableSynchronization};
use distribute_cluster::{Fingerprint, Operation};
use distribute_decisions::internal::{Placement, Policy, Purpose, StorageLocation, VariableKind};
use distribute_ps_client::internal::{
    Dynamic, HostCache, Initial, PlacementRequest, RemoteVariable, Sharded, StochasticRounding,
};
use distribute_tensor::{DType, Leaf, Tree};
use std::panic::Location;
use std::sync::Mutex;

const CREATE: &str = "creating a variable";

/// A variable that is about to be created. See [`Variable::builder`].
#[derive(Clone, Debug)]
#[must_use = "call create()"]
pub struct VariableBuilder {
    name: String,
    initial: Tree<Leaf>,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    not_trainable: bool,
    /// Whether to return an existing variable with the same name instead of creating one.
    reuse_existing: bool,
}

impl VariableBuilder {
    pub(super) fn new(name: String, initial: Tree<Leaf>) -> Self {
        let (synchronization, aggregation) = Default::default();
        Self { name, initial, synchronization, aggregation, not_trainable: false, reuse_existing: false }
    }

    /// Sets when the copies are synchronized.
    pub fn synchronization(mut self, synchronization: VariableSynchronization) -> Self {
        self.synchronization = synchronization;
        self
    }

    /// Sets how the values that replicas write are combined.
    pub fn aggregation(mut self, aggregation: VariableAggregation) -> Self {
        self.aggregation = aggregation;
        self
    }

    /// Declares that optimizers should not train the variable. This is the default for ON_READ variables.
    #[doc(alias = "trainable")]
    pub fn not_trainable(mut self) -> Self {
        self.not_trainable = true;
        self
    }

    /// Creates the variable for the current strategy: in its scope or in its `run`. In `run`, all replicas
    /// must create the same variable, and they get the same handle. If no strategy has been entered, creates
    /// an ordinary variable.
    ///
    /// With several workers, all must make this call. All variables get worker 0's initial value.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the initial value is not a single tensor; aggregation is MEAN and the dtype is not
    ///   floating-point; or synchronization is NONE and the variable is not ordinary.
    /// - [`Error::Collective`]: a replica or worker does not create the same variable.
    /// - [`Error::Server`]: a parameter server failed.
    /// - [`Error::Candle`]: a device has too little memory.
    #[track_caller]
    pub fn create(self) -> Result<Variable> {
        let at = Location::caller();
        match with_mode(|mode| mode.cloned()) {
            None => self.create_on(Strategy::default_strategy(), None, at),
            Some(Mode::Replica(context)) => {
                let Tree::Leaf(initial) = &self.initial else { return Err(self.not_one_tensor()) };
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
    /// Returns the current strategy's variable with this name if a handle to it still exists; otherwise creates it. In
    /// `run`, all replicas get the same variable. If each worker runs the program independently, returns the variable
    /// with this name on the parameter servers.
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
    /// Returns the errors of [`create`](Self::create), and [`Error::InvalidArgument`] if the existing variable has a
    /// different dtype or shape.
    #[doc(alias = "tf.compat.v1.get_variable")]
    #[track_caller]
    pub fn get_or_create(mut self) -> Result<Variable> {
        self.reuse_existing = true;
        self.create()
    }

    /// Returns the existing variable with this name, if the builder may reuse it.
    fn existing(&self, strategy: &Strategy) -> Result<Option<Variable>> {
        if !self.reuse_existing {
            return Ok(None);
        }
        let Some(found) = strategy.variable_named(&self.name) else { return Ok(None) };
        let Tree::Leaf(initial) = &self.initial else { return Err(self.not_one_tensor()) };
        if found.dims() == initial.dims() && Some(found.dtype()) == initial.dtype().ok() {
            return Ok(Some(found));
        }
        let reason = format!(
            "variable {} exists with {}{:?}, but was requested with {}; use a unique name",
            self.name,
            found.dtype(),
            found.dims(),
            initial.describe()
        );
        Err(Error::invalid(CREATE, reason))
    }

    /// Returns the fingerprint of the properties that must be equal on all replicas.
    fn call(&self, initial: &Leaf, at: &'static Location<'static>) -> Fingerprint {
        let detail = format!(
            "{}{} {}, {}, {}{}",
            if self.reuse_existing { "existing or new " } else { "" },
            self.name,
            initial.describe(),
            self.synchronization,
            self.aggregation,
            if self.not_trainable { ", not trainable" } else { "" }
        );
        Fingerprint::new(Operation::CreateVariable, detail, at)
    }

    fn not_one_tensor(&self) -> Error {
        let reason = format!("the initial value of {} is not one tensor", self.name);
        Error::invalid(CREATE, reason)
    }

    fn create_on(
        self,
        strategy: &Strategy,
        colocated: Option<Vec<DeviceName>>,
        at: &'static Location<'static>,
    ) -> Result<Variable> {
        if let Some(existing) = strategy.abort_peers_on_err(self.existing(strategy))? {
            return Ok(existing);
        }
        let (placement, initial) = strategy.abort_peers_on_err(self.placed(strategy, colocated))?;
        // VAR-5
        let of_first = strategy.broadcast_from_first(
            CREATE,
            || self.call(initial, at),
            std::slice::from_ref(initial),
        )?;
        let of_first = of_first.and_then(|mut first| first.pop());
        let properties = Properties {
            synchronization: self.synchronization,
            aggregation: self.aggregation,
            trainable: !self.not_trainable && self.synchronization != VariableSynchronization::OnRead,
            rounding: None,
        };
        let first = InitialValue::Value(of_first.as_ref().unwrap_or(initial));
        Variable::placed(strategy, &self.name, first, placement, properties)
    }

    /// Decides where the variable is stored, and returns this placement with the initial value.
    fn placed(&self, strategy: &Strategy, colocated: Option<Vec<DeviceName>>) -> Result<(Placement, &Leaf)> {
        let purpose = Purpose::Program { synchronization: self.synchronization, colocated };
        let placement = place(strategy, &self.name, purpose)?;
        let Tree::Leaf(initial) = &self.initial else { return Err(self.not_one_tensor()) };
        let dtype = initial.dtype().map_err(Error::tensor(CREATE))?;
        let mean = self.aggregation == VariableAggregation::Mean;
        if mean && placement.kind != VariableKind::Ordinary && dtype.mean() != Some(dtype) {
            let reason = format!(
                "{}: aggregation MEAN needs a float, but the variable is {dtype}; use SUM or a float",
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
        tables: extended.parameter_servers().and_then(|servers| servers.tables()),
        replicas: &strategy.possible_devices(),
        parameters: extended.parameter_devices().first().copied().unwrap_or(DeviceName::cpu(0)),
    };
    policy.place(purpose).map_err(|reason| Error::invalid(CREATE, format!("{name}: {reason}")))
}

// INV-88
/// Returns an error for an ON_READ variable if workers with logical replicas may be lost, or may get other replicas. A
/// lost worker would take its copies along, so the result of the training would depend on it. Aggregation SUM is
/// permitted, because such variables are counters of metrics.
fn require_restorable(
    strategy: &Strategy,
    name: &str,
    kind: VariableKind,
    aggregation: VariableAggregation,
) -> Result<()> {
    if !strategy.changes_shares() || kind != VariableKind::OnRead || aggregation == VariableAggregation::Sum {
        return Ok(());
    }
    let reason = format!(
        "{name} has a separate copy for each replica, as the running statistics of batch norm have, and a worker that is \
         lost would take its copies along, so that the result would depend on it: use layers without running statistics \
         and variables that are not ON_READ, or a fixed number of workers, or leave out logical_replicas"
    );
    Err(Error::invalid(CREATE, reason))
}

/// The initial value of a variable: the value itself, or a model's initializer.
enum InitialValue<'a> {
    Value(&'a Leaf),
    Model(&'a ModelInit<'a>),
}

impl InitialValue<'_> {
    fn dims(&self) -> &[usize] {
        match self {
            InitialValue::Value(leaf) => leaf.dims(),
            InitialValue::Model(model_init) => model_init.shape.dims(),
        }
    }

    fn dtype(&self) -> Result<DType> {
        match self {
            InitialValue::Value(leaf) => leaf.dtype().map_err(Error::tensor(CREATE)),
            InitialValue::Model(model_init) => model_init.dtype(),
        }
    }

    /// Creates one copy on each of `devices`.
    fn on_devices(&self, devices: Vec<DeviceName>) -> Result<Vec<Storage>> {
        let all = |leaf: &Leaf| devices.into_iter().map(|device| Storage::new(leaf, device)).collect();
        match self {
            InitialValue::Value(leaf) => all(leaf),
            InitialValue::Model(model_init) => all(&Leaf::Candle(model_init.values()?)),
        }
    }

    /// Creates the storage of the variable on parameter servers. If candle computes with the variable, also fetches the
    /// value immediately, unless the variable is looked up by row.
    /// With `rounding`, the values are stored in bf16.
    fn on_servers(
        &self,
        strategy: &Strategy,
        name: &str,
        to: PlacementRequest,
        rounding: Option<StochasticRounding>,
    ) -> Result<Storage> {
        let Some(servers) = strategy.extended().parameter_servers() else {
            return Err(Error::invalid(CREATE, format!("{name}: {strategy} has no parameter servers")));
        };
        let rows = self.dims().first().copied().unwrap_or(1);
        if let (InitialValue::Model(model_init), Some(options)) = (self, rows::requested_ids()) {
            let row = self.dims().get(1..).unwrap_or_default();
            let initial = (model_init.initializer()?, options);
            let to = servers.location(rows, None, to);
            let rows = Dynamic::create(servers, (name, row, self.dtype()?), initial, to, rounding)?;
            let row = Var::zeros(model_init.shape, model_init.candle_dtype, &candle_core::Device::Cpu)?;
            let row_cache = servers.row_cache(rows.tables(), rounding.is_some());
            let hot_rows = servers.hot_table(name, rows.tables());
            let remote = RemoteVariable::with_ids(rows, row).with_row_cache(row_cache);
            return Ok(Storage::on_servers(remote.with_hot_rows(hot_rows)));
        }
        servers.require_hot_rows(CREATE, name, rows)?;
        let (initial, computed_with) = match self {
            InitialValue::Value(leaf) => {
                let var = match leaf {
                    Leaf::Candle(tensor) => Some((HostCache::zeros(tensor.shape(), tensor.dtype())?, false)),
                    _ => None,
                };
                (Initial::Value(leaf.to_host().map_err(Error::tensor(CREATE))?), var)
            }
            InitialValue::Model(model_init) => {
                let by_row = rows::requested_bytes(0, self.dtype()?).is_some();
                let var = HostCache::zeros(model_init.shape, model_init.candle_dtype)?;
                (Initial::Initialized(model_init.initializer()?), Some((var, by_row)))
            }
        };
        let bytes = self.dims().iter().product::<usize>().saturating_mul(self.dtype()?.bytes().unwrap_or(16));
        let to = servers.location(rows, Some(bytes), to);
        let tables = Sharded::create(servers, (name, self.dims(), self.dtype()?), &initial, to, rounding)?;
        let cache = |(var, by_row)| servers.session().register(HostCache::new(tables.clone(), var, by_row));
        let cache = computed_with.map(cache);
        cache.iter().try_for_each(|cache| cache.refresh(CREATE))?;
        let row_cache = servers.row_cache(&tables, rounding.is_some());
        let hot_rows = servers.hot_table(name, &tables);
        let remote = RemoteVariable::new(tables, cache).with_row_cache(row_cache);
        Ok(Storage::on_servers(remote.with_hot_rows(hot_rows)))
    }
}

/// Creates the storage of a new variable on parameter servers, initialized with `value`.
pub(super) fn on_servers(
    strategy: &Strategy,
    name: &str,
    value: &Leaf,
    to: PlacementRequest,
) -> Result<Storage> {
    InitialValue::Value(value).on_servers(strategy, name, to, None)
}

/// The properties that a variable is created with.
struct Properties {
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    trainable: bool,
    /// The rounding of values that are stored in bf16.
    rounding: Option<StochasticRounding>,
}

impl Variable {
    /// Creates one of a model's weights: as a single copy that the replicas of this process share, as the copies that
    /// [`colocate_vars_with`](Strategy::colocate_vars_with) requests, or on parameter servers.
    pub(super) fn weights(strategy: &Strategy, model_init: &ModelInit<'_>) -> Result<Variable> {
        // Only optimizers write weights, and they do not need these rules.
        let (synchronization, aggregation) = (VariableSynchronization::OnWrite, VariableAggregation::None);
        let colocated = with_mode(|mode| mode.filter(|mode| mode.strategy() == strategy)?.colocated());
        let table = rows::requested_bytes(model_init.shape.elem_count(), model_init.dtype()?);
        let rounded =
            table.filter(|_| colocated.is_none() && model_init.candle_dtype == candle_core::DType::F32);
        let rounding =
            rounded.and_then(|bytes| strategy.extended().row_format(bytes).rounding(model_init.name));
        let properties = Properties { synchronization, aggregation, trainable: true, rounding };
        let placement = place(strategy, model_init.name, Purpose::Weights { colocated, table })?;
        Self::placed(strategy, model_init.name, InitialValue::Model(model_init), placement, properties)
    }

    /// Creates one of a model's running statistics, with one copy per replica.
    pub(super) fn statistics(strategy: &Strategy, name: &str, initial: &Tensor) -> Result<Variable> {
        let (synchronization, aggregation) = (VariableSynchronization::OnRead, VariableAggregation::Mean);
        let properties = Properties { synchronization, aggregation, trainable: false, rounding: None };
        let placement = place(strategy, name, Purpose::Statistics)?;
        Self::placed(
            strategy,
            name,
            InitialValue::Value(&Leaf::Candle(initial.clone())),
            placement,
            properties,
        )
    }

    fn placed(
        strategy: &Strategy,
        name: &str,
        first: InitialValue<'_>,
        Placement { at, kind }: Placement,
        Properties { synchronization, aggregation, trainable, rounding }: Properties,
    ) -> Result<Variable> {
        require_restorable(strategy, name, kind, aggregation)?;
        let copies = match at {
            StorageLocation::Devices(devices) => first.on_devices(devices),
            StorageLocation::Servers { next_to } => {
                let to = next_to.map_or(PlacementRequest::Anywhere, PlacementRequest::NextTo);
                first.on_servers(strategy, name, to, rounding).map(|one| vec![one])
            }
        };
        // All replicas compute with the first copy of a model's weights. A variable of the program has a copy
        // on each replica's device.
        let is_weight = matches!(first, InitialValue::Model(_));
        let copies = copies.and_then(|mut copies| {
            if is_weight && !copies.is_empty() {
                let first = copies.remove(0).on_devices_of(strategy)?.rounded(strategy, rounding)?;
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
            copies: copies.map_err(with_name(name))?,
        }))
    }
}
