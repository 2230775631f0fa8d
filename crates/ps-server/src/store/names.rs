//! Lists of names for messages.

/// The maximum number of names in a list.
const MAX: usize = 10;

/// Lists names in a text. If there are many, the text contains the first ones and the number of the others.
pub(crate) fn listed(names: &[String]) -> String {
    let first = names.iter().take(MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
