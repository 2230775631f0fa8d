//! The comparison of a worker's functions with those of its coordinator, as a pure function.

use crate::call::FunctionId;
use crate::failure::{Failure, FailureKind};
use std::collections::BTreeMap;

/// The maximum number of functions that a message lists.
const MAX_NAMED: usize = 5;

/// Checks that a worker has the same functions as the coordinator.
///
/// # Errors
/// - [`FailureKind::UnknownFunction`]: functions differ; the text lists them.
pub(super) fn compare(own: &[FunctionId], others: &[FunctionId]) -> Result<(), Failure> {
    let by_name = |all: &[FunctionId]| -> BTreeMap<String, u64> {
        all.iter().map(|function| (function.name.clone(), function.source)).collect()
    };
    let (own, others) = (by_name(own), by_name(others));
    let missing = others.keys().filter(|name| !own.contains_key(*name));
    let unknown = own.keys().filter(|name| !others.contains_key(*name));
    let differ = others.iter().filter(|(name, source)| own.get(*name).is_some_and(|own| own != *source));
    let told: Vec<_> = [
        ("has no", missing.collect::<Vec<_>>()),
        ("has, and the coordinator has not,", unknown.collect()),
        ("has another", differ.map(|(name, _)| name).collect()),
    ]
    .into_iter()
    .filter(|(_, names)| !names.is_empty())
    .map(|(what, names)| {
        let more = if names.len() > MAX_NAMED {
            format!(" and {} more", names.len() - MAX_NAMED)
        } else {
            String::new()
        };
        let names: Vec<_> = names.into_iter().take(MAX_NAMED).map(String::as_str).collect();
        format!("{what} {}{more}", names.join(", "))
    })
    .collect();
    if told.is_empty() {
        return Ok(());
    }
    let text = format!(
        "it is another build of the program than the coordinator: it {}; start all tasks from the same binary",
        told.join("; it ")
    );
    Err(Failure::new(FailureKind::UnknownFunction, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(names: &[(&str, u64)]) -> Vec<FunctionId> {
        names.iter().map(|(name, source)| FunctionId { name: (*name).to_owned(), source: *source }).collect()
    }

    #[test]
    fn functions_that_differ_are_named() {
        let own = all(&[("a", 1), ("b", 2), ("only_here", 3)]);
        assert_eq!(compare(&own, &all(&[("only_here", 3), ("b", 2), ("a", 1)])), Ok(()));
        let text = compare(&own, &all(&[("a", 1), ("b", 9), ("new", 4)])).unwrap_err().to_string();
        assert_eq!(
            text,
            "it is another build of the program than the coordinator: it has no new; it has, and the coordinator has not, only_here; \
             it has another b; start all tasks from the same binary"
        );
        let names: Vec<_> = (0..8).map(|n| format!("f{n}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let text = compare(&all(&many), &[]).unwrap_err().to_string();
        assert!(text.contains("f0, f1, f2, f3, f4 and 3 more"), "{text}");
    }
}
