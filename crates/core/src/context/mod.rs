//! The context of running code: replica context, cross-replica context, or neither.
//!
//! Each thread has a stack of modes, and queries look at its top. Only guards of this crate push and pop modes,
//! so the stack always unwinds in order.

mod collectives;
mod combine;
pub(crate) mod describe;
mod expected;
mod gradient;
mod layers;
mod replica;
mod scope;
mod update;
mod workers;

pub use combine::failure;
pub use distribute_base::ContextKind;
pub use gradient::raise;
pub use gradient::raised;
pub(crate) use layers::consecutive;
#[doc(alias = "tf.distribute.ReplicaContext")]
pub use replica::ReplicaContext;
pub use replica::default_context;
pub use update::UpdateContext;

use crate::strategy::Strategy;
use distribute_base::{DeviceName, Error, Result};
use distribute_collective::threads::Member;
use std::cell::RefCell;

/// Returns the kind of the context of this thread.
pub fn current_kind() -> ContextKind {
    with_mode(|mode| mode.map_or(ContextKind::Default, Mode::kind))
}

/// A context that a thread has entered. A thread that has entered none is in the default context.
#[derive(Clone)]
pub enum Mode {
    /// Cross-replica.
    CrossReplica(Strategy),
    /// Cross-replica, inside a merge function; with the context of this process's replica 0.
    Merge(ReplicaContext),
    /// Cross-replica, with devices for new variables.
    Colocated(Strategy, Vec<DeviceName>),
    /// The update of a copy of a variable.
    Update(UpdateContext),
    /// The context of a replica.
    Replica(ReplicaContext),
}

thread_local! {
    static STACK: RefCell<Vec<Mode>> = const { RefCell::new(Vec::new()) };
    /// The strategy of this thread's global scope, which lies below the stack.
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

    /// Returns the devices for new variables, if they were set.
    pub(crate) fn colocated(&self) -> Option<Vec<DeviceName>> {
        match self {
            Mode::Colocated(_, devices) => Some(devices.clone()),
            _ => None,
        }
    }

    /// Whether code runs here once for all replicas.
    fn is_cross_replica(&self) -> bool {
        !matches!(self, Mode::Replica(_))
    }
}

/// Calls `look` with the context of this thread, or `None` if it has entered none. `look` must not enter or leave one.
pub(crate) fn with_mode<R>(look: impl FnOnce(Option<&Mode>) -> R) -> R {
    STACK.with_borrow(|stack| match stack.last() {
        Some(mode) => look(Some(mode)),
        None => GLOBAL.with_borrow(|global| look(global.as_ref())),
    })
}

/// Returns the member whose merge function this thread is in, if it is one of `strategy`.
pub(crate) fn merging(strategy: &Strategy) -> Option<Member> {
    STACK.with_borrow(|stack| {
        stack.iter().rev().find_map(|mode| match mode {
            Mode::Merge(context) if context.strategy() == strategy => Some(context.member().clone()),
            _ => None,
        })
    })
}

/// Leaves a mode when dropped.
pub struct Entered {
    pushed: bool,
    /// Modes belong to their thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            STACK.with_borrow_mut(Vec::pop);
        }
    }
}

/// Enters a context on this thread, until the guard is dropped.
pub fn enter(mode: Mode) -> Entered {
    STACK.with_borrow_mut(|stack| stack.push(mode));
    Entered { pushed: true, _not_send: std::marker::PhantomData }
}

/// Enters the cross-replica context of `strategy` for an operation that requires it, or returns the reason why
/// that is impossible. If it is already current, nothing is pushed.
pub(crate) fn enter_cross_replica(
    strategy: &Strategy,
    operation: &'static str,
    advice: &'static str,
) -> Result<Entered> {
    let current = with_mode(|mode| match mode {
        None => Ok(false),
        Some(mode) if mode.is_cross_replica() && mode.strategy() == strategy => Ok(true),
        // To other strategies, the default strategy's contexts count as none.
        Some(mode) if mode.strategy().is_default() && !strategy.is_default() => Ok(false),
        Some(Mode::Replica(context)) if context.strategy() == strategy => Err(Error::WrongContext {
            operation,
            required: ContextKind::CrossReplica,
            found: ContextKind::Replica,
            advice,
        }),
        Some(_) => Err(mixed(operation, None, strategy)),
    })?;
    // Above the global scope it is pushed anyway, because that scope may end inside this one.
    let pushed = STACK.with_borrow(|stack| !stack.is_empty());
    if (current && pushed) || strategy.is_default() {
        return Ok(Entered { pushed: false, _not_send: std::marker::PhantomData });
    }
    Ok(enter(Mode::CrossReplica(strategy.clone())))
}

/// Returns an error if the thread is inside any strategy's `run`. The default strategy's replica context counts
/// as outside.
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

/// Returns the strategy that is current on this thread; the default strategy if none has been entered.
#[doc(alias = "tf.distribute.get_strategy")]
pub fn get_strategy() -> Strategy {
    with_mode(|mode| {
        mode.map_or_else(|| Strategy::of_default_context().clone(), |mode| mode.strategy().clone())
    })
}

/// Returns the strategy of the context that this thread is in, if it is in any.
pub fn current_strategy() -> Option<Strategy> {
    with_mode(|mode| mode.map(|mode| mode.strategy().clone()))
}

/// Whether a strategy other than the default one is current on this thread.
#[doc(alias = "tf.distribute.has_strategy")]
pub fn has_strategy() -> bool {
    with_mode(|mode| mode.is_some_and(|mode| !mode.strategy().is_default()))
}

/// Returns the replica context of this thread: that of the replica inside `run`, the default one (id 0 of 1) if
/// no strategy has been entered, and `None` in cross-replica context.
#[doc(alias = "tf.distribute.get_replica_context")]
pub fn get_replica_context() -> Option<ReplicaContext> {
    with_mode(|mode| match mode {
        Some(Mode::Replica(context)) => Some(context.clone()),
        Some(_) => None,
        None => Some(replica::default_context().clone()),
    })
}

/// Whether this thread is in cross-replica context.
#[doc(alias = "tf.distribute.in_cross_replica_context")]
pub fn in_cross_replica_context() -> bool {
    with_mode(|mode| mode.is_some_and(Mode::is_cross_replica))
}

/// Returns the update context of this thread, which has the updated copy, inside the closure of
/// [`update`](Strategy::update); `None` elsewhere.
#[doc(alias = "get_update_replica_id")]
pub fn get_update_context() -> Option<UpdateContext> {
    with_mode(|mode| match mode {
        Some(Mode::Update(context)) => Some(context.clone()),
        _ => None,
    })
}

/// Makes a strategy current on this thread from here on, as if all following code were in its scope. `None`
/// ends this.
///
/// # Errors
/// - [`Error::MixedStrategies`]: called inside a scope, a run or an update. The strategy set before is no
///   longer current then.
///
/// ```
/// # use distribute::prelude::*;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// distribute::set_strategy(Some(&strategy))?;
/// assert!(distribute::get_strategy() == *strategy && distribute::in_cross_replica_context());
/// distribute::set_strategy(None)?;
/// assert!(!distribute::has_strategy());
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental_set_strategy")]
pub fn set_strategy(strategy: Option<&Strategy>) -> Result<()> {
    GLOBAL.set(None);
    if with_mode(|mode| mode.is_some()) {
        Err(Error::MixedStrategies {
            operation: "set_strategy",
            current: whereabouts(),
            other: match strategy {
                Some(strategy) => format!("it was called with {strategy}"),
                None => "it was called to end a scope".into(),
            },
            advice: "call it outside of scopes and runs",
        })
    } else {
        let given = strategy.filter(|strategy| !strategy.is_default());
        GLOBAL.set(given.map(|strategy| Mode::CrossReplica(strategy.clone())));
        Ok(())
    }
}

// SCOPE-5
/// Enters the default strategy's scope. It pushes nothing, and does not nest in another strategy's.
pub(crate) fn enter_default(default: &Strategy) -> Result<Entered> {
    if has_strategy() {
        Err(mixed("scope", None, default))
    } else {
        Ok(Entered { pushed: false, _not_send: std::marker::PhantomData })
    }
}

/// Returns the error of an operation on `what`, which belongs to the strategy `of`; without `what`, of an
/// operation on `of` itself.
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
    Error::MixedStrategies { operation, current: whereabouts(), other, advice }
}

/// Describes the context of this thread.
fn whereabouts() -> String {
    let nested = STACK.with_borrow(|stack| stack.len() > 1);
    with_mode(|mode| match mode {
        None => "no scope or run was entered".into(),
        Some(Mode::Replica(context)) if context.is_default() => "no scope or run was entered".into(),
        Some(Mode::Replica(context)) => format!("this is a run of {}", context.strategy()),
        Some(Mode::Update(context)) => format!("this is an update of {}", context.strategy()),
        Some(mode) if nested => format!("this is inside of a scope or merge function of {}", mode.strategy()),
        Some(mode) => format!("this is inside of a scope of {}", mode.strategy()),
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
