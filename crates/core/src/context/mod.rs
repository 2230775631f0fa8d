//! The context of running code: a replica context, the cross-replica context, or neither.
//!
//! Each thread has a stack of modes; queries look at the top of the stack. Only guards of this crate push and
//! pop modes, so the stack always unwinds in order.
//!
//! | module | contents |
//! |---|---|
//! | `replica`, `update` | [`ReplicaContext`]; [`UpdateContext`]: the copy of a variable that is being updated |
//! | `collectives`, `combine` | the collectives of replicas; reducing their leaves |
//! | `describe` | the description of a call's values in its fingerprint |
//! | `gradient`, `expected` | gradients of collectives in candle's graph; participation of replicas whose loss has weight 0 |
//! | `workers` | calls between workers that are made once for all local replicas |
//! | `layers` | the state of a replica that layers use |

// - **INV-6** A thread's stack of contexts is restored when a scope, run or merge function ends in any way. Tests:
//   `core/src/context/mod.rs`.

mod collectives;
mod combine;
pub(crate) mod describe;
mod expected;
mod gradient;
mod layers;
mod replica;
mod update;
mod workers;

pub use distribute_base::ContextKind;
pub use gradient::to_candle_error;
pub use gradient::unwrap_candle_error;
#[doc(alias = "tf.distribute.ReplicaContext")]
pub use replica::ReplicaContext;
pub use replica::default_context;
pub use update::UpdateContext;

use crate::strategy::Strategy;
use distribute_base::{DeviceName, Error, Result};
use distribute_collective::threads::Member;
use std::cell::RefCell;

/// Returns the kind of context that this thread is in.
pub fn current_kind() -> ContextKind {
    with_mode(|mode| mode.map_or(ContextKind::Default, Mode::kind))
}

/// A context that a thread has entered. A thread that has not entered any is in the default context.
#[derive(Clone)]
pub enum Mode {
    /// The cross-replica context of a strategy.
    CrossReplica(Strategy),
    /// The cross-replica context inside a merge function, with the context of this process's replica 0.
    Merge(ReplicaContext),
    /// The cross-replica context, with the devices on which new variables are created.
    Colocated(Strategy, Vec<DeviceName>),
    /// The context in which one copy of a variable is updated.
    Update(UpdateContext),
    /// The context of a replica.
    Replica(ReplicaContext),
}

thread_local! {
    static STACK: RefCell<Vec<Mode>> = const { RefCell::new(Vec::new()) };
    /// The strategy that `set_strategy` set on this thread, if any. It is current while the stack is empty.
    static GLOBAL: RefCell<Option<Mode>> = const { RefCell::new(None) };
}

impl Mode {
    pub(crate) fn strategy(&self) -> &Strategy {
        match self {
            Mode::CrossReplica(strategy) | Mode::Colocated(strategy, _) => strategy,
            Mode::Update(context) => context.strategy(),
            Mode::Replica(context) | Mode::Merge(context) => context.strategy(),
        }
    }

    pub(crate) fn kind(&self) -> ContextKind {
        match self {
            Mode::CrossReplica(_) | Mode::Merge(_) | Mode::Colocated(..) => ContextKind::CrossReplica,
            Mode::Update(_) => ContextKind::Update,
            Mode::Replica(_) => ContextKind::Replica,
        }
    }

    /// Returns the devices on which new variables are created, if they were set.
    pub(crate) fn colocated(&self) -> Option<Vec<DeviceName>> {
        match self {
            Mode::Colocated(_, devices) => Some(devices.clone()),
            _ => None,
        }
    }

    /// Returns `true` if code in this mode does not run as a replica.
    fn is_cross_replica(&self) -> bool {
        !matches!(self, Mode::Replica(_))
    }
}

/// Calls `body` with the current mode of this thread: the mode entered last or, if there is none, that of
/// [`set_strategy`]. `body` gets `None` if there is neither, and must not enter or leave a mode.
pub(crate) fn with_mode<R>(body: impl FnOnce(Option<&Mode>) -> R) -> R {
    STACK.with_borrow(|stack| match stack.last() {
        Some(mode) => body(Some(mode)),
        None => GLOBAL.with_borrow(|global| body(global.as_ref())),
    })
}

/// Returns the member that runs a merge function of `strategy` on this thread, if there is one.
pub(crate) fn merging_member(strategy: &Strategy) -> Option<Member> {
    STACK.with_borrow(|stack| {
        stack.iter().rev().find_map(|mode| match mode {
            Mode::Merge(context) if context.strategy() == strategy => Some(context.member().clone()),
            _ => None,
        })
    })
}

/// A guard that leaves the mode that it entered, if any, when it is dropped.
pub struct ContextGuard {
    pushed: bool,
    /// A marker that keeps the guard on its thread, because modes belong to the thread that entered them.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ContextGuard {
    /// Returns a guard that has entered no mode.
    fn unpushed() -> Self {
        Self { pushed: false, _not_send: std::marker::PhantomData }
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if self.pushed {
            STACK.with_borrow_mut(Vec::pop);
        }
    }
}

/// Enters a context on this thread until the guard is dropped.
pub fn enter(mode: Mode) -> ContextGuard {
    STACK.with_borrow_mut(|stack| stack.push(mode));
    ContextGuard { pushed: true, _not_send: std::marker::PhantomData }
}

impl Strategy {
    /// Makes this strategy current on this thread while `body` runs, in cross-replica context.
    ///
    /// `run`, `reduce`, `gather` and `replicate` enter the scope automatically, so they behave the same inside and
    /// outside it.
    ///
    /// # Errors
    /// - [`Error::MixedStrategies`]: called inside another strategy's scope or `run`.
    /// - [`Error::WrongContext`]: called inside this strategy's `run`.
    /// - The error of `body`.
    ///
    /// ```
    /// use distribute::context::{get_strategy, has_strategy, in_cross_replica_context};
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// assert!(!has_strategy());
    /// strategy.scope(|| {
    ///     assert!(get_strategy() == strategy && in_cross_replica_context());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// [`replicate`](Strategy::replicate) creates mirrored variables. A candle `Var` is an ordinary tensor,
    /// even inside a scope:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::Init;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.scope(|| {
    ///     strategy.replicate(|vb| vb.get_with_hints((), "mirrored", Init::Const(1.)))
    /// })?;
    /// assert_eq!(model.models().to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=float32, data=1.0>,
    ///   1: <Tensor: shape=(), dtype=float32, data=1.0>
    /// }");
    /// assert!(model.variables.strategy() == &strategy);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.scope")]
    pub fn scope<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let _scope = if self.is_default() {
            // SCOPE-5: nothing is pushed for the default strategy.
            if has_strategy() {
                return Err(mixed("scope", None, self));
            }
            ContextGuard::unpushed()
        } else {
            self.enter("scope", "use the replica context's merge_call to leave it")?
        };
        body()
    }

    /// Enters the cross-replica context of this strategy for an operation that requires it. Returns an error with the
    /// reason if that is not possible. Pushes nothing if the context is already at the top of the stack, or if this is
    /// the default strategy.
    pub(crate) fn enter(&self, operation: &'static str, advice: &'static str) -> Result<ContextGuard> {
        let current = with_mode(|mode| match mode {
            None => Ok(false),
            Some(mode) if mode.is_cross_replica() && mode.strategy() == self => Ok(true),
            // To other strategies, the default strategy's contexts count as none.
            Some(mode) if mode.strategy().is_default() && !self.is_default() => Ok(false),
            Some(Mode::Replica(context)) if context.strategy() == self => Err(Error::WrongContext {
                operation,
                required: ContextKind::CrossReplica,
                found: ContextKind::Replica,
                advice,
            }),
            Some(_) => Err(mixed(operation, None, self)),
        })?;
        // Above the global scope it is pushed anyway, because that scope may end inside this one.
        let pushed = STACK.with_borrow(|stack| !stack.is_empty());
        if (current && pushed) || self.is_default() {
            return Ok(ContextGuard::unpushed());
        }
        Ok(enter(Mode::CrossReplica(self.clone())))
    }
}

/// Returns an error if this thread runs a replica of a strategy other than the default one.
pub fn require_outside_of_run(operation: &'static str, advice: &'static str) -> Result<()> {
    let inside = with_mode(|mode| match mode {
        Some(Mode::Replica(context)) => !context.strategy().is_default(),
        _ => false,
    });
    if inside {
        Err(Error::WrongContext {
            operation,
            required: ContextKind::CrossReplica,
            found: ContextKind::Replica,
            advice,
        })
    } else {
        Ok(())
    }
}

/// Returns the current strategy of this thread, or the default strategy if none has been entered.
#[doc(alias = "tf.distribute.get_strategy")]
pub fn get_strategy() -> Strategy {
    with_mode(|mode| {
        mode.map_or_else(|| Strategy::default_strategy().clone(), |mode| mode.strategy().clone())
    })
}

/// Returns the current strategy of this thread, or `None` if none has been entered.
pub fn current_strategy() -> Option<Strategy> {
    with_mode(|mode| mode.map(|mode| mode.strategy().clone()))
}

/// Returns `true` if a strategy other than the default one is current on this thread.
#[doc(alias = "tf.distribute.has_strategy")]
pub fn has_strategy() -> bool {
    with_mode(|mode| mode.is_some_and(|mode| !mode.strategy().is_default()))
}

/// Returns the replica context of this thread. Inside `run`, this is the context of the replica. If no strategy has
/// been entered, it is the default context (replica 0 of 1). Returns `None` in cross-replica and update context.
#[doc(alias = "tf.distribute.get_replica_context")]
pub fn get_replica_context() -> Option<ReplicaContext> {
    with_mode(|mode| match mode {
        Some(Mode::Replica(context)) => Some(context.clone()),
        Some(_) => None,
        None => Some(replica::default_context().clone()),
    })
}

/// Returns `true` if this thread is in cross-replica context. Update contexts are included.
#[doc(alias = "tf.distribute.in_cross_replica_context")]
pub fn in_cross_replica_context() -> bool {
    with_mode(|mode| mode.is_some_and(Mode::is_cross_replica))
}

/// Returns the update context of this thread, which identifies the copy that is being updated. Returns `None` outside
/// the closure of [`update`](Strategy::update) or [`update_non_slot`](Strategy::update_non_slot).
#[doc(alias = "get_update_replica_id")]
pub fn get_update_context() -> Option<UpdateContext> {
    with_mode(|mode| match mode {
        Some(Mode::Update(context)) => Some(context.clone()),
        _ => None,
    })
}

/// Sets the current strategy of this thread for all following code, without a scope. `None` resets it.
///
/// # Errors
/// - [`Error::MixedStrategies`]: called inside a scope, a run or an update. A strategy that was set earlier is reset
///   even then.
///
/// ```
/// # use distribute::prelude::*;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// distribute::context::set_strategy(Some(&strategy))?;
/// assert!(distribute::context::get_strategy() == strategy && distribute::context::in_cross_replica_context());
/// distribute::context::set_strategy(None)?;
/// assert!(!distribute::context::has_strategy());
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental_set_strategy")]
pub fn set_strategy(strategy: Option<&Strategy>) -> Result<()> {
    GLOBAL.set(None);
    if with_mode(|mode| mode.is_some()) {
        Err(Error::MixedStrategies {
            operation: "set_strategy",
            current: describe_current(),
            other: match strategy {
                Some(strategy) => format!("it was called with {strategy}"),
                None => "it was called to leave a scope".into(),
            },
            advice: "call it outside scopes and runs",
        })
    } else {
        let given = strategy.filter(|strategy| !strategy.is_default());
        GLOBAL.set(given.map(|strategy| Mode::CrossReplica(strategy.clone())));
        Ok(())
    }
}

/// Returns the error of an operation on `what`, which belongs to strategy `of` and not to the current one. If
/// `what` is `None`, the operation was called on `of` itself.
pub fn mixed(operation: &'static str, what: Option<String>, of: &Strategy) -> Error {
    let other = match what {
        None => format!("it was called on {of}"),
        Some(what) if of.is_default() => format!("{what} was made without a strategy"),
        Some(what) => format!("{what} belongs to {of}"),
    };
    let advice = with_mode(|mode| match mode {
        None => "call it in the run of that strategy",
        Some(Mode::Replica(_)) => {
            "use what belongs to the strategy of this run, or call run of the other one"
        }
        Some(_) => "leave its scope first, or use what belongs to the current strategy",
    });
    Error::MixedStrategies { operation, current: describe_current(), other, advice }
}

/// Describes this thread's context for an error message.
fn describe_current() -> String {
    let nested = STACK.with_borrow(|stack| stack.len() > 1);
    with_mode(|mode| match mode {
        None => "no scope or run was entered".into(),
        Some(Mode::Replica(context)) if context.is_default() => "no scope or run was entered".into(),
        Some(Mode::Replica(context)) => format!("this is a run of {}", context.strategy()),
        Some(Mode::Update(context)) => format!("this is an update of {}", context.strategy()),
        Some(mode) if nested => format!("this is inside a scope or merge function of {}", mode.strategy()),
        Some(mode) => format!("this is inside a scope of {}", mode.strategy()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mirrored;
    use distribute_tensor::ReduceOp;
    use distribute_testing::watched;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    // INV-6
    #[test]
    fn a_scope_is_left_however_it_ends() {
        let strategy = mirrored(2);
        assert!(strategy.scope(|| strategy.scope(|| Ok(in_cross_replica_context()))).unwrap());
        assert!(!has_strategy());
        strategy.scope(|| Err::<(), _>(Error::other("no"))).unwrap_err();
        assert!(!has_strategy());
        let panic = || strategy.scope(|| -> Result<()> { std::panic::resume_unwind(Box::new("boom")) });
        catch_unwind(AssertUnwindSafe(panic)).unwrap_err();
        assert!(!has_strategy());
    }

    // INV-6
    #[test]
    fn a_run_and_a_merge_are_left_however_they_end() {
        watched(runs_and_merges_end);
    }

    fn runs_and_merges_end() {
        let strategy = mirrored(2);
        for fails in [false, true] {
            let result = strategy.run((), |ctx, ()| {
                let merged = ctx.merge_call((), |strategy, _| {
                    if fails { Err(Error::other("no")) } else { strategy.reduce(ReduceOp::Mean, 1f32, None) }
                });
                assert_eq!(get_replica_context().map(|c| c.step()), Some(ctx.step()));
                merged
            });
            assert_eq!(result.is_err(), fails);
            assert!(!has_strategy() && !in_cross_replica_context());
        }
    }
}
