//! Calls of user functions, whose panics are caught.

// - **INV-13** A user's function in a dataset that fails or panics gives an error that names the element, and ends
//   the pass, not the process. Tests: `data/src/operations/map.rs`, `generator.rs`, `interleave.rs`.

use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `f`. A panic becomes an error that contains the operation and the index of the element.
///
/// Asserting unwind safety is sound here, because the caller ends its pass on that error. Values that the panic may
/// have left inconsistent are therefore not used again by this crate.
pub(crate) fn catch_panics<R>(operation: &'static str, index: usize, f: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| Error::Panicked {
        operation,
        index,
        message: panic_message(payload.as_ref()),
    })
}

/// Returns the message of a panic, or a placeholder if it has none.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => "(a panic without text)".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_text() {
        assert_eq!(catch_panics("map", 0, || 7).unwrap(), 7);
        let error = catch_panics("map", 3, || -> i32 { panic!("no {}", "luck") }).unwrap_err();
        assert_eq!(error.to_string(), "the function given to map panicked at element 3: no luck");
        let error = catch_panics("filter", 4, || -> i32 { std::panic::panic_any(5) }).unwrap_err();
        assert!(error.to_string().contains("(a panic without text)"));
    }
}
