//! Errors of candle, with the name of the variable.

use distribute_base::Error;

/// Returns a function that adds the name of the variable to errors of candle.
pub(super) fn with_name(name: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Candle(source) => {
            Error::Candle(candle_core::Error::msg(format_args!("variable {name}: {source}")))
        }
        other => other,
    }
}
