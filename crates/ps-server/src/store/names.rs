//! Lists of names for messages.

/// The maximum number of names in a list.
const MOST: usize = 10;

/// Returns a list of names, or of the first of many.
pub(crate) fn listed(names: &[String]) -> String {
    let first = names.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
