//! The list of all figures.

use super::figure::Figure;
use super::{
    all_reduce, child, coordinator, drift, empty_step, input, losses, products, scaling, servers, traffic,
    training, workers,
};

/// Returns all figures, in the order in which they are printed.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let mut all: Vec<Box<dyn Figure>> = Vec::new();
    all.extend(empty_step::figures());
    all.extend(all_reduce::figures());
    all.extend(traffic::figures());
    all.extend(training::figures());
    all.extend(products::figures());
    all.extend(scaling::figures());
    all.extend(input::figures());
    all.extend(child::figures());
    all.extend(losses::figures());
    all.extend(workers::figures());
    all.extend(drift::figures());
    all.extend(servers::figures());
    all.extend(coordinator::figures());
    all
}

#[cfg(test)]
mod tests {
    use super::super::figure::Effort;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_fit_the_table() {
        let names: Vec<_> = figures().iter().map(|f| f.about().name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| name.len() <= 26), "{names:?}");
    }

    #[test]
    fn a_round_gives_a_positive_number() {
        for figure in figures() {
            let name = figure.about().name;
            // Larger ones take minutes without optimization; a test's binary has no `--child`.
            let left_out = [
                "64MiB",
                "replicas",
                "scaling",
                "losses",
                "start",
                "memory",
                "tfrecord",
                "csv",
                "shuffle",
                "map",
                "2p",
                "processes",
                "drift",
                "servers",
                "coordinator",
            ];
            if left_out.iter().any(|part| name.contains(part)) {
                continue;
            }
            let value = figure.round(Effort { seconds: 1e-4 }).unwrap().value;
            assert!(value > 0. && value.is_finite(), "{}: {value}", figure.about().name);
        }
    }
}
