//! Detection of complete gradients. A gradient is considered complete after the same number of writes as in the
//! previous step. This may be wrong, so callers must be able to revoke actions based on it.

/// A tracker that counts the writes to each gradient in a step, and compares the counts with the previous step.
#[derive(Debug, Default)]
pub(super) struct ReadyTracker {
    /// The number of writes to each variable's gradient in this step.
    counts: Vec<u32>,
    /// The number of writes to each variable's gradient in the last step; 0 if it is unknown.
    expected: Vec<u32>,
    /// The sequence number of the latest write to each variable's gradient.
    latest: Vec<u32>,
    writes: u32,
}

impl ReadyTracker {
    /// Begins a step with the given number of variables.
    pub(super) fn begin(&mut self, variables: usize) {
        self.expected.resize(variables, 0);
        for kept in [&mut self.counts, &mut self.latest] {
            kept.clear();
            kept.resize(variables, 0);
        }
        self.writes = 0;
    }

    /// Records a write to a variable's gradient. Returns `true` if the gradient is probably complete.
    pub(super) fn record_write(&mut self, number: usize) -> bool {
        self.writes += 1;
        self.latest[number] = self.writes;
        self.counts[number] += 1;
        self.counts[number] == self.expected[number]
    }

    /// Ends the step. The gradients of the variables in `joined` contain contributions that no layer wrote, so their
    /// number of writes is unknown.
    pub(super) fn end(&mut self, joined: impl IntoIterator<Item = usize>) {
        self.expected.clone_from(&self.counts);
        joined.into_iter().for_each(|number| self.expected[number] = 0);
    }

    /// Returns the variables in the order in which their gradients were completed in the last step. Variables with an
    /// unknown order come last.
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
    fn a_gradient_is_complete_after_the_writes_of_the_previous_step() {
        let mut tracker = ReadyTracker::default();
        let mut step = |writes: &[usize], joined: &[usize]| {
            tracker.begin(4);
            let complete = writes.iter().map(|number| tracker.record_write(*number)).collect::<Vec<_>>();
            tracker.end(joined.iter().copied());
            (complete, tracker.order())
        };
        // Nothing is known in the first step. Variable 3 has no write, variable 1 has two.
        assert_eq!(step(&[2, 1, 0, 1], &[]), (vec![false; 4], vec![2, 0, 1, 3]));
        assert_eq!(step(&[1, 2, 1, 0], &[]).0, [false, true, true, true]);
        // One write more than was expected, which the caller has to detect; after that, this number is expected.
        assert_eq!(step(&[2, 2, 1, 1], &[]).0, [true, false, false, true]);
        assert_eq!(step(&[2, 2, 1, 1], &[2]).0, [false, true, false, true]);
        // Gradients that candle has added come after all writes.
        assert_eq!(step(&[2, 2, 1, 1], &[2]), (vec![false, false, false, true], vec![1, 0, 3, 2]));
    }
}
