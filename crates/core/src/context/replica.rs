//! The operations that are available to code that runs once per replica.

use super::expected::ExpectedGradients;
use super::layers::LayerState;
use super::{Mode, with_mode};
use crate::strategy::{CommunicationOptions, Strategy};
use distribute_base::internal::lock;
use distribute_base::{ContextKind, Error, Result};
use distribute_collective::threads::Member;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// A replica's view of a `run`: its id, and the operations in which all replicas participate.
///
/// All replicas must call the same operations in the same order. If they don't, or if a replica fails or does not
/// arrive before the strategy's timeout, all replicas get the same error, which names the replicas, the calls and the
/// source lines of the calls. No replica hangs.
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

/// The settings of a view that differ from its context's; see [`ReplicaContext::with_options`].
struct View {
    options: CommunicationOptions,
    member: Member,
}

struct Inner {
    strategy: Strategy,
    member: Member,
    /// The number of collectives that this replica has called in this run. A gradient's fingerprint identifies its call
    /// by this number.
    calls: AtomicU64,
    /// The results whose gradients are also collectives.
    expected: Mutex<ExpectedGradients>,
    layers: LayerState,
}

/// Returns the context of the default strategy's only replica.
pub fn default_context() -> &'static ReplicaContext {
    static CONTEXT: OnceLock<ReplicaContext> = OnceLock::new();
    CONTEXT.get_or_init(|| ReplicaContext::new(Strategy::default_strategy().clone(), Member::alone(0), None))
}

impl ReplicaContext {
    pub(crate) fn new(strategy: Strategy, member: Member, rows: Option<Range<usize>>) -> Self {
        Self(
            Arc::new(Inner {
                strategy,
                member,
                calls: AtomicU64::new(0),
                expected: Mutex::default(),
                layers: LayerState::new(rows),
            }),
            None,
        )
    }

    /// Returns a view of this context whose calls use `options`. Each option that is at its default is replaced by that
    /// of this context. The timeout applies to each call, including gradients of collectives, `merge_call` and an
    /// optimizer's step.
    ///
    /// All replicas must pass the same `bytes_per_pack` to the same call. Timeouts may differ. The call fails on all
    /// replicas when the first timeout expires.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the timeout is zero, or the
    ///   [`CommunicationImplementation`](crate::CommunicationImplementation) is not AUTO.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::strategy::CommunicationOptions;
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

    /// Returns a view of this context whose calls use only `options`, regardless of this context's options.
    pub(super) fn view(&self, options: CommunicationOptions) -> Self {
        let member = match options.timeout {
            Some(timeout) => self.0.member.with_timeout(timeout),
            None => self.0.member.clone(),
        };
        Self(self.0.clone(), Some(Arc::new(View { options, member })))
    }

    /// Returns the options that calls on this view use.
    pub(super) fn options(&self) -> CommunicationOptions {
        match &self.1 {
            Some(view) => view.options,
            None => self.0.strategy.extended().communication_options(),
        }
    }

    pub(super) fn expected(&self) -> MutexGuard<'_, ExpectedGradients> {
        lock(&self.0.expected)
    }

    /// Returns `true` if this is the default strategy's context.
    pub(super) fn is_default(&self) -> bool {
        Arc::ptr_eq(&self.0, &default_context().0)
    }

    pub(super) fn layers(&self) -> &LayerState {
        &self.0.layers
    }

    /// Returns the index of this replica's next collective in this run, from 0, and counts the call.
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

    /// Returns the id of this replica among all replicas in sync, from 0 to `num_replicas_in_sync() - 1`.
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

    /// Returns the id of this replica among the replicas of this process, from 0.
    #[doc(hidden)]
    pub fn local_replica(&self) -> usize {
        self.0.member.rank()
    }

    /// Returns the total number of replicas on all workers.
    #[doc(alias = "tf.distribute.ReplicaContext.num_replicas_in_sync")]
    pub fn num_replicas_in_sync(&self) -> usize {
        self.0.strategy.num_replicas_in_sync()
    }

    /// Returns the strategy that this replica belongs to.
    #[doc(alias = "tf.distribute.ReplicaContext.strategy")]
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// Returns the sequence number of this `run` among its strategy's steps, from 1; 0 in the default context.
    pub fn step(&self) -> u64 {
        self.0.member.step()
    }

    /// Returns the full name of the device that this replica runs on, such as
    /// `/job:localhost/replica:0/task:0/device:CPU:1`.
    ///
    /// # Errors
    /// - [`Error::StaleContext`], [`Error::WrongContext`], [`Error::MixedStrategies`]: this is not the context of the
    ///   closure that is running.
    #[doc(alias = "tf.distribute.ReplicaContext.devices")]
    #[doc(alias = "devices")]
    pub fn device(&self) -> Result<String> {
        self.require_current("device")?;
        let devices = self.0.strategy.extended().worker_devices();
        let name = devices.get(self.0.member.rank());
        Ok(name.map_or_else(|| "the current device".into(), ToString::to_string))
    }

    /// Returns the candle device of this replica. Create tensors inside the closure on this device.
    ///
    /// # Errors
    /// - [`Error::Device`]: candle cannot open the device.
    pub fn device_for_candle(&self) -> Result<candle_core::Device> {
        match self.0.strategy.extended().worker_devices().get(self.0.member.rank()) {
            Some(name) => name.to_candle(),
            None => Ok(candle_core::Device::Cpu),
        }
    }

    /// Returns an error unless this is the context of the closure that is running on this thread. The error names
    /// `operation`.
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
                        advice: "call it inside the closure passed to run, on the context passed to it",
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
