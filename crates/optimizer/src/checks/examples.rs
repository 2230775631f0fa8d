//! Whether the numbers of examples that replicas give go with the rows of their pieces.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The verdict about the numbers of examples in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// They are in proportion to the rows.
    Proportional,
    /// They are one number, whatever the rows.
    Constant,
    /// They count something else than rows, such as tokens without padding.
    Other,
}

/// Compares the numbers of examples and of rows of the per-replica batches that have examples.
fn verdict(pieces: impl Iterator<Item = (usize, usize)>) -> Verdict {
    let mut pieces = pieces.filter(|(examples, rows)| *examples > 0 && *rows > 0);
    let Some((examples, rows)) = pieces.next() else { return Verdict::Proportional };
    let (mut proportional, mut constant) = (true, true);
    for (others, their_rows) in pieces {
        proportional &= others as u128 * rows as u128 == examples as u128 * their_rows as u128;
        constant &= others == examples;
    }
    match (proportional, constant) {
        (true, _) => Verdict::Proportional,
        (false, true) => Verdict::Constant,
        (false, false) => Verdict::Other,
    }
}

/// Watches the steps of an optimizer until something is certain.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    done: AtomicBool,
    /// The most rows of any step so far.
    most_rows: AtomicUsize,
}

impl Watch {
    /// Returns the warning after a step with these numbers of examples and rows, at most once.
    ///
    /// Tokens differ in number from replica to replica also where rows don't. A number that is the same on pieces of
    /// different sizes counts neither, unless there are more of it than a batch has rows: then batches are filled up to
    /// a number of tokens.
    pub(crate) fn warning(&self, pieces: impl Iterator<Item = (usize, usize)> + Clone) -> Option<String> {
        if self.done.load(Ordering::Relaxed) {
            return None;
        }
        let rows = pieces.clone().fold(0, |sum: usize, (_, rows)| sum.saturating_add(rows));
        let most = self.most_rows.fetch_max(rows, Ordering::Relaxed).max(rows);
        let verdict = verdict(pieces.clone());
        if verdict == Verdict::Proportional {
            return None;
        }
        self.done.store(true, Ordering::Relaxed);
        let examples = pieces.clone().map(|(examples, _)| examples).find(|examples| *examples > 0)?;
        if verdict == Verdict::Other || examples > most {
            return None;
        }
        let rows: Vec<String> = pieces.map(|(_, rows)| rows.to_string()).collect();
        Some(format!(
            "n is {examples} on every replica, but their pieces of the batch have {} rows; n is the number of examples of \
             this replica's piece, over which its loss is a mean, and its gradients weigh by it: give labels.dim(0)?, or \
             the number of tokens that the loss counts",
            rows.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(steps: &[&[(usize, usize)]]) -> Vec<bool> {
        let watch = Watch::default();
        steps.iter().map(|pieces| watch.warning(pieces.iter().copied()).is_some()).collect()
    }

    #[test]
    fn one_number_for_pieces_of_different_sizes_is_warned_of_once() {
        assert_eq!(steps(&[&[(2, 2), (2, 2)], &[(2, 2), (2, 1)], &[(2, 2), (2, 1)]]), [false, true, false]);
        assert_eq!(steps(&[&[(1, 2), (1, 1), (1, 1)]]), [true]);
        // That of the global batch, of an earlier step.
        assert_eq!(steps(&[&[(8, 4), (8, 4)], &[(8, 2), (8, 1)]]), [false, true]);
        let watch = Watch::default();
        let text = watch.warning([(2, 2), (2, 1)].into_iter()).unwrap();
        assert!(text.contains("n is 2 on every replica") && text.contains("have 2, 1 rows"), "{text}");
    }

    #[test]
    fn rows_and_tokens_are_not() {
        assert_eq!(steps(&[&[(2, 2), (1, 1)], &[(1, 1), (0, 0)], &[(0, 2), (2, 2)]]), [false; 3]);
        // Sequences of one length.
        assert_eq!(steps(&[&[(64, 2), (32, 1)]]), [false]);
        // Padding left out; after that, equal numbers are chance.
        assert_eq!(steps(&[&[(37, 2), (41, 2)], &[(3, 2), (3, 1)]]), [false; 2]);
        // Filled up to a number of tokens.
        assert_eq!(steps(&[&[(4096, 7), (4096, 5)]]), [false]);
        // One replica alone weighs nothing.
        assert_eq!(steps(&[&[(4, 4)], &[(4, 1)]]), [false; 2]);
        assert_eq!(steps(&[&[], &[(usize::MAX, usize::MAX), (usize::MAX, usize::MAX)]]), [false; 2]);
    }
}
