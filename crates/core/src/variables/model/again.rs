//! A model that is built once more, from variables that are there.

use distribute_base::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    /// The names that a model has asked for, while it is built again on this thread.
    static ASKED: RefCell<Option<BTreeSet<String>>> = const { RefCell::new(None) };
}

/// Runs `build`, in which a model is built again: no variable is made, and builders say of no variable that it is there before
/// `build` has asked for it, as when the model was first built.
pub fn again<T>(build: impl FnOnce() -> T) -> T {
    /// The thread goes on as before, also after a panic.
    struct Back(Option<BTreeSet<String>>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKED.set(self.0.take());
        }
    }
    let _back = Back(ASKED.replace(Some(BTreeSet::new())));
    build()
}

/// Whether a model that is built again has asked for a variable; `None` if none is built again.
pub(super) fn has_asked(name: &str) -> Option<bool> {
    ASKED.with_borrow(|asked| asked.as_ref().map(|asked| asked.contains(name)))
}

/// Notes that a model asks for a variable, which `exists` or not.
///
/// # Errors
/// [`Error::InvalidArgument`]: the model is built again, and the variable is not there.
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
