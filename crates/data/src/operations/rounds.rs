//! [`Rounds`]: the passes of several datasets that are read in any order.

/// A counter of rounds over several repeated datasets. A round is complete when each dataset that has not ended has
/// completed a pass in it, or was not picked during a complete pass over the choices. The smallest number of
/// completed passes of all datasets cannot be used instead, because a dataset may be read for many passes, and then
/// not for a long time.
pub(super) struct Rounds {
    /// The number of complete rounds.
    pub(super) complete: usize,
    datasets: Vec<InRound>,
    /// The number of complete passes over the choices when the first element of the round was read.
    choices: Option<usize>,
}

/// A dataset in the current round.
#[derive(Clone, Default)]
struct InRound {
    /// The number of complete passes over the dataset when the round began.
    began: usize,
    /// The number of complete passes over the dataset when an element was last read.
    passes: usize,
    /// Whether an element was read in the round.
    picked: bool,
}

impl Rounds {
    pub(super) fn new(datasets: usize) -> Self {
        Self { complete: 0, datasets: vec![InRound::default(); datasets], choices: None }
    }

    /// Records that an element of dataset `picked` was read, after which `passes` passes over it and `choices` over the
    /// choices are complete. `open` contains, for each dataset, whether it may have more elements.
    pub(super) fn taken(&mut self, picked: usize, passes: usize, choices: usize, open: &[bool]) {
        let Some(dataset) = self.datasets.get_mut(picked) else { return };
        (dataset.passes, dataset.picked) = (passes, true);
        let began = *self.choices.get_or_insert(choices);
        if passes == dataset.began && choices == began {
            return;
        }
        // The first of two passes over the choices may have begun before the round.
        let chosen = choices.saturating_sub(began) >= 2;
        let read = |dataset: &InRound| dataset.passes > dataset.began || chosen && !dataset.picked;
        if self.datasets.iter().zip(open).all(|(dataset, open)| !open || read(dataset)) {
            self.complete += 1;
            self.choices = None;
            for dataset in &mut self.datasets {
                (dataset.began, dataset.picked) = (dataset.passes, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of complete rounds after elements of two datasets, given as index and complete passes.
    fn complete(
        elements: impl IntoIterator<Item = (usize, usize)>,
        choices: impl Fn(usize) -> usize,
    ) -> usize {
        let mut rounds = Rounds::new(2);
        for (at, (picked, passes)) in elements.into_iter().enumerate() {
            rounds.taken(picked, passes, choices(at), &[true; 2]);
        }
        rounds.complete
    }

    #[test]
    fn each_dataset_is_read_once_in_a_round() {
        assert_eq!(complete((0..100).map(|i| (i % 2, i / 2)), |_| 0), 49);
        // One dataset for long, then the other.
        assert_eq!(complete((0..100).map(|i| (0, i)).chain((1..100).map(|i| (1, i))), |_| 0), 1);
    }

    #[test]
    fn a_dataset_that_is_not_chosen_in_a_pass_over_the_choices_does_not_count() {
        assert_eq!(complete((0..100).map(|i| (0, i)), |_| 0), 0);
        assert_eq!(complete((0..101).map(|i| (0, i)), |at| at), 33);
        // It is chosen after all.
        assert_eq!(complete((0..90).map(|i| (usize::from(i % 3 == 0), 0)), |at| at / 30), 0);
    }

    #[test]
    fn a_dataset_that_has_ended_does_not_count() {
        let mut rounds = Rounds::new(2);
        rounds.taken(1, 0, 0, &[true; 2]);
        (0..50).for_each(|passes| rounds.taken(0, passes, 0, &[true, false]));
        assert_eq!(rounds.complete, 49);
    }
}
