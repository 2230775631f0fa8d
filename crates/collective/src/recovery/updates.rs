//! The updates of the weights on a worker, and the point from which it continues after an interrupted step.

use serde::{Deserialize, Serialize};

/// The counters that are the same on all workers, and transferred with a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// The number of updates of the weights.
    pub updates: u64,
    /// The number of times that a program with an optimizer has written variables itself.
    pub written: u64,
    /// The largest number of updates in one step.
    pub most: u64,
    /// The largest number of updates between two steps.
    pub most_between: u64,
    /// The number of steps.
    pub steps: u64,
    /// The number of variables.
    pub variables: u64,
    /// The number of optimizers.
    pub optimizers: u64,
}

impl Numbers {
    /// Returns the progress of the weights.
    pub fn progress(&self) -> (u64, u64) {
        (self.updates, self.written)
    }
}

/// The progress of the weights, and of the steps with them.
///
/// ```
/// use distribute_collective::recovery::Updates;
///
/// let mut updates = Updates::default();
/// updates.begin(0);
/// updates.count();
/// updates.end();
/// updates.begin(1); // The second step, which is interrupted: it is made again.
/// assert_eq!(updates.rewind(), Ok(Some(1)));
/// assert_eq!(updates.made(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Updates {
    /// The number of updates: by all optimizers, or by the program if there is none.
    made: u64,
    /// The number of times that a program with an optimizer has written variables itself.
    written: u64,
    /// The numbers of updates and steps when the first step since the last update began.
    anchor: Option<(u64, u64)>,
    /// The updates that belong together.
    since: Option<Since>,
    /// The largest number of updates of one step so far.
    most: u64,
    /// The largest number of updates between two steps so far.
    most_between: u64,
}

/// The number of updates when something began.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// A step that has not ended well.
    Step(u64),
    /// The time between a step that has updates and the next.
    Between(u64),
}

/// Some of the updates that belong together have been made, and others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{made}{} updates {} had been made when it was interrupted",
    if *most == 0 { String::new() } else { format!(" of the {most}") },
    if *in_step { "of a step" } else { "between two steps" }
)]
pub struct Torn {
    /// The number of updates so far.
    pub made: u64,
    /// The number of updates in all; 0 the first time, when it is not known.
    pub most: u64,
    /// Whether they are those of a step, or those between two.
    pub in_step: bool,
}

impl Updates {
    /// Creates the updates of a worker that continues from these counters.
    pub fn after(numbers: Numbers) -> Self {
        let Numbers { updates: made, written, most, most_between, .. } = numbers;
        Self { made, written, most, most_between, ..Self::default() }
    }

    /// Returns the number of updates.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Returns the counters that are kept here; steps, variables and optimizers are counted elsewhere.
    pub fn numbers(&self) -> Numbers {
        let Self { made: updates, written, most, most_between, .. } = *self;
        Numbers { updates, written, most, most_between, ..Numbers::default() }
    }

    /// Begins a step after this number of others.
    pub fn begin(&mut self, steps: u64) {
        let made = self.made;
        if let Some(Since::Between(before)) = self.since {
            self.most_between = self.most_between.max(made - before);
        }
        if self.anchor.is_none_or(|(before, _)| before != made) {
            self.anchor = Some((made, steps));
        }
        self.since = Some(Since::Step(made));
    }

    /// An optimizer has made an update.
    pub fn count(&mut self) {
        self.made += 1;
    }

    /// Counts that the program has written a variable that is the same on all workers. Without `optimizers`, this is
    /// how weights are updated. With one, it is other state, such as an average: it says which worker is furthest,
    /// and not which batches are in the weights.
    pub fn count_write(&mut self, optimizers: u64) {
        match optimizers {
            0 => self.made += 1,
            _ => self.written += 1,
        }
    }

    /// The step has ended well.
    pub fn end(&mut self) {
        if let Some(Since::Step(before)) = self.since {
            self.most = self.most.max(self.made - before);
            self.since = Some(Since::Between(self.made));
        }
    }

    /// Back to where the last update was made. Gives how many steps there were, where some were made since then.
    ///
    /// # Errors
    /// [`Torn`] if some of the updates that belong together have been made and others have not, however often this is
    /// called.
    pub fn rewind(&mut self) -> Result<Option<u64>, Torn> {
        let (before, most, in_step) = match self.since {
            None => (self.made, 0, true),
            Some(Since::Step(before)) => (before, self.most, true),
            Some(Since::Between(before)) => (before, self.most_between, false),
        };
        let made = self.made - before;
        // How many there are the first time is not known before they have been made.
        if made > 0 && (made < most || most == 0) {
            return Err(Torn { made, most, in_step });
        }
        self.since = None;
        let anchor = self.anchor.take().filter(|(before, _)| *before == self.made);
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
        updates.count();
        assert_eq!(
            updates.rewind(),
            Err(Torn { made: 1, most: 0, in_step: true }),
            "how many the first step makes is not known"
        );
        updates.count();
        updates.end();
        updates.begin(1);
        updates.count();
        for _ in 0..2 {
            let error = updates.rewind().unwrap_err();
            assert_eq!(
                error.to_string(),
                "1 of the 2 updates of a step had been made when it was interrupted"
            );
        }
        let numbers = Numbers { updates: 2, most: 2, steps: 1, ..Numbers::default() };
        assert_eq!(Updates::after(numbers).rewind(), Ok(None));
    }

    #[test]
    fn steps_without_an_update_are_made_again() {
        let mut updates = Updates::default();
        updates.begin(0);
        updates.count();
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
        updates.count_write(0);
        updates.rewind().expect_err("how many there are between steps is not known");
        updates.count_write(0);
        step(&mut updates, 1);
        updates.rewind().unwrap();
        step(&mut updates, 1);
        updates.count_write(0);
        let error = updates.rewind().unwrap_err().to_string();
        assert!(error.contains("1 of the 2 updates between two steps"), "{error}");
        updates.count_write(0);
        updates.rewind().unwrap();
        assert_eq!(updates.made(), 4);
    }

    // INV-42
    #[test]
    fn what_a_program_writes_beside_an_optimizer_is_no_update() {
        let mut updates = Updates::default();
        for write in 1..3 {
            updates.begin(write - 1);
            updates.count();
            updates.end();
            updates.count_write(1);
            assert_eq!(updates.numbers().progress(), (write, write));
            updates.rewind().unwrap();
        }
    }
}
