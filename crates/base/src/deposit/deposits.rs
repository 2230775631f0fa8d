//! The detection of complete gradients: after the same number of writes as in the step before. Users of this must be
//! able to revoke what they did.

/// The deposits of one step, and what is known of the step before.
#[derive(Debug, Default)]
pub(super) struct Deposits {
    /// The number of writes of each variable.
    counts: Vec<u32>,
    /// The number of writes of each variable in the last step; 0 if it is unknown or writes were missing.
    expected: Vec<u32>,
    /// The position of the latest write of each variable.
    latest: Vec<u32>,
    made: u32,
}

impl Deposits {
    /// Begins a step with this number of variables.
    pub(super) fn begin(&mut self, variables: usize) {
        self.expected.resize(variables, 0);
        for kept in [&mut self.counts, &mut self.latest] {
            kept.clear();
            kept.resize(variables, 0);
        }
        self.made = 0;
    }

    /// A variable's gradient has been written, or added to. Says whether it is complete now, by all that is known.
    pub(super) fn made(&mut self, number: usize) -> bool {
        self.made += 1;
        self.latest[number] = self.made;
        self.counts[number] += 1;
        self.counts[number] == self.expected[number]
    }

    /// The step ends. To the `joined` variables has been added what no layer deposits.
    pub(super) fn end(&mut self, joined: impl IntoIterator<Item = usize>) {
        self.expected.clone_from(&self.counts);
        joined.into_iter().for_each(|number| self.expected[number] = 0);
    }

    /// Returns the order in which variables were completed in the last step. Variables without a known order come
    /// last.
    pub(super) fn order(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..self.latest.len() as u32).collect();
        let turn = |number: &u32| {
            let at = *number as usize;
            (self.expected[at] == 0, self.latest[at])
        };
        numbers.sort_by_key(turn);
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_is_complete_after_as_many_deposits_as_in_the_step_before() {
        let mut deposits = Deposits::default();
        let mut step = |made: &[usize], joined: &[usize]| {
            deposits.begin(4);
            let complete = made.iter().map(|number| deposits.made(*number)).collect::<Vec<_>>();
            deposits.end(joined.iter().copied());
            (complete, deposits.order())
        };
        // Of the first step nothing is known. Variable 3 has no deposit, variable 1 two.
        assert_eq!(step(&[2, 1, 0, 1], &[]), (vec![false; 4], vec![2, 0, 1, 3]));
        assert_eq!(step(&[1, 2, 1, 0], &[]).0, [false, true, true, true]);
        // One more than was expected, which the caller has to notice; then that many are.
        assert_eq!(step(&[2, 2, 1, 1], &[]).0, [true, false, false, true]);
        assert_eq!(step(&[2, 2, 1, 1], &[2]).0, [false, true, false, true]);
        // What candle has added comes after all deposits.
        assert_eq!(step(&[2, 2, 1, 1], &[2]), (vec![false, false, false, true], vec![1, 0, 3, 2]));
    }
}
