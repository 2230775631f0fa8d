//! The parser of durations in command-line options.

use crate::{Error, Result};
use std::time::Duration;

/// Parses a duration such as `90`, `90s`, `1.5m`, `2h` or `500ms`. A number without a unit is in seconds.
///
/// # Errors
/// - [`Error::Option`]: the text is not a duration. The error contains `option`.
pub fn parse_duration(option: &'static str, text: &str) -> Result<Duration> {
    let expected = "a number of seconds, or one with a unit: 90, 90s, 1.5m, 2h";
    let refuse = || Error::Option { option, value: text.into(), expected };
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.,
        "m" => 60.,
        "h" => 3600.,
        "d" => 86400.,
        _ => return Err(refuse()),
    };
    let number: f64 = number.parse().map_err(|_| refuse())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| refuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        let millis = |text| parse_duration("--grace", text).unwrap().as_millis();
        assert_eq!(
            ["90", "90s", "1.5m", "2h", "250ms", "0"].map(millis),
            [90_000, 90_000, 90_000, 7_200_000, 250, 0]
        );
        for text in ["", "s", "x", "-1", "1e400", "nan", "1 s", "10 apples", "1s1"] {
            let error = parse_duration("--grace", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--grace is {text:?}, but must be ")), "{error}");
        }
    }
}
