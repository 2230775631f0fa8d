//! A large stack for replica 0 on its caller's thread, of the same size as the stacks of the other replicas.

use super::worker::STACK;
use corosensei::on_stack;
use corosensei::stack::DefaultStack;
use std::cell::RefCell;
use std::io;

thread_local! {
    /// The unused stacks of this thread, one for each level of nested runs.
    static IDLE: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` on this thread, on a stack of [`STACK`] bytes. Panics propagate to the caller.
///
/// A guard page protects the end of the stack. A program that overflows it is killed by SIGSEGV, without the message
/// that the standard library prints for stacks of threads.
///
/// # Errors
/// Returns an I/O error if the memory cannot be allocated.
pub(super) fn on_large_stack<R>(work: impl FnOnce() -> R) -> io::Result<R> {
    // Miri cannot switch stacks.
    if cfg!(miri) {
        return Ok(work());
    }
    let mut stack = ReturnStack(Some(match IDLE.with_borrow_mut(Vec::pop) {
        Some(stack) => stack,
        None => DefaultStack::new(STACK)?,
    }));
    Ok(match &mut stack.0 {
        Some(stack) => on_stack(stack, work),
        None => work(),
    })
}

/// A guard that keeps a stack for the next run on this thread when it is dropped, even after a panic.
struct ReturnStack(Option<DefaultStack>);

impl Drop for ReturnStack {
    fn drop(&mut self) {
        // Fails only while the thread ends, and its stacks with it.
        let stack = self.0.take();
        let _ = IDLE.try_with(|idle| idle.borrow_mut().extend(stack));
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::backtrace::Backtrace;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Uses `mib` MiB of stack.
    fn dig(mib: usize) -> usize {
        let block = std::hint::black_box([mib as u8; 1 << 20]);
        if mib == 0 { 0 } else { dig(mib - 1) + usize::from(block[mib] as usize == mib) }
    }

    fn on_a_small_thread<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
        std::thread::Builder::new().stack_size(256 << 10).spawn(body).unwrap().join().unwrap()
    }

    #[test]
    fn it_is_large_whatever_thread_and_however_often() {
        on_a_small_thread(|| {
            for _ in 0..3 {
                assert_eq!(on_large_stack(|| dig(20)).unwrap(), 20);
                // A run inside a run.
                assert_eq!(on_large_stack(|| on_large_stack(|| dig(20)).unwrap()).unwrap(), 20);
            }
            assert_eq!(IDLE.with_borrow(Vec::len), 2);
        });
    }

    #[inline(never)]
    fn above() -> String {
        on_large_stack(|| Backtrace::force_capture().to_string()).unwrap()
    }

    #[test]
    fn panics_backtraces_and_thread_locals_are_those_of_the_thread() {
        thread_local!(static HERE: RefCell<u8> = const { RefCell::new(1) });
        on_a_small_thread(|| {
            HERE.replace(2);
            let panic = catch_unwind(AssertUnwindSafe(|| {
                on_large_stack(|| {
                    HERE.replace(3);
                    resume_unwind(Box::new("boom"))
                })
            }));
            let panic: Result<io::Result<()>, _> = panic;
            assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
            assert_eq!((HERE.take(), IDLE.with_borrow(Vec::len)), (3, 1));
            // A backtrace on this stack contains the frames above it.
            let trace = above();
            assert!(trace.contains("on_large_stack") && trace.contains("tests::above"), "{trace}");
        });
    }
}
