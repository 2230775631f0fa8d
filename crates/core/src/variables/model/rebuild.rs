//! Building a model again from existing variables.

use distribute_base::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    /// The names that a model has requested so far, while it is being rebuilt on this thread.
    static REQUESTED: RefCell<Option<BTreeSet<String>>> = const { RefCell::new(None) };
}

/// Calls `build`, which builds a model again without creating variables. To the builder, a variable does not exist
/// until `build` has requested it, as in the first build.
pub fn rebuild<T>(build: impl FnOnce() -> T) -> T {
    /// A guard that restores the thread's previous state, even after a panic.
    struct RestoreOnDrop(Option<BTreeSet<String>>);
    impl Drop for RestoreOnDrop {
        fn drop(&mut self) {
            REQUESTED.set(self.0.take());
        }
    }
    let _back = RestoreOnDrop(REQUESTED.replace(Some(BTreeSet::new())));
    build()
}

/// Returns whether a model that is being rebuilt has requested a variable; `None` if no model is being
/// rebuilt.
pub(super) fn is_requested(name: &str) -> Option<bool> {
    REQUESTED.with_borrow(|asked| asked.as_ref().map(|asked| asked.contains(name)))
}

/// Records that a model which is being rebuilt requests a variable. Does nothing if no model is being rebuilt. `exists`
/// returns whether there is such a variable.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the model is being rebuilt and the variable does not exist.
pub(super) fn record_request(name: &str, exists: impl FnOnce() -> bool) -> Result<()> {
    REQUESTED.with_borrow_mut(|asked| {
        let Some(asked) = asked else { return Ok(()) };
        if !exists() {
            let reason = format!(
                "a model is rebuilt on another thread, and requests variable {name}, which it did not request when it \
                 was first built; request the same variables each time"
            );
            return Err(Error::invalid("per_thread", reason));
        }
        asked.insert(name.to_owned());
        Ok(())
    })
}
