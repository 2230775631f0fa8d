//! Values in errors, cut where they are long.

use std::fmt;

/// At most so much of a value is shown in an error.
const SHOWN: usize = 60;

/// A value for an error, cut where it is long.
pub(crate) fn shown(value: &dyn fmt::Display) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}
