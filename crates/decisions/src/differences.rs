//! Comparison of the workers' settings. The result names each setting that differs, with its values and the workers
//! that have them.

use distribute_cluster::fnv1a;
use std::collections::{HashMap, HashSet};

/// The settings of a worker, as pairs of a name and a value. Names are unique.
pub type Settings = Vec<(String, String)>;

/// The maximum number of settings or workers listed in a message.
const LISTED: usize = 6;

/// The maximum length of a value in a message, in characters. Longer values are shortened.
const LONGEST: usize = 200;

/// Returns a digest of the settings, which depends on their order. Workers compare digests before they send
/// the settings.
pub fn digest(settings: &Settings) -> u64 {
    let parts = settings.iter().flat_map(|(name, value)| [name, value]);
    // Each part ends in a byte that no text has.
    fnv1a(parts.flat_map(|part| part.bytes().chain([0xff])))
}

/// Describes the settings that differ, with the values of all workers. `all` contains the settings of each worker,
/// indexed by rank. Returns `None` if all settings are equal.
pub fn differences(all: &[Settings]) -> Option<String> {
    let values: Vec<HashMap<&str, &str>> = all.iter().map(by_name).collect();
    let mut seen = HashSet::new();
    let names = all.iter().flatten().map(|(name, _)| name.as_str()).filter(|name| seen.insert(*name));
    let mut differing = Vec::new();
    for name in names {
        let of_workers: Vec<Option<&str>> = values.iter().map(|values| values.get(name).copied()).collect();
        if of_workers.iter().any(|value| *value != of_workers[0]) {
            differing.push(format!("{name}: {}", by_value(&of_workers)));
        }
    }
    let more = differing.len().saturating_sub(LISTED);
    differing.truncate(LISTED);
    match (differing.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(differing.join("; ")),
        (false, more) => Some(format!("{}; and {more} more", differing.join("; "))),
    }
}

fn by_name(settings: &Settings) -> HashMap<&str, &str> {
    settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Formats the value of a setting on each worker, such as `2 on worker 0, 1 on workers 1 and 2`.
fn by_value(of_workers: &[Option<&str>]) -> String {
    let mut groups: Vec<(Option<&str>, Vec<usize>)> = Vec::new();
    for (worker, value) in of_workers.iter().enumerate() {
        match groups.iter_mut().find(|(other, _)| other == value) {
            Some((_, workers)) => workers.push(worker),
            None => groups.push((*value, vec![worker])),
        }
    }
    let group = |(value, workers): &(Option<&str>, Vec<usize>)| {
        format!("{} on {}", value.map_or("none".into(), shortened), list_workers(workers))
    };
    groups.iter().map(group).collect::<Vec<_>>().join(", ")
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// Formats a list of workers: `worker 1`, `workers 1 and 2`, or `workers 0, 1, 2, 3, 4, 5 and 9 more`.
fn list_workers(workers: &[usize]) -> String {
    let shown: Vec<String> = workers.iter().take(LISTED).map(usize::to_string).collect();
    match (shown.as_slice(), workers.len() - shown.len()) {
        ([one], 0) => format!("worker {one}"),
        ([first @ .., last], 0) => format!("workers {} and {last}", first.join(", ")),
        (shown, more) => format!("workers {} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(all: &[(&str, &str)]) -> Settings {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn equal_settings_have_no_differences_in_any_order() {
        let one = settings(&[("a", "1"), ("b", "2")]);
        let other = settings(&[("b", "2"), ("a", "1")]);
        assert_eq!(differences(&[one.clone(), one.clone(), other]), None);
        assert_eq!(differences(&[one]), None);
        assert_eq!(differences(&[]), None);
    }

    #[test]
    fn each_difference_has_its_values_and_their_workers() {
        let all = [
            settings(&[("beta1", "0.9"), ("same", "x")]),
            settings(&[("beta1", "0.8"), ("same", "x"), ("b", "frozen")]),
            settings(&[("beta1", "0.9"), ("same", "x"), ("b", "frozen")]),
        ];
        assert_eq!(
            differences(&all).unwrap(),
            "beta1: 0.9 on workers 0 and 2, 0.8 on worker 1; b: none on worker 0, frozen on workers 1 and 2"
        );
    }

    #[test]
    fn digests_see_where_a_setting_ends() {
        let digest = |all: &[(&str, &str)]| digest(&settings(all));
        assert_ne!(digest(&[("ab", "c")]), digest(&[("a", "bc")]));
        assert_ne!(digest(&[("a", "b"), ("c", "d")]), digest(&[("c", "d"), ("a", "b")]));
    }

    #[test]
    fn long_lists_and_values_are_cut() {
        let of = |worker: usize| -> Settings {
            (0..10).map(|n| (format!("s{n}"), format!("{worker}{}", "ä".repeat(300)))).collect()
        };
        let text = differences(&[of(0), of(1)]).unwrap();
        assert!(text.ends_with("; and 4 more") && text.chars().count() < 6 * 2 * 230, "{text}");
        let one_of_many: Vec<Settings> =
            (0..20).map(|n| settings(&[("s", if n == 3 { "1" } else { "0" })])).collect();
        assert_eq!(
            differences(&one_of_many).unwrap(),
            "s: 0 on workers 0, 1, 2, 4, 5, 6 and 13 more, 1 on worker 3"
        );
    }
}
