//! Elements that a stage has collected, and the datasets that user functions create from them, for `window` and
//! `group_by_window`.

use super::interleave::inner_pipeline;
use super::repeat::EmptyPassCounter;
use crate::chunk::{Assembly, Chunk, Cursor};
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Result, spec};
use distribute_tensor::Nest;
use std::sync::Arc;

/// A group of elements: a window, or elements with the same key.
pub(super) struct Group {
    /// The key of the elements; 0 for windows.
    pub(super) key: i64,
    /// The index in the pass of the group's first element.
    pub(super) index: usize,
    pub(super) elements: Assembly,
    /// The index in the pass of each element of the group; empty for windows.
    pub(super) indices: Vec<usize>,
}

/// A stage that collects elements in groups.
pub(super) trait Groups: Send {
    /// Returns the next group; `None` at the end.
    ///
    /// Must not be called again after `None` or an error.
    fn group(&mut self) -> Result<Option<Group>>;

    /// Returns the number of completed passes over a repeated dataset, as [`Stage::passes`] does.
    fn passes(&self) -> usize;
}

/// A user function that creates a dataset from a key and a dataset of the elements with that key. Its third argument
/// is the index of the first of these elements.
pub(super) type GroupFn = Arc<dyn Fn(i64, Pipeline, usize) -> Result<Pipeline> + Send + Sync>;

/// Wraps a user function as a function of pipelines. Its errors and panics contain the index of the first element.
pub(super) fn on_groups<T, U, E, F>(operation: &'static str, function: F) -> GroupFn
where
    T: Nest,
    U: Nest,
    E: Into<Cause>,
    F: Fn(i64, Dataset<T>) -> Result<Dataset<U>, E> + Send + Sync + 'static,
{
    Arc::new(move |key, elements, index| {
        inner_pipeline(operation, index, || function(key, Dataset::from_pipeline(elements)))
    })
}

/// Returns the pipeline that a user function creates from a group. `known` is the spec of the group's elements, if the
/// pipeline determines it.
fn inner(function: &GroupFn, group: Group, known: Option<ElementSpec>) -> Result<Pipeline> {
    let Group { key, index, elements, .. } = group;
    function(key, Arc::new(Kept { elements: Arc::new(elements), known }), index)
}

/// Returns the spec of the dataset that is created from the first group, if `look` allows computing this group.
pub(super) fn first_spec(
    look: Look,
    function: &GroupFn,
    groups: impl FnOnce() -> Box<dyn Groups>,
    known: Option<ElementSpec>,
) -> Option<ElementSpec> {
    match look {
        Look::Never => None,
        Look::AtFirst => inner(function, groups().group().ok()??, known).ok()?.spec(look),
    }
}

/// The source of elements that a stage has collected.
struct Kept {
    elements: Arc<Assembly>,
    known: Option<ElementSpec>,
}

impl Operation for Kept {
    fn describe(&self) -> String {
        "elements of a group".into()
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.elements.len())
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let first =
            || spec::of(&self.elements.chunk_at(0, 1, &mut Cursor::default())?.into_values().ok()?.pop()?);
        self.known.clone().or_else(|| if look == Look::AtFirst { first() } else { None })
    }

    fn sharding(&self) -> Sharding {
        Sharding::Source
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        Box::new(KeptStage { elements: self.elements.clone(), next: 0, cursor: Cursor::default() })
    }
}

struct KeptStage {
    elements: Arc<Assembly>,
    next: usize,
    cursor: Cursor,
}

impl Stage for KeptStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let chunk = self.elements.chunk_at(self.next, max, &mut self.cursor)?;
        self.next += chunk.len();
        Some(Ok(chunk))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = count.min(self.elements.len() - self.next);
        self.next += skipped;
        Ok(skipped)
    }
}

/// A stage that concatenates the datasets that a user function creates from groups.
pub(super) struct InnerStage {
    operation: &'static str,
    groups: Box<dyn Groups>,
    function: GroupFn,
    known: Option<ElementSpec>,
    epoch: u64,
    /// The current dataset, and the index of the first element of its group.
    current: Option<(Box<dyn Stage>, usize)>,
    empty_passes: EmptyPassCounter,
}

impl InnerStage {
    pub(super) fn new(
        operation: &'static str,
        groups: Box<dyn Groups>,
        function: GroupFn,
        known: Option<ElementSpec>,
        epoch: u64,
    ) -> Self {
        let empty_passes = EmptyPassCounter::default();
        Self { operation, groups, function, known, epoch, current: None, empty_passes }
    }

    /// Returns the current dataset, or starts that of the next group; `None` after the last.
    fn current(&mut self) -> Result<Option<&mut (Box<dyn Stage>, usize)>> {
        if self.current.is_none() {
            let Some(group) = self.groups.group()? else { return Ok(None) };
            let index = group.index;
            let pipeline = inner(&self.function, group, self.known.clone())?;
            self.current = Some((pipeline.start(self.epoch), index));
        }
        Ok(self.current.as_mut())
    }

    fn pull(&mut self, max: usize) -> Result<Option<Chunk>> {
        let operation = self.operation;
        while let Some((stage, index)) = self.current()? {
            let index = *index;
            match stage.next(max) {
                Some(chunk) => {
                    self.empty_passes.found();
                    return chunk.map(Some).map_err(failed(operation, index));
                }
                None => self.ended()?,
            }
        }
        Ok(None)
    }

    /// Closes the current dataset, which has ended. Returns an error if the datasets of too many passes were empty.
    fn ended(&mut self) -> Result<()> {
        self.current = None;
        self.empty_passes.nothing(self.operation, self.groups.passes())
    }
}

/// Returns a function that wraps an error of the dataset that was created from the group whose first element has the
/// given index.
fn failed(operation: &'static str, index: usize) -> impl FnOnce(Error) -> Error {
    move |error| Error::Inner { operation, index, cause: error.into() }
}

impl Stage for InnerStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.pull(max).transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let (mut left, operation) = (count, self.operation);
        while left > 0 {
            let Some((stage, index)) = self.current()? else { break };
            let index = *index;
            let skipped = stage.skip(left).map_err(failed(operation, index))?;
            if skipped > 0 {
                self.empty_passes.found();
            }
            if skipped < left {
                self.ended()?;
            }
            left -= skipped;
        }
        Ok(count - left)
    }

    fn passes(&self) -> usize {
        self.groups.passes()
    }
}
