//! Errors of candle that say which variable they are about.

use distribute_base::Error;

/// An error of candle as one that says which variable it is about.
pub(super) fn about(name: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Candle(source) => {
            Error::Candle(candle_core::Error::msg(format_args!("variable {name}: {source}")))
        }
        other => other,
    }
}
