//! Decides which variable has drifted, and on which workers, from the checksums of all workers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The checksum of a variable on one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct VariableChecksum {
    /// The sequence number of the variable in its strategy, in the order of creation.
    pub(super) id: u64,
    pub(super) name: String,
    /// The dtype and shape, as text.
    pub(super) value: String,
    pub(super) sum: u32,
}

/// A variable that has drifted.
#[derive(Debug, PartialEq)]
pub(super) struct Drift {
    pub(super) variable: String,
    /// The workers whose value differs from the majority's; all workers if no value has a majority.
    pub(super) workers: Vec<usize>,
    /// The description of the difference, for an error message.
    pub(super) text: String,
}

/// Returns the first variable, in the order of creation, that differs between workers. Variables that a worker lacks,
/// or has with a different name, dtype or shape, are skipped. `all` contains the checksums of each worker, sorted by
/// id.
pub(super) fn find_drift(all: &[Vec<VariableChecksum>]) -> Option<Drift> {
    let (first, others) = all.split_first()?;
    let mut drifted = first.iter().filter_map(|sum| {
        let same = |theirs: &&VariableChecksum| (&theirs.name, &theirs.value) == (&sum.name, &sum.value);
        let find = |theirs: &Vec<VariableChecksum>| {
            let found = theirs.binary_search_by_key(&sum.id, |theirs| theirs.id).ok()?;
            theirs.get(found).filter(same).map(|theirs| theirs.sum)
        };
        let theirs: Option<Vec<u32>> = others.iter().map(find).collect();
        let sums: Vec<u32> = std::iter::once(sum.sum).chain(theirs?).collect();
        sums.iter().any(|other| *other != sum.sum).then_some((sum, sums))
    });
    let (sum, sums) = drifted.next()?;
    let number = 1 + drifted.count();
    let mut holders: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (worker, sum) in sums.iter().enumerate() {
        holders.entry(*sum).or_default().push(worker);
    }
    let most = holders.values().find(|workers| 2 * workers.len() > sums.len());
    let differs = |worker: &usize| most.is_none_or(|most| !most.contains(worker));
    let workers: Vec<usize> = (0..sums.len()).filter(differs).collect();
    let what = match number {
        1 => format!("variable {} ({})", sum.name, sum.value),
        more => format!("variable {} ({}), the first of {more} that differ,", sum.name, sum.value),
    };
    let text = match most {
        Some(most) => {
            let others = match most.len() {
                1 => "that of the other one".to_string(),
                more => format!("that of the other {more}"),
            };
            format!("{what} on {} is not {others}", in_words(&workers))
        }
        None => {
            let mut groups: Vec<_> = holders.into_values().collect();
            groups.sort();
            let groups: Vec<_> = groups.iter().map(|workers| in_words(workers)).collect();
            format!("{what} is not the same on {}, and no value is that of most", groups.join(" as on "))
        }
    };
    Some(Drift { variable: sum.name.clone(), workers, text })
}

/// Formats a list of workers, such as `worker 1` or `workers 1, 2 and 5`. Shortens long lists.
fn in_words(workers: &[usize]) -> String {
    const SHOWN: usize = 8;
    let numbers = |some: &[usize]| some.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match workers {
        [] => "no worker".into(),
        [one] => format!("worker {one}"),
        many if many.len() > SHOWN => {
            format!("workers {} and {} more", numbers(&many[..SHOWN]), many.len() - SHOWN)
        }
        [some @ .., last] => format!("workers {} and {last}", numbers(some)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(id: u64, name: &str, sum: u32) -> VariableChecksum {
        VariableChecksum { id, name: name.into(), value: "float32[2]".into(), sum }
    }

    /// Decides on one variable with these checksums.
    fn judged(sums: &[u32]) -> Option<(Vec<usize>, String)> {
        let all: Vec<_> = sums.iter().map(|one| vec![sum(1, "w", *one)]).collect();
        find_drift(&all).map(|drifted| (drifted.workers, drifted.text))
    }

    #[test]
    fn who_differs_from_most_is_named_and_all_where_there_is_no_most() {
        assert_eq!(judged(&[7, 7, 7]), None);
        assert_eq!(judged(&[7]), None);
        assert_eq!(find_drift(&[]), None);
        let cases: [(&[u32], &[usize], &str); 6] = [
            (&[7, 8], &[0, 1], "is not the same on worker 0 as on worker 1, and no value is that of most"),
            (&[7, 8, 7], &[1], "on worker 1 is not that of the other 2"),
            (&[8, 7, 7], &[0], "on worker 0 is not that of the other 2"),
            (&[8, 7, 7, 9, 7], &[0, 3], "on workers 0 and 3 is not that of the other 3"),
            (
                &[8, 7, 7, 8],
                &[0, 1, 2, 3],
                "is not the same on workers 0 and 3 as on workers 1 and 2, and no value is that of most",
            ),
            (
                &[1, 2, 3],
                &[0, 1, 2],
                "is not the same on worker 0 as on worker 1 as on worker 2, and no value is that of most",
            ),
        ];
        for (sums, workers, text) in cases {
            assert_eq!(judged(sums), Some((workers.to_vec(), format!("variable w (float32[2]) {text}"))));
        }
        let mut many = vec![7; 64];
        many[10..20].fill(8);
        let (workers, text) = judged(&many).unwrap();
        assert_eq!(workers, (10..20).collect::<Vec<_>>());
        assert!(text.contains("on workers 10, 11, 12, 13, 14, 15, 16, 17 and 2 more is not"), "{text}");
    }

    #[test]
    fn the_first_created_variable_is_named_and_those_not_on_all_workers_are_omitted() {
        let mine = vec![sum(1, "b", 1), sum(2, "only here", 1), sum(5, "z", 1), sum(6, "a", 1)];
        let other_shape = VariableChecksum { value: "float32[3]".into(), ..sum(1, "b", 9) };
        let theirs = vec![other_shape, sum(5, "z", 2), sum(6, "a", 2), sum(7, "only there", 1)];
        let drifted = find_drift(&[mine.clone(), theirs, mine]).unwrap();
        assert_eq!((drifted.variable.as_str(), drifted.workers), ("z", vec![1]));
        let text =
            "variable z (float32[2]), the first of 2 that differ, on worker 1 is not that of the other 2";
        assert_eq!(drifted.text, text);
    }
}
