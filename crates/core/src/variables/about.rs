//! Errors of candle, with the name of the variable that they are about.

use distribute_base::Error;

/// Adds the name of the variable to an error of candle.
pub(super) fn about(name: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Candle(source) => {
            Error::Candle(candle_core::Error::msg(format_args!("variable {name}: {source}")))
        }
        other => other,
    }
}
