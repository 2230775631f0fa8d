//! The operations available to code that runs once for each replica.

use super::expected::Expectations;
use super::layers::LayerState;
use super::{Mode, with_mode};
use crate::strategy::{CommunicationOptions, Strategy};
use distribute_base::internal::lock;
use distribute_base::{ContextKind, Error, Result};
use distribute_collective::threads::Member;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// One replica's view of a `run`: its id, and the operations in which all replicas participate.
///
/// All replicas have to call every such operation, the same number of times and in the same order. If they
/// don't, or if one fails or does not arrive before the strategy's timeout, all replicas get the same error. It
/// names the replicas, the calls and their lines. No replica hangs.
///
/// Only `run` creates a context:
///
/// ```compile_fail,E0624
/// # use distribute::prelude::*;
/// # let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let context = ReplicaContext::new(strategy.into(), 0, 1, None);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.ReplicaContext")]
#[derive(Clone)]
pub struct ReplicaContext(Arc<Inner>, Option<Arc<View>>);

/// The settings by which a view differs from its context, see [`ReplicaContext::with_options`].
struct View {
    options: CommunicationOptions,
    member: Member,
}

struct Inner {
    strategy: Strategy,
    member: Member,
    /// Counts the collectives of this replica in this run, so that gradients can name the call they belong to.
    calls: AtomicU64,
    /// The results whose gradients are collectives as well.
    expected: Mutex<Expectations>,
    layers: LayerState,
}

/// Returns the context of the default strategy's only replica.
pub fn default_context() -> &'static ReplicaContext {
    static CONTEXT: OnceLock<ReplicaContext> = OnceLock::new();
    CONTEXT.get_or_init(|| ReplicaContext::new(Strategy::of_default_context().clone(), Member::alone(0)))
}

impl ReplicaContext {
    pub(crate) fn new(strategy: Strategy, member: Member) -> Self {
        Self(
            Arc::new(Inner {
                strategy,
                member,
                calls: AtomicU64::new(0),
                expected: Mutex::default(),
                layers: LayerState::default(),
            }),
            None,
        )
    }

    /// Returns a view of this context whose calls communicate by `options`. Options left at their defaults keep
    /// their previous values. A timeout applies to each call, including gradients of collectives, `merge_call`
    /// and an optimizer's step.
    ///
    /// All replicas have to pass the same `bytes_per_pack` to the same call. Timeouts may differ; the first to
    /// expire ends the call for all.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the timeout is zero, or the
    ///   [`CommunicationImplementation`](crate::CommunicationImplementation) is not AUTO.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::CommunicationOptions;
    /// use std::time::Duration;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run((), |ctx, ()| {
    ///     let patient = CommunicationOptions { timeout: Some(Duration::from_secs(600)), ..Default::default() };
    ///     ctx.with_options(patient)?.all_reduce(ReduceOp::Sum, 1f32)
    /// })?;
    /// assert_eq!(sums.values(), [2., 2.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn with_options(&self, options: CommunicationOptions) -> Result<Self> {
        options.check("with_options")?;
        Ok(self.view(options.over(self.options())))
    }

    /// Returns a view of this context whose calls communicate by `options`, ignoring those of this one.
    pub(super) fn view(&self, options: CommunicationOptions) -> Self {
        let member = match options.timeout {
            Some(timeout) => self.0.member.with_timeout(timeout),
            None => self.0.member.clone(),
        };
        Self(self.0.clone(), Some(Arc::new(View { options, member })))
    }

    /// Returns the options of calls on this view.
    pub(super) fn options(&self) -> CommunicationOptions {
        match &self.1 {
            Some(view) => view.options,
            None => self.0.strategy.extended().communication_options(),
        }
    }

    pub(super) fn expected(&self) -> MutexGuard<'_, Expectations> {
        lock(&self.0.expected)
    }

    /// Whether this is the default strategy's context.
    pub(super) fn is_default(&self) -> bool {
        Arc::ptr_eq(&self.0, &default_context().0)
    }

    pub(super) fn layers(&self) -> &LayerState {
        &self.0.layers
    }

    /// Returns the number of the next collective of this replica in this run, from 0.
    #[doc(hidden)]
    pub fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed)
    }

    #[doc(hidden)]
    pub fn member(&self) -> &Member {
        match &self.1 {
            Some(view) => &view.member,
            None => &self.0.member,
        }
    }

    /// Returns the id of this replica among all that are in sync: 0 … `num_replicas_in_sync() - 1`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as i32))?;
    /// assert_eq!(ids.to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=int32, data=0>,
    ///   1: <Tensor: shape=(), dtype=int32, data=1>
    /// }");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.ReplicaContext.replica_id_in_sync_group")]
    pub fn replica_id_in_sync_group(&self) -> usize {
        self.0.member.replica()
    }

    /// Returns the id of this replica among this process's, from 0.
    #[doc(hidden)]
    pub fn local_replica(&self) -> usize {
        self.0.member.rank()
    }

    /// Returns the number of replicas of all workers together.
    #[doc(alias = "tf.distribute.ReplicaContext.num_replicas_in_sync")]
    pub fn num_replicas_in_sync(&self) -> usize {
        self.0.strategy.num_replicas_in_sync()
    }

    /// Returns the strategy that this replica belongs to.
    #[doc(alias = "tf.distribute.ReplicaContext.strategy")]
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// Returns the number of this `run` on its strategy, from 1.
    pub fn step(&self) -> u64 {
        self.0.member.step()
    }

    /// Returns the device that this replica runs on: one full name, such as
    /// `/job:localhost/replica:0/task:0/device:CPU:1`.
    ///
    /// # Errors
    /// - [`Error::StaleContext`], [`Error::WrongContext`]: this context is not current.
    #[doc(alias = "tf.distribute.ReplicaContext.devices")]
    pub fn devices(&self) -> Result<Vec<String>> {
        self.require_current("devices")?;
        Ok(vec![self.device()])
    }

    /// Returns candle's device for this replica, on which the closure should create tensors.
    ///
    /// # Errors
    /// - [`Error::Candle`]: candle cannot open the device.
    pub fn device_for_candle(&self) -> Result<candle_core::Device> {
        match self.0.strategy.extended().worker_devices().get(self.0.member.rank()) {
            Some(name) => name.to_candle(),
            None => Ok(candle_core::Device::Cpu),
        }
    }

    pub(crate) fn device(&self) -> String {
        let devices = self.0.strategy.extended().worker_devices();
        devices.get(self.0.member.rank()).map_or_else(|| "the current device".into(), ToString::to_string)
    }

    /// Returns an error unless this is the context of the closure that is running on this thread.
    #[doc(hidden)]
    pub fn require_current(&self, operation: &'static str) -> Result<()> {
        with_mode(|mode| {
            let current = match mode {
                Some(Mode::Replica(context)) => context,
                None => default_context(),
                Some(mode) => {
                    return Err(Error::WrongContext {
                        operation,
                        required: ContextKind::Replica,
                        found: mode.kind(),
                        advice: "call it inside of the closure given to run, on the context given there",
                    });
                }
            };
            if Arc::ptr_eq(&current.0, &self.0) {
                return Ok(());
            }
            let (replica, step) = (self.replica_id_in_sync_group(), self.0.member.step());
            // If no strategy is entered, none are mixed: the run is over, or this is a thread of the program.
            if mode.is_none() || current.strategy() == self.strategy() {
                return Err(Error::StaleContext { operation, replica, step });
            }
            let what = format!("the replica context that is used (replica {replica}, step {step})");
            Err(super::mixed(operation, Some(what), self.strategy()))
        })
    }
}

impl std::fmt::Debug for ReplicaContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ReplicaContext(replica {} of {}, step {}, {})",
            self.replica_id_in_sync_group(),
            self.num_replicas_in_sync(),
            self.0.member.step(),
            self.0.strategy
        )
    }
}
