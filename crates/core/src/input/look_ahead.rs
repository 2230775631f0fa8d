//! [`LookAhead`]: a pass that takes each step before it yields the previous one.

use super::DistributedIterator;
use super::iterator::Taken;
use distribute_base::Result;
use distribute_data::Position;
use distribute_tensor::Nest;
use distribute_values::PerReplica;
use std::fmt;

/// A pass over a [`DistributedDataset`](super::DistributedDataset) that takes each step before it yields the previous
/// one. [`DistributedIterator::look_ahead`] creates it.
pub struct LookAhead<T, F> {
    pass: DistributedIterator<T>,
    look: F,
    /// The step that was taken last; `None` if none has been taken, or if it has been yielded.
    next: Option<NextStep<T>>,
    /// The position of the pass after the step that was yielded last.
    position: Position,
}

/// A step that was taken and is not yielded yet.
struct NextStep<T> {
    step: Result<Taken<T>>,
    /// The position of the pass after the step.
    position: Position,
}

impl<T: Nest, F: FnMut(&T) -> Result<()>> LookAhead<T, F> {
    pub(super) fn new(pass: DistributedIterator<T>, look: F) -> Self {
        let position = pass.position();
        Self { pass, look, next: None, position }
    }

    /// Returns the position of the pass after the last step that it yielded.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    // INV-103
    #[track_caller]
    fn take(&mut self, operation: &'static str) -> Result<Option<PerReplica<T>>> {
        self.pass.begin_take(operation, &self.position)?;
        let NextStep { step, position } = match self.next.take() {
            Some(next) => next,
            None => self.advance(operation, Ok(()))?,
        };
        // INV-2: the others hold this step, so the next exchange reports the error to them.
        let (step, held) = match step? {
            Taken::Failed(error, others) => {
                self.pass.follow(others);
                (Taken::Nothing, Err(error))
            }
            step => (step, Ok(())),
        };
        if held.is_err() || matches!(step, Taken::Step(_)) {
            self.next = Some(self.advance(operation, held)?);
        }
        self.position = position;
        self.pass.record(&step, &self.position);
        step.batches()
    }

    /// Takes the next step, and looks at its batches. `held` is the result of this worker for the step before.
    ///
    /// # Errors
    /// Returns the error of the step before, if a worker holds one.
    #[track_caller]
    fn advance(&mut self, operation: &'static str, held: Result<()>) -> Result<NextStep<T>> {
        let step = self.pass.advance(operation, held)?;
        let position = self.pass.position();
        let look = |step| match step {
            Taken::Step(batches) => match batches.iter().try_for_each(&mut self.look) {
                Ok(()) => Taken::Step(batches),
                Err(error) => Taken::Failed(error, position.clone()),
            },
            other => other,
        };
        Ok(NextStep { step: step.map(look), position })
    }
}

impl<T: Nest, F: FnMut(&T) -> Result<()>> Iterator for LookAhead<T, F> {
    type Item = Result<PerReplica<T>>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<PerReplica<T>>> {
        self.take("DistributedIterator::next").transpose()
    }
}

impl<T, F> fmt::Debug for LookAhead<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookAhead").field("pass", &self.pass).finish_non_exhaustive()
    }
}
