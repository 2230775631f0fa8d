//! A check that the numbers of examples are consistent with the numbers of rows in the per-replica batches.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The relation between the number of examples and the number of rows on each replica in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proportions {
    /// The number of examples is proportional to the number of rows.
    Proportional,
    /// All replicas pass the same number of examples, although they have different numbers of rows.
    Constant,
    /// Examples are not rows but, for example, tokens without padding.
    Other,
}

/// Determines the relation between the number of examples and the number of rows, which `batches` contains for each
/// batch. Batches without examples or rows are ignored.
fn compare(batches: impl Iterator<Item = (usize, usize)>) -> Proportions {
    let mut batches = batches.filter(|(examples, rows)| *examples > 0 && *rows > 0);
    let Some((examples, rows)) = batches.next() else { return Proportions::Proportional };
    let (mut proportional, mut constant) = (true, true);
    for (others, their_rows) in batches {
        proportional &= others as u128 * rows as u128 == examples as u128 * their_rows as u128;
        constant &= others == examples;
    }
    match (proportional, constant) {
        (true, _) => Proportions::Proportional,
        (false, true) => Proportions::Constant,
        (false, false) => Proportions::Other,
    }
}

/// A check that an optimizer's numbers of examples fit the rows of its batches. The check stops as soon as its result
/// is certain.
#[derive(Debug, Default)]
pub struct ExamplesCheck {
    done: AtomicBool,
    /// The largest number of rows that all replicas together had in a step so far.
    most_rows: AtomicUsize,
}

impl ExamplesCheck {
    /// Checks a step. Returns a warning, at most once. `batches` contains the number of examples and the number of rows
    /// of each batch.
    ///
    /// The number of tokens differs between replicas even if the number of rows does not. If all replicas pass the same
    /// number although their numbers of rows differ, that number is probably wrong: it counts neither rows nor tokens.
    /// The exception is a number larger than the rows of any step so far, because such batches are probably filled up
    /// to a fixed number of tokens.
    pub fn warning(&self, batches: impl Iterator<Item = (usize, usize)> + Clone) -> Option<String> {
        if self.done.load(Ordering::Relaxed) {
            return None;
        }
        let rows = batches.clone().fold(0, |sum: usize, (_, rows)| sum.saturating_add(rows));
        let most = self.most_rows.fetch_max(rows, Ordering::Relaxed).max(rows);
        let found = compare(batches.clone());
        if found == Proportions::Proportional {
            return None;
        }
        self.done.store(true, Ordering::Relaxed);
        let examples = batches.clone().map(|(examples, _)| examples).find(|examples| *examples > 0)?;
        if found == Proportions::Other || examples > most {
            return None;
        }
        let rows: Vec<String> = batches.map(|(_, rows)| rows.to_string()).collect();
        Some(format!(
            "n is {examples} on every replica, but their per-replica batches have {} rows; n is the number of \
             examples that this replica's loss is a mean over, and the weight of its gradients: pass labels.dim(0)?, \
             or the number of tokens that the loss counts",
            rows.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(steps: &[&[(usize, usize)]]) -> Vec<bool> {
        let watch = ExamplesCheck::default();
        steps.iter().map(|batches| watch.warning(batches.iter().copied()).is_some()).collect()
    }

    #[test]
    fn one_number_for_pieces_of_different_sizes_is_warned_of_once() {
        assert_eq!(steps(&[&[(2, 2), (2, 2)], &[(2, 2), (2, 1)], &[(2, 2), (2, 1)]]), [false, true, false]);
        assert_eq!(steps(&[&[(1, 2), (1, 1), (1, 1)]]), [true]);
        // The number of the global batch, in an earlier step.
        assert_eq!(steps(&[&[(8, 4), (8, 4)], &[(8, 2), (8, 1)]]), [false, true]);
        let watch = ExamplesCheck::default();
        let text = watch.warning([(2, 2), (2, 1)].into_iter()).unwrap();
        assert!(text.contains("n is 2 on every replica") && text.contains("have 2, 1 rows"), "{text}");
    }

    #[test]
    fn rows_and_tokens_are_not() {
        assert_eq!(steps(&[&[(2, 2), (1, 1)], &[(1, 1), (0, 0)], &[(0, 2), (2, 2)]]), [false; 3]);
        // Sequences of one length.
        assert_eq!(steps(&[&[(64, 2), (32, 1)]]), [false]);
        // Padding is left out; equal numbers after that are a coincidence.
        assert_eq!(steps(&[&[(37, 2), (41, 2)], &[(3, 2), (3, 1)]]), [false; 2]);
        // Filled up to a number of tokens.
        assert_eq!(steps(&[&[(4096, 7), (4096, 5)]]), [false]);
        // With one replica, weights have no effect.
        assert_eq!(steps(&[&[(4, 4)], &[(4, 1)]]), [false; 2]);
        assert_eq!(steps(&[&[], &[(usize::MAX, usize::MAX), (usize::MAX, usize::MAX)]]), [false; 2]);
    }
}
