//! Calls user functions and catches their panics.

use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `f`. A panic becomes an error that names the operation and the element.
///
/// Asserting unwind safety is sound here: the caller ends its pass on that error, so this crate never uses
/// values again that the panic may have left inconsistent.
pub(crate) fn guarded<R>(operation: &'static str, index: usize, f: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| Error::Panicked {
        operation,
        index,
        message: panic_message(payload.as_ref()),
    })
}

/// Returns the message of a panic, if it has one.
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
        assert_eq!(guarded("map", 0, || 7).unwrap(), 7);
        let error = guarded("map", 3, || -> i32 { panic!("no {}", "luck") }).unwrap_err();
        assert_eq!(error.to_string(), "the function given to map panicked at element 3: no luck");
        let error = guarded("filter", 4, || -> i32 { std::panic::panic_any(5) }).unwrap_err();
        assert!(error.to_string().contains("(a panic without text)"));
    }
}
