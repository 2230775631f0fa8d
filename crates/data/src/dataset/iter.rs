//! [`Iter`]: one pass over a dataset.

use crate::stage::Stage;
use crate::{Error, Result};
use distribute_tensor::Nest;
use std::marker::PhantomData;

/// An iterator over the elements of one pass over a [`Dataset`](super::Dataset). It yields nothing more after the
/// end or an error.
pub struct Iter<T> {
    state: State,
    index: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T> std::fmt::Debug for Iter<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter").field("index", &self.index).finish_non_exhaustive()
    }
}

enum State {
    Running(Box<dyn Stage>),
    Broken(Error),
    Ended,
}

impl<T: Nest> Iter<T> {
    /// Creates a pass that yields the elements of `stage`, or the error if there is no stage.
    pub(crate) fn new(stage: Result<Box<dyn Stage>>) -> Self {
        Self { state: stage.map_or_else(State::Broken, State::Running), index: 0, elements: PhantomData }
    }

    fn pull(&mut self, stage: &mut dyn Stage) -> Result<Option<T>> {
        let Some(chunk) = stage.next(1) else { return Ok(None) };
        let Some(tree) = chunk?.into_values()?.pop() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        T::from_tree(tree).map(Some).map_err(|source| Error::Type { operation: "iterate", index, source })
    }
}

impl<T: Nest> Iterator for Iter<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        // Set to ended until an element has arrived, so that the stages and their threads are dropped right
        // after the last one.
        let mut stage = match std::mem::replace(&mut self.state, State::Ended) {
            State::Running(stage) => stage,
            State::Broken(error) => return Some(Err(error)),
            State::Ended => return None,
        };
        let pulled = self.pull(stage.as_mut()).transpose();
        if matches!(pulled, Some(Ok(_))) {
            self.state = State::Running(stage);
        }
        pulled
    }
}

impl<T: Nest> std::iter::FusedIterator for Iter<T> {}
