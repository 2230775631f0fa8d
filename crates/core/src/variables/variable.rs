//! A variable: a value that replicas share, or of which each replica has a copy.

use super::create::VariableBuilder;
use super::storage::Storage;
use crate::context::current_kind;
use crate::strategy::Strategy;
use candle_core::Var;
use distribute_base::internal::DeviceCopies;
use distribute_base::{ContextKind, DeviceName, Error, Result, VariableAggregation, VariableSynchronization};
use distribute_decisions::internal::VariableKind;
use distribute_ps_client::internal::{PlacementRequest, RemoteVariable, Sharded, StochasticRounding};
use distribute_tensor::{DType, Leaf, Nest};
use distribute_values::Distributed;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

/// A value that replicas share, or of which each replica has a copy. Reads and writes follow the rules in
/// TensorFlow's documentation.
///
/// A variable belongs to the strategy in whose [`scope`](Strategy::scope) it was created. The strategy
/// decides the number of copies and their devices. The effect of an operation depends on the context in which
/// it is called:
///
/// | | in [`run`](Strategy::run) | in a scope, a merge function or outside | in [`update`](Strategy::update) |
/// |---|---|---|---|
/// | ON_WRITE, read | this replica's copy | any copy, because all are equal | the updated copy |
/// | ON_WRITE, write | all replicas must call it; the aggregate is written to all copies | every copy | the updated copy |
/// | ON_READ, read | this replica's copy | the aggregate of all copies | the updated copy |
/// | ON_READ, write | this replica's copy | every copy; with SUM only `assign`, which divides the value | the updated copy |
///
/// An access that these rules do not allow returns
/// [`Error::VariableAccess`](distribute_base::Error::VariableAccess) with advice, and writes nothing. A clone
/// is another handle to the same variable.
///
/// With several workers, the rules apply to the replicas of all workers. A write outside `run` changes only this
/// worker's copies, so write the same value on all workers. All workers must make a read that combines copies.
///
/// On parameter servers there is one value for all replicas of all workers, partitioned into
/// [shards](Variable::shards). The servers execute the operations of several workers in the order in which they arrive.
/// With a single replica, nothing needs to be aggregated, and every write is allowed.
///
/// The value is a candle tensor, a [`HostTensor`](distribute_tensor::HostTensor) of any dtype, or a plain
/// number.
///
/// ```
/// use distribute::{prelude::*, variables::{VariableAggregation, VariableSynchronization}};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let seen = strategy.scope(|| {
///     Variable::builder("seen", 0i64)
///         .synchronization(VariableSynchronization::OnRead)
///         .aggregation(VariableAggregation::Sum)
///         .create()
/// })?;
/// strategy.run((), |ctx, ()| seen.assign_add(10 + ctx.replica_id_in_sync_group() as i64))?;
/// assert_eq!(seen.read::<i64>()?, 21);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.Variable")]
#[doc(alias = "MirroredVariable")]
#[doc(alias = "SyncOnReadVariable")]
#[doc(alias = "AggregatingVariable")]
#[derive(Clone)]
pub struct Variable(pub(super) Arc<Inner>);

pub(crate) struct Inner {
    /// The sequence number of the variable in its strategy. It distinguishes variables with the same name.
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) strategy: Strategy,
    pub(super) synchronization: VariableSynchronization,
    pub(super) aggregation: VariableAggregation,
    pub(super) kind: VariableKind,
    /// Whether this is a weight of a model. Replicas compute with the first copy and optimizers write it. The other
    /// copies are updated from it.
    pub(super) is_weight: bool,
    pub(super) trainable: bool,
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
    /// One copy per local replica, or a single copy that they share.
    pub(super) copies: Vec<Storage>,
    /// A lock that is held while all copies are written, or read as one value.
    pub(super) all_copies: Mutex<()>,
}

impl Variable {
    /// Creates a variable for the current strategy, with synchronization AUTO and aggregation NONE.
    ///
    /// # Errors
    /// Returns the errors of [`VariableBuilder::create`].
    #[track_caller]
    pub fn new<N: Nest>(name: impl Into<String>, initial: N) -> Result<Self> {
        Self::builder(name, initial).create()
    }

    /// Returns a builder for a variable with the given name. All copies get the initial value `initial`.
    pub fn builder<N: Nest>(name: impl Into<String>, initial: N) -> VariableBuilder {
        VariableBuilder::new(name.into(), initial.into_tree())
    }

    /// Returns the name. Names need not be unique.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the size of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.0.dims
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the strategy that the variable belongs to.
    #[doc(alias = "distribute_strategy")]
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// Returns the synchronization that was requested for the copies.
    pub fn synchronization(&self) -> VariableSynchronization {
        self.0.synchronization
    }

    /// Returns the way in which values that replicas write, or the copies of an ON_READ variable, are combined.
    pub fn aggregation(&self) -> VariableAggregation {
        self.0.aggregation
    }

    /// Returns `true` if optimizers should train the variable.
    pub fn is_trainable(&self) -> bool {
        self.0.trainable
    }

    /// Returns the device of each copy. A [sharded](Variable::shards) variable has one copy, on the device of its last
    /// shard.
    pub fn devices(&self) -> Vec<DeviceName> {
        self.0.copies.iter().map(|copy| copy.device).collect()
    }

    /// Returns the name of each copy: `w`, `w/replica_1`, …
    pub fn copy_names(&self) -> Vec<String> {
        let name = |copy| match copy {
            0 => self.0.name.clone(),
            _ => format!("{}/replica_{copy}", self.0.name),
        };
        (0..self.0.copies.len()).map(name).collect()
    }

    /// Returns the values of the copies, in the order of replicas, or a single value if all replicas share one copy.
    ///
    /// # Errors
    /// - [`Error::Tensor`](distribute_base::Error::Tensor): the value is not of type `N`.
    /// - [`Error::NotSupported`](distribute_base::Error::NotSupported): the variable [is
    ///   dynamic](Variable::is_dynamic).
    /// - [`Error::Server`](distribute_base::Error::Server): a parameter server failed.
    pub fn copies<N: Nest>(&self) -> Result<Vec<N>> {
        self.0.copies.iter().map(|copy| super::read::typed(copy.read()?)).collect()
    }

    /// Returns `true` if all copies in this process are bit-identical. This is the case for ON_WRITE variables, unless
    /// a closure of [`update`](Strategy::update) writes a different value to each copy; for others it depends on the
    /// program.
    ///
    /// # Errors
    /// Returns the errors of reading the copies.
    pub fn copies_agree(&self) -> Result<bool> {
        let copies: Vec<Leaf> = self.copies()?;
        let host = copies.iter().map(|copy| Ok(copy.to_host()?)).collect::<Result<Vec<_>>>()?;
        Ok(host.windows(2).all(|pair| pair[0].same_bits(&pair[1])))
    }

    /// Creates an independent variable with the same name, values, strategy and shards.
    ///
    /// # Errors
    /// - [`Error::WrongContext`]: called inside `run`, where each replica would get a separate variable.
    /// - [`Error::NotSupported`]: the variable [is dynamic](Variable::is_dynamic).
    /// - [`Error::Candle`]: there is not enough memory.
    /// - [`Error::Server`]: a parameter server failed.
    #[doc(alias = "__deepcopy__")]
    pub fn deep_copy(&self) -> Result<Variable> {
        if current_kind() == ContextKind::Replica {
            return Err(Error::WrongContext {
                operation: "deep_copy",
                required: ContextKind::CrossReplica,
                found: ContextKind::Replica,
                advice: "copy it before run",
            });
        }
        self.strategy().await_updates()?;
        let copy = |copy: &Storage| match copy.remote() {
            Some(remote) => {
                let beside =
                    || copy.device.server.map_or(PlacementRequest::Anywhere, PlacementRequest::NextTo);
                let to = remote.tables().partition().map_or_else(beside, PlacementRequest::PartitionedAs);
                super::create::on_servers(&self.0.strategy, self.name(), &copy.read()?, to)
            }
            None => Storage::new(&copy.read()?, copy.device),
        };
        let inner = &*self.0;
        Ok(Self::of(Inner {
            id: inner.strategy.next_variable(),
            name: inner.name.clone(),
            strategy: inner.strategy.clone(),
            all_copies: Mutex::new(()),
            copies: inner.copies.iter().map(copy).collect::<Result<_>>()?,
            dims: inner.dims.clone(),
            ..*inner
        }))
    }

    pub(super) fn of(inner: Inner) -> Self {
        let variable = Self(Arc::new(inner));
        variable.0.strategy.register(&variable);
        variable
    }

    /// Returns the variable on parameter servers, if it is stored there.
    #[doc(hidden)]
    pub fn remote(&self) -> Option<&Arc<RemoteVariable>> {
        self.0.copies.first().and_then(Storage::remote)
    }

    pub(super) fn require_remote(&self, operation: &'static str) -> Result<&Arc<RemoteVariable>> {
        let nowhere =
            || Error::invalid(operation, format!("variable {} is not on parameter servers", self.name()));
        self.remote().ok_or_else(nowhere)
    }

    /// Makes this and all later steps fetch the complete value, if the variable is on parameter servers. Also refreshes
    /// the copy that candle computes with, unless a step is running.
    pub(super) fn load(&self, operation: &'static str) -> Result<()> {
        match (self.strategy().session(), self.remote().and_then(|remote| remote.cache())) {
            (Some(session), Some(cache)) => session.load(operation, cache),
            _ => Ok(()),
        }
    }

    /// Creates a variable with the same strategy and properties that stores its rows in different tables on the same
    /// servers: those of `parts`.
    pub(super) fn with_tables(
        &self,
        rows: Sharded,
        name: String,
        parts: Vec<Arc<RemoteVariable>>,
    ) -> Result<Self> {
        let inner = &*self.0;
        let (dims, strategy) = (rows.dims().to_vec(), inner.strategy.clone());
        let remote = RemoteVariable::new(rows, None).with_parts(parts);
        let (id, copies) = (strategy.next_variable(), vec![Storage::on_servers(remote)]);
        Ok(Self::of(Inner { id, name, strategy, all_copies: Mutex::new(()), copies, dims, ..*inner }))
    }

    /// Returns the candle variables of the copies. Every copy has one if the variable was created from a
    /// candle tensor.
    #[doc(hidden)]
    pub fn vars(&self) -> impl Iterator<Item = &Var> {
        self.0.copies.iter().filter_map(Storage::var)
    }

    /// Returns the candle variable of a copy.
    pub(super) fn var(&self, copy: usize) -> Result<&Var> {
        self.candle(self.copy(copy)?)
    }

    /// Returns the candle variable with which a local replica computes. Call this only for weights of a model.
    pub(super) fn replica_var(&self, replica: usize) -> Result<&Var> {
        match self.device_copies() {
            Some(copies) => copies.replica_var(replica),
            None => self.var(0),
        }
    }

    /// Returns the rounding by which an optimizer rounds updated values to bf16. Returns `None` if values are not
    /// stored in bf16, or if they are on servers, which round them.
    #[doc(hidden)]
    pub fn rounding(&self) -> Option<StochasticRounding> {
        self.0.copies.first().and_then(Storage::rounding)
    }

    /// Returns the copies for replicas whose devices have separate memory, if there are any.
    #[doc(hidden)]
    pub fn device_copies(&self) -> Option<&Arc<DeviceCopies>> {
        self.0.copies.first().and_then(Storage::device_copies)
    }

    pub(super) fn candle<'a>(&self, copy: &'a Storage) -> Result<&'a Var> {
        copy.var().ok_or_else(|| {
            let reason = format!("variable {} is no candle tensor; create it from one", self.name());
            Error::invalid("variables", reason)
        })
    }

    /// Returns `true` if optimizers write only the first copy and the other copies are updated from it.
    #[doc(hidden)]
    pub fn has_followers(&self) -> bool {
        self.0.is_weight && self.0.copies.len() > 1
    }

    // INV-20
    /// Copies the value of the first copy, which an optimizer has written, to all other copies.
    ///
    /// # Errors
    /// Returns candle's error if a value cannot be copied.
    #[doc(hidden)]
    pub fn copy_to_followers(&self) -> Result<()> {
        let Some((first, others)) = self.0.copies.split_first() else { return Ok(()) };
        let _all = self.all_copies();
        let value = self.candle(first)?;
        first.sync_to_host()?;
        others.iter().try_for_each(|copy| copy.set(value.as_tensor()))
    }

    pub(crate) fn downgrade(&self) -> WeakVariable {
        WeakVariable(Arc::downgrade(&self.0))
    }

    /// Returns `true` if each replica writes its own copy.
    pub(crate) fn has_own_copies(&self) -> bool {
        self.0.kind == VariableKind::OnRead
    }

    /// Returns `true` if the value must be equal on all workers.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.0.kind == VariableKind::OnWrite
    }

    /// Returns the sequence number of the variable in its strategy, in the order of creation.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn copy_count(&self) -> usize {
        self.0.copies.len()
    }
}

/// A handle that does not keep the variable alive.
pub(crate) struct WeakVariable(Weak<Inner>);

impl WeakVariable {
    pub(crate) fn upgrade(&self) -> Option<Variable> {
        self.0.upgrade().map(Variable)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for WeakVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_alive() { "a variable" } else { "a dropped variable" })
    }
}

/// Passes the variable itself to each replica. The context determines the effect of reads and writes.
impl<'a> Distributed for &'a Variable {
    type Local = &'a Variable;
    fn split(self, replicas: usize) -> Result<Vec<&'a Variable>> {
        Ok(vec![self; replicas])
    }
}

/// Acts like a reference to the variable.
impl Distributed for Variable {
    type Local = Variable;
    fn split(self, replicas: usize) -> Result<Vec<Variable>> {
        Ok(vec![self; replicas])
    }
}

/// Two handles are equal if they refer to the same variable.
impl PartialEq for Variable {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Variable {}

/// Displays the copies by replica, in the format of TensorFlow's documentation:
///
/// ```text
/// Variable w:{
///   0: <Tensor: shape=(), dtype=float32, data=1.0>,
///   1: <Tensor: shape=(), dtype=float32, data=1.0>
/// }
/// ```
impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Variable {}:{{", self.0.name)?;
        for (i, copy) in self.0.copies.iter().enumerate() {
            let end = if i + 1 == self.0.copies.len() { "" } else { "," };
            match copy.read() {
                Ok(value) => writeln!(f, "  {i}: {value}{end}")?,
                Err(error) => writeln!(f, "  {i}: {error}{end}")?,
            }
        }
        f.write_str("}")
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        write!(
            f,
            "Variable({}: {}{:?}, {}, {}, {} copies)",
            inner.name,
            inner.dtype,
            inner.dims,
            inner.synchronization,
            inner.aggregation,
            inner.copies.len()
        )
    }
}
