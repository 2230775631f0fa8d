//! Where code is running: in replica context, in cross-replica context, or in neither.
//!
//! Each thread has a stack of modes; queries look at its top (CTX-1, CTX-2). The stack is pushed and popped by guards
//! of this crate only, so it is always unwound in order.

mod describe;
mod gradient;
mod layers;
mod replica;

pub(crate) use gradient::{raise, raised};
pub(crate) use layers::consecutive;
pub use replica::ReplicaContext;

use crate::{Error, Result, Strategy};
use std::cell::RefCell;
use std::fmt;

/// Where code is running, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextKind {
    /// No strategy has been entered: the context in which every thread starts.
    Default,
    /// Inside of `scope` or of a merge function: once for all replicas.
    CrossReplica,
    /// Inside of the closure given to `run`: once for each replica.
    Replica,
}

impl fmt::Display for ContextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ContextKind::Default => "the default context",
            ContextKind::CrossReplica => "cross-replica context",
            ContextKind::Replica => "replica context",
        })
    }
}

#[derive(Clone)]
pub(crate) enum Mode {
    CrossReplica(Strategy),
    Replica(ReplicaContext),
}

thread_local! {
    static STACK: RefCell<Vec<Mode>> = const { RefCell::new(Vec::new()) };
}

impl Mode {
    fn strategy(&self) -> &Strategy {
        match self {
            Mode::CrossReplica(strategy) => strategy,
            Mode::Replica(context) => context.strategy(),
        }
    }
}

fn top<R>(look: impl FnOnce(Option<&Mode>) -> R) -> R {
    STACK.with_borrow(|stack| look(stack.last()))
}

/// Leaves a mode when dropped.
pub(crate) struct Entered {
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

pub(crate) fn enter(mode: Mode) -> Entered {
    STACK.with_borrow_mut(|stack| stack.push(mode));
    Entered { pushed: true, _not_send: std::marker::PhantomData }
}

/// Enters the cross-replica context of `strategy` for an operation that belongs there, or says why not (ERR-1).
/// Where it is current already, nothing is pushed (SCOPE-2).
pub(crate) fn enter_cross_replica(
    strategy: &Strategy,
    operation: &'static str,
    advice: &'static str,
) -> Result<Entered> {
    let mixed = |current: &Strategy| Error::MixedStrategies {
        operation,
        current: current.to_string(),
        other: strategy.to_string(),
    };
    let current = top(|mode| match mode {
        None => Ok(false),
        Some(Mode::CrossReplica(current)) if current == strategy => Ok(true),
        // The default strategy's contexts count as none for all others, as everywhere else.
        Some(mode) if mode.strategy().is_default() && !strategy.is_default() => Ok(false),
        Some(Mode::CrossReplica(current)) => Err(mixed(current)),
        Some(Mode::Replica(context)) if context.strategy() == strategy => Err(Error::WrongContext {
            operation,
            required: ContextKind::CrossReplica,
            found: ContextKind::Replica,
            advice,
        }),
        Some(Mode::Replica(context)) => Err(mixed(context.strategy())),
    })?;
    if current || strategy.is_default() {
        return Ok(Entered { pushed: false, _not_send: std::marker::PhantomData });
    }
    Ok(enter(Mode::CrossReplica(strategy.clone())))
}

/// The strategy that is current on this thread; the default strategy where none has been entered.
#[doc(alias = "tf.distribute.get_strategy")]
pub fn get_strategy() -> Strategy {
    top(|mode| {
        mode.map_or_else(|| crate::strategy::default_strategy().clone(), |mode| mode.strategy().clone())
    })
}

/// Whether another than the default strategy is current on this thread.
#[doc(alias = "tf.distribute.has_strategy")]
pub fn has_strategy() -> bool {
    top(|mode| mode.is_some_and(|mode| !mode.strategy().is_default()))
}

/// The replica context of this thread: inside of `run` that replica's, with no strategy entered the default one
/// (id 0 of 1), in cross-replica context none.
#[doc(alias = "tf.distribute.get_replica_context")]
pub fn get_replica_context() -> Option<ReplicaContext> {
    top(|mode| match mode {
        Some(Mode::CrossReplica(_)) => None,
        Some(Mode::Replica(context)) => Some(context.clone()),
        None => Some(replica::default_context().clone()),
    })
}

/// Whether this thread is in cross-replica context.
#[doc(alias = "tf.distribute.in_cross_replica_context")]
pub fn in_cross_replica_context() -> bool {
    top(|mode| matches!(mode, Some(Mode::CrossReplica(_))))
}

/// Whether the current replica context is a certain one.
enum Current {
    This,
    Other(ReplicaContext),
    None,
}

fn get_replica_context_if(is_this: impl Fn(&ReplicaContext) -> bool) -> Current {
    let judge = |context: &ReplicaContext| match is_this(context) {
        true => Current::This,
        false => Current::Other(context.clone()),
    };
    top(|mode| match mode {
        Some(Mode::CrossReplica(_)) => Current::None,
        Some(Mode::Replica(context)) => judge(context),
        None => judge(replica::default_context()),
    })
}

/// The default strategy's scope: it pushes nothing, and does not nest in another strategy's (SCOPE-5).
pub(crate) fn enter_default(default: &Strategy) -> Result<Entered> {
    match has_strategy() {
        false => Ok(Entered { pushed: false, _not_send: std::marker::PhantomData }),
        true => Err(Error::MixedStrategies {
            operation: "scope",
            current: get_strategy().to_string(),
            other: default.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MirroredStrategy, ReduceOp};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    // INV-6
    #[test]
    fn a_scope_is_left_however_it_ends() {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        assert!(strategy.scope(|| strategy.scope(|| Ok(in_cross_replica_context()))).unwrap());
        assert!(!has_strategy());
        strategy.scope(|| Err::<(), _>(Error::other("no"))).unwrap_err();
        assert!(!has_strategy());
        let panic = || strategy.scope(|| -> Result<()> { std::panic::resume_unwind(Box::new("boom")) });
        catch_unwind(AssertUnwindSafe(panic)).unwrap_err();
        assert!(!has_strategy());
    }

    /// Fails a test that hangs.
    fn watched(body: impl FnOnce() + Send + 'static) {
        let (done, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            body();
            let _ = done.send(());
        });
        match wait.recv_timeout(std::time::Duration::from_secs(60)) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
            _ => thread.join().unwrap(),
        }
    }

    // INV-6
    #[test]
    fn a_run_and_a_merge_are_left_however_they_end() {
        watched(runs_and_merges_end);
    }

    fn runs_and_merges_end() {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        for fails in [false, true] {
            let result = strategy.run((), |ctx, ()| {
                let merged = ctx.merge_call((), |strategy, _| match fails {
                    false => strategy.reduce(ReduceOp::Mean, 1f32, None),
                    true => Err(Error::other("no")),
                });
                assert_eq!(get_replica_context().map(|c| c.step()), Some(ctx.step()));
                merged
            });
            assert_eq!(result.is_err(), fails);
            assert!(!has_strategy() && !in_cross_replica_context());
        }
    }
}
