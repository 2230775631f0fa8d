//! Building a model again from existing variables.

use distribute_base::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    /// The names that a model has asked for, while it is rebuilt on this thread.
    static ASKED: RefCell<Option<BTreeSet<String>>> = const { RefCell::new(None) };
}

/// Runs `build`, which builds a model again. No variable is created. For builders a variable does not exist
/// until `build` has asked for it, as in the first build.
pub fn again<T>(build: impl FnOnce() -> T) -> T {
    /// Restores the thread's previous state, even after a panic.
    struct Back(Option<BTreeSet<String>>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKED.set(self.0.take());
        }
    }
    let _back = Back(ASKED.replace(Some(BTreeSet::new())));
    build()
}

/// Whether a model that is being rebuilt has asked for a variable; `None` if no model is being rebuilt.
pub(super) fn has_asked(name: &str) -> Option<bool> {
    ASKED.with_borrow(|asked| asked.as_ref().map(|asked| asked.contains(name)))
}

/// Records that a model asks for a variable, which `exists` or not.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the model is being rebuilt, and the variable does not exist.
pub(super) fn asks(name: &str, exists: impl FnOnce() -> bool) -> Result<()> {
    ASKED.with_borrow_mut(|asked| {
        let Some(asked) = asked else { return Ok(()) };
        if !exists() {
            let reason = format!(
                "a model is built again on another thread, and asks for variable {name}, which it did not ask for when it was first \
                 built; ask for the same variables each time"
            );
            return Err(Error::invalid("per_thread", reason));
        }
        asked.insert(name.to_owned());
        Ok(())
    })
}
