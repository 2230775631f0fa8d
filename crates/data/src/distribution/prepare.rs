//! [`Prepare`]: a function that is applied to each per-replica batch.

use crate::chunk::Chunk;
use crate::guard::catch_panics;
use crate::stage::{Stage, one};
use crate::{Cause, Error, Result};
use distribute_tensor::{Leaf, Tree};
use std::ops::Range;
use std::sync::Arc;

/// A function that prepares the batch of a replica. Its arguments are the index of the local replica and the
/// batch. It returns the batch that the replica receives.
#[derive(Clone)]
pub(crate) struct Prepare {
    function: Arc<Function>,
    /// Whether the function alone is worth a thread.
    pub(super) costly: bool,
}

type Function = dyn Fn(usize, Tree<Leaf>) -> Result<Tree<Leaf>, Cause> + Send + Sync;

impl Prepare {
    pub(super) fn new(
        costly: bool,
        function: impl Fn(usize, Tree<Leaf>) -> Result<Tree<Leaf>, Cause> + Send + Sync + 'static,
    ) -> Self {
        Self { function: Arc::new(function), costly }
    }

    /// Applies the function to the batch of one replica in a step.
    pub(super) fn piece(&self, step: u64, replica: usize, piece: Tree<Leaf>) -> Result<Tree<Leaf>> {
        let called = catch_panics("prepare", replica, || (self.function)(replica, piece));
        let failed = |cause: Cause| Error::Piece { step, replica, cause };
        called.map_err(|panic| failed(panic.to_string().into()))?.map_err(failed)
    }
}

/// A stage that prepares per-replica batches. Its input yields them one replica after another.
pub(super) struct PrepareStage {
    input: Box<dyn Stage>,
    prepare: Prepare,
    /// The local replicas that receive a batch in each step, in this order.
    replicas: Range<usize>,
    /// The step to which the next batch belongs.
    step: u64,
    /// The number of batches of that step that have been prepared.
    made: usize,
}

impl PrepareStage {
    /// Creates the stage. The first batch of `input` belongs to step `step` and the first replica of `replicas`,
    /// which must not be empty.
    pub(super) fn new(input: Box<dyn Stage>, prepare: Prepare, replicas: Range<usize>, step: u64) -> Self {
        Self { input, prepare, replicas, step, made: 0 }
    }

    fn piece(&mut self) -> Result<Option<Chunk>> {
        let Some(piece) = one(&mut self.input)? else { return Ok(None) };
        let piece = self.prepare.piece(self.step, self.replicas.start + self.made, piece)?;
        self.count(1);
        Ok(Some(Chunk::one(piece)))
    }

    fn count(&mut self, pieces: usize) {
        let (made, each) = (self.made + pieces, self.replicas.len().max(1));
        self.step += (made / each) as u64;
        self.made = made % each;
    }
}

impl Stage for PrepareStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.piece().transpose()
    }

    /// Skips batches without preparing them.
    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = self.input.skip(count)?;
        self.count(skipped);
        Ok(skipped)
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}
