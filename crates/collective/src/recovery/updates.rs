//! The updates of the weights on a worker, and the point from which it continues after an interrupted step.

use serde::{Deserialize, Serialize};

/// The counters that are equal on all workers, and that are transferred with the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The number of updates of the weights so far.
    pub updates: u64,
    /// The number of writes to variables by the program itself, if it has an optimizer.
    pub written: u64,
    /// The maximum number of updates in one step so far.
    pub max_in_step: u64,
    /// The maximum number of updates between two steps so far.
    pub max_between_steps: u64,
    /// The number of steps so far.
    pub steps: u64,
    /// The number of variables.
    pub variables: u64,
    /// The number of optimizers.
    pub optimizers: u64,
}

impl Counters {
    /// Returns the progress of the weights: the numbers of updates and of writes by the program.
    pub fn progress(&self) -> (u64, u64) {
        (self.updates, self.written)
    }
}

/// A counter of the weights' updates, which knows in which step or between which steps they were made.
///
/// ```
/// use distribute_collective::recovery::Updates;
///
/// let mut updates = Updates::default();
/// updates.begin(0);
/// updates.record_update();
/// updates.end();
/// updates.begin(1); // The second step, which is interrupted: it is made again.
/// assert_eq!(updates.rewind(), Ok(Some(1)));
/// assert_eq!(updates.count(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Updates {
    /// The number of updates: by all optimizers, or by the program if there is none.
    count: u64,
    /// The number of writes to variables by the program itself, if it has an optimizer.
    written: u64,
    /// The numbers of updates and of earlier steps at the beginning of the first step after the last update.
    anchor: Option<(u64, u64)>,
    /// The beginning of the current group of updates; `None` between groups.
    since: Option<Since>,
    /// The maximum number of updates in one step so far.
    max_in_step: u64,
    /// The maximum number of updates between two steps so far.
    max_between_steps: u64,
}

/// The beginning of a group of updates, with the number of earlier updates.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// A step that has not completed successfully.
    Step(u64),
    /// The time between a step with updates and the next step.
    Between(u64),
}

/// An error: a step, or the time between two steps, was interrupted after some of its updates were applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count}{} updates {} were complete when it was interrupted",
    if *total == 0 { String::new() } else { format!(" of the {total}") },
    if *in_step { "of a step" } else { "between two steps" }
)]
pub struct Torn {
    /// The number of updates that were applied.
    pub count: u64,
    /// The total number of updates in the group; 0 if it is unknown, because no group of its kind has completed.
    pub total: u64,
    /// Whether the updates belong to a step. Otherwise they were made between two steps.
    pub in_step: bool,
}

impl Updates {
    /// Creates the counter of a worker that continues from the given counters.
    pub fn after(counters: Counters) -> Self {
        let Counters { updates: count, written, max_in_step, max_between_steps, .. } = counters;
        Self { count, written, max_in_step, max_between_steps, ..Self::default() }
    }

    /// Returns the number of updates.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the counters of updates and writes. Steps, variables and optimizers are counted elsewhere, and are 0 in
    /// the result.
    pub fn counters(&self) -> Counters {
        let Self { count: updates, written, max_in_step, max_between_steps, .. } = *self;
        Counters { updates, written, max_in_step, max_between_steps, ..Counters::default() }
    }

    /// Begins a step. `steps` is the number of steps before it.
    pub fn begin(&mut self, steps: u64) {
        let count = self.count;
        if let Some(Since::Between(before)) = self.since {
            self.max_between_steps = self.max_between_steps.max(count - before);
        }
        if self.anchor.is_none_or(|(before, _)| before != count) {
            self.anchor = Some((count, steps));
        }
        self.since = Some(Since::Step(count));
    }

    /// Counts an update by an optimizer.
    pub fn record_update(&mut self) {
        self.count += 1;
    }

    /// Counts a write by the program to a variable that is the same on all workers.
    ///
    /// Without optimizers, such writes update the weights. With an optimizer, the variable is other state, for example
    /// an average. The number of such writes then shows which worker has progressed furthest, but not which batches
    /// have updated the weights.
    pub fn record_write(&mut self, optimizers: u64) {
        match optimizers {
            0 => self.count += 1,
            _ => self.written += 1,
        }
    }

    /// Ends the current step, which has succeeded.
    pub fn end(&mut self) {
        if let Some(Since::Step(before)) = self.since {
            self.max_in_step = self.max_in_step.max(self.count - before);
            self.since = Some(Since::Between(self.count));
        }
    }

    /// Returns to the point after the last update. If steps have begun since then, returns the number of steps before
    /// the first of them, and otherwise `None`.
    ///
    /// # Errors
    /// Returns [`Torn`] if only some of the updates of a group have been applied, or if their total number is unknown.
    /// All later calls return the same error.
    pub fn rewind(&mut self) -> Result<Option<u64>, Torn> {
        let (before, total, in_step) = match self.since {
            None => (self.count, 0, true),
            Some(Since::Step(before)) => (before, self.max_in_step, true),
            Some(Since::Between(before)) => (before, self.max_between_steps, false),
        };
        let count = self.count - before;
        // The total is unknown until the updates of a step have been made once.
        if count > 0 && (count < total || total == 0) {
            return Err(Torn { count, total, in_step });
        }
        self.since = None;
        let anchor = self.anchor.take().filter(|(before, _)| *before == self.count);
        Ok(anchor.map(|(_, steps)| steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-42
    #[test]
    fn half_a_step_stays_one_until_the_numbers_of_another_are_taken_over() {
        let mut updates = Updates::default();
        updates.begin(0);
        updates.record_update();
        assert_eq!(
            updates.rewind(),
            Err(Torn { count: 1, total: 0, in_step: true }),
            "how many the first step makes is not known"
        );
        updates.record_update();
        updates.end();
        updates.begin(1);
        updates.record_update();
        for _ in 0..2 {
            let error = updates.rewind().unwrap_err();
            assert_eq!(
                error.to_string(),
                "1 of the 2 updates of a step were complete when it was interrupted"
            );
        }
        let counters = Counters { updates: 2, max_in_step: 2, steps: 1, ..Counters::default() };
        assert_eq!(Updates::after(counters).rewind(), Ok(None));
    }

    #[test]
    fn steps_without_an_update_are_made_again() {
        let mut updates = Updates::default();
        updates.begin(0);
        updates.record_update();
        updates.end();
        for steps in 1..4 {
            updates.begin(steps);
            updates.end();
        }
        assert_eq!(updates.rewind(), Ok(Some(1)));
        assert_eq!(updates.rewind(), Ok(None));
    }

    // INV-42
    #[test]
    fn updates_between_steps_belong_together_too() {
        let mut updates = Updates::default();
        let step = |updates: &mut Updates, steps| {
            updates.begin(steps);
            updates.end();
        };
        step(&mut updates, 0);
        updates.record_write(0);
        updates.rewind().expect_err("how many there are between steps is not known");
        updates.record_write(0);
        step(&mut updates, 1);
        updates.rewind().unwrap();
        step(&mut updates, 1);
        updates.record_write(0);
        let error = updates.rewind().unwrap_err().to_string();
        assert!(error.contains("1 of the 2 updates between two steps"), "{error}");
        updates.record_write(0);
        updates.rewind().unwrap();
        assert_eq!(updates.count(), 4);
    }

    // INV-42
    #[test]
    fn writes_without_an_optimizer_are_no_updates() {
        let mut updates = Updates::default();
        for write in 1..3 {
            updates.begin(write - 1);
            updates.record_update();
            updates.end();
            updates.record_write(1);
            assert_eq!(updates.counters().progress(), (write, write));
            updates.rewind().unwrap();
        }
    }
}
