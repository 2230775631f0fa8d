//! How far a worker is with its updates of the weights, and from where it goes on when a step was interrupted.

use serde::{Deserialize, Serialize};

/// What is counted alike on all workers, and handed over with a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// How many updates of the weights have been made.
    pub updates: u64,
    /// How often a program with an optimizer has written variables by itself.
    pub written: u64,
    /// How many updates one step makes at most.
    pub most: u64,
    /// How many are made between two steps at most.
    pub most_between: u64,
    /// How many steps were made.
    pub steps: u64,
    /// How many variables have been made.
    pub variables: u64,
    /// How many optimizers have been made.
    pub optimizers: u64,
}

impl Numbers {
    /// How far the weights are.
    pub fn progress(&self) -> (u64, u64) {
        (self.updates, self.written)
    }
}

/// How far the weights are, and how far the steps were with them.
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
    /// How many updates have been made: by all optimizers, or, where there is none, by the program.
    made: u64,
    /// How often a program with an optimizer has written variables by itself.
    written: u64,
    /// When the first step since the last update began: how many updates and steps there were.
    anchor: Option<(u64, u64)>,
    /// Which updates belong together.
    since: Option<Since>,
    /// How many updates one step has made at most.
    most: u64,
    /// How many were made between a step and the next at most.
    most_between: u64,
}

/// How many updates there were when something began.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// A step that has not ended well.
    Step(u64),
    /// What comes between a step that has, and the next.
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
    /// How many have.
    pub made: u64,
    /// How many there are; 0 the first time, when that is not known.
    pub most: u64,
    /// Whether they are those of a step, or those between two.
    pub in_step: bool,
}

impl Updates {
    /// Those of a worker that goes on from these numbers.
    pub fn after(numbers: Numbers) -> Self {
        let Numbers { updates: made, written, most, most_between, .. } = numbers;
        Self { made, written, most, most_between, ..Self::default() }
    }

    /// How many there were.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// What has been counted here; of steps, variables and optimizers others know.
    pub fn numbers(&self) -> Numbers {
        let Self { made: updates, written, most, most_between, .. } = *self;
        Numbers { updates, written, most, most_between, ..Numbers::default() }
    }

    /// A step begins, after so many.
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

    /// The program has written a variable that is the same on all workers. Where there are no `optimizers`, that is how the weights
    /// are updated. Beside one it is what else is kept, an average of them say: it tells who is furthest, and not which batches are
    /// in the weights.
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
    /// [`Torn`] if some of the updates that belong together have been made and others have not, however often this is called.
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
