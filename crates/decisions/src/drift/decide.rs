//! Decides which variables have drifted, and on which workers, from the checksums of all workers.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The checksum of a variable on one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariableChecksum {
    /// The sequence number of the variable in its strategy, in the order of creation.
    pub id: u64,
    /// The name of the variable.
    pub name: String,
    /// The dtype and shape, as text.
    pub value: String,
    /// The checksum of all elements.
    pub sum: u32,
}

/// The variables that differ between workers although they must be equal.
#[derive(Debug, PartialEq)]
pub struct Drift {
    /// The names of the variables that differ, in the order of creation. There is at least one.
    pub variables: Vec<String>,
    /// The workers on which the value of a variable differs from the majority's; all workers if no value of a variable
    /// has a majority.
    pub workers: Vec<usize>,
    /// The description of the difference, for an error message.
    pub text: String,
}

/// The checksums of a variable that differs.
struct Differing<'a> {
    of_first: &'a VariableChecksum,
    /// The groups of workers with equal checksums, sorted by the first worker of each group.
    holders: Vec<Vec<usize>>,
    /// The number of workers.
    workers: usize,
}

/// Returns the variables that differ between workers. Variables that a worker lacks, or has with a different name,
/// dtype or shape, are skipped. `all` contains the checksums of each worker, sorted by id. Returns `None` if no
/// variable differs.
pub fn find_drift(all: &[Vec<VariableChecksum>]) -> Option<Drift> {
    let (first, others) = all.split_first()?;
    let differing = first.iter().filter_map(|sum| {
        let same = |theirs: &&VariableChecksum| (&theirs.name, &theirs.value) == (&sum.name, &sum.value);
        let find = |theirs: &Vec<VariableChecksum>| {
            let found = theirs.binary_search_by_key(&sum.id, |theirs| theirs.id).ok()?;
            theirs.get(found).filter(same).map(|theirs| theirs.sum)
        };
        let theirs: Option<Vec<u32>> = others.iter().map(find).collect();
        Differing::new(sum, std::iter::once(sum.sum).chain(theirs?))
    });
    let differing: Vec<_> = differing.collect();
    let (one, rest) = differing.split_first()?;
    let named = one.workers_that_differ();
    let of_all: BTreeSet<usize> = differing.iter().flat_map(Differing::workers_that_differ).collect();
    let elsewhere: Vec<usize> = of_all.iter().copied().filter(|worker| !named.contains(worker)).collect();
    let mut text = one.describe(&rest.iter().map(|other| &*other.of_first.name).collect::<Vec<_>>());
    if !elsewhere.is_empty() {
        text += &format!("; others of them differ on {}", in_words(&elsewhere));
    }
    let variables = differing.iter().map(|one| one.of_first.name.clone()).collect();
    Some(Drift { variables, workers: of_all.into_iter().collect(), text })
}

impl<'a> Differing<'a> {
    /// Groups the workers by the checksums that they have, in the order of ranks. Returns `None` if all checksums are
    /// equal.
    fn new(of_first: &'a VariableChecksum, sums: impl Iterator<Item = u32>) -> Option<Self> {
        let (mut holders, mut workers): (BTreeMap<u32, Vec<usize>>, _) = (BTreeMap::new(), 0);
        for (worker, sum) in sums.enumerate() {
            holders.entry(sum).or_default().push(worker);
            workers += 1;
        }
        let mut holders: Vec<_> = holders.into_values().collect();
        holders.sort();
        (holders.len() > 1).then_some(Self { of_first, holders, workers })
    }

    /// Returns the workers with the value that more than half of all workers have; `None` if there is no such value.
    fn majority(&self) -> Option<&Vec<usize>> {
        self.holders.iter().find(|workers| 2 * workers.len() > self.workers)
    }

    /// Returns the workers whose value is not that of the majority; all workers if there is no majority.
    fn workers_that_differ(&self) -> Vec<usize> {
        let most = self.majority();
        (0..self.workers).filter(|worker| most.is_none_or(|most| !most.contains(worker))).collect()
    }

    /// Describes the difference. `others` are the names of the other variables that differ.
    fn describe(&self, others: &[&str]) -> String {
        const SHOWN: usize = 5;
        let VariableChecksum { name, value, .. } = self.of_first;
        let what = match others.len() {
            0 => format!("variable {name} ({value})"),
            more if more > SHOWN => {
                let (shown, rest) = (others[..SHOWN].join(", "), more - SHOWN);
                format!(
                    "variable {name} ({value}), the first of {} that differ ({shown} and {rest} more),",
                    more + 1
                )
            }
            more => {
                let shown = others.join(", ");
                format!("variable {name} ({value}), the first of {} that differ (then {shown}),", more + 1)
            }
        };
        match self.majority() {
            Some(most) => {
                let others = match most.len() {
                    1 => "that of the other one".to_string(),
                    more => format!("that of the other {more}"),
                };
                format!("{what} on {} is not {others}", in_words(&self.workers_that_differ()))
            }
            None => {
                let groups: Vec<_> = self.holders.iter().map(|workers| in_words(workers)).collect();
                format!("{what} is not the same on {}, and no value is that of most", groups.join(" as on "))
            }
        }
    }
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

    /// Returns the workers and the text of the drift of one variable with these checksums, one for each worker.
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
        assert_eq!((&drifted.variables[..], drifted.workers), (&["z".into(), "a".into()][..], vec![1]));
        let text = "variable z (float32[2]), the first of 2 that differ (then a), on worker 1 is not that of the other 2";
        assert_eq!(drifted.text, text);
    }

    #[test]
    fn workers_of_all_variables_are_named_and_long_lists_are_cut() {
        // Worker 3 differs in the first of nine, and worker 1 in the others.
        let of = |worker: usize| -> Vec<VariableChecksum> {
            let differs = |id| (id == 0 && worker == 3) || (id > 0 && worker == 1);
            (0..9).map(|id| sum(id, &format!("v{id}"), u32::from(differs(id)))).collect()
        };
        let drifted = find_drift(&(0..5).map(of).collect::<Vec<_>>()).unwrap();
        assert_eq!(drifted.workers, [1, 3]);
        assert_eq!(drifted.variables.len(), 9);
        let text = "variable v0 (float32[2]), the first of 9 that differ (v1, v2, v3, v4, v5 and 3 more), on worker 3 \
                    is not that of the other 4; others of them differ on worker 1";
        assert_eq!(drifted.text, text);
        // Without a majority for one of them, no worker is known to be right.
        let of = |worker: usize| vec![sum(1, "a", u32::from(worker == 0)), sum(2, "b", worker as u32)];
        assert_eq!(find_drift(&(0..3).map(of).collect::<Vec<_>>()).unwrap().workers, [0, 1, 2]);
    }
}
