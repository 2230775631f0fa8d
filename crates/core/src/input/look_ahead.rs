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
    /// The result of looking at the batches of the step.
    looked: Result<()>,
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
        let NextStep { step, position, looked } = match self.next.take() {
            Some(next) => next,
            None => self.advance(operation),
        };
        let step = step?;
        if looked.is_err() {
            self.pass.abort(looked)?;
        }
        if let Taken::Step(_) = &step {
            self.next = Some(self.advance(operation));
        }
        self.position = position;
        self.pass.record(&step, &self.position);
        Ok(step.batches())
    }

    /// Takes the next step, and looks at its batches.
    #[track_caller]
    fn advance(&mut self, operation: &'static str) -> NextStep<T> {
        let step = self.pass.advance(operation);
        let looked = match &step {
            Ok(Taken::Step(batches)) => batches.iter().try_for_each(&mut self.look),
            _ => Ok(()),
        };
        NextStep { step, position: self.pass.position(), looked }
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
