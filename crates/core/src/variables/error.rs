//! Adds the name of a variable to candle's errors.

use distribute_base::Error;

/// Returns a function that adds the name of the variable to candle's errors, and leaves other errors unchanged.
pub(super) fn with_name(name: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Candle(source) => {
            Error::Candle(candle_core::Error::msg(format_args!("variable {name}: {source}")))
        }
        other => other,
    }
}
