//! [`Cycle`]: several datasets that are read in turn.

use super::ahead::AheadStage;
use super::repeat::EmptyPassCounter;
use crate::chunk::Chunk;
use crate::pipeline::Pipeline;
use crate::stage::Stage;
use crate::{Error, Interleave, Result};
use distribute_tensor::{Leaf, Tree};
use std::sync::Arc;

/// A user function that maps an element to a dataset. Its second argument is the element's index.
pub(super) type InnerFn = Arc<dyn Fn(Tree<Leaf>, usize) -> Result<Pipeline> + Send + Sync>;

/// A set of datasets that are created from elements and read in turn.
pub(super) struct Cycle {
    /// The stage that yields the elements; `None` once it has ended or failed.
    input: Option<Box<dyn Stage>>,
    operation: &'static str,
    function: InnerFn,
    turns: Interleave,
    epoch: u64,
    /// The number of elements that have been read from the input.
    index: usize,
    slots: Vec<Slot>,
    /// The index of the current slot.
    turn: usize,
    /// The number of elements that are left in the current block.
    left: usize,
    empty_passes: EmptyPassCounter,
}

/// A slot of the cycle, for one dataset at a time.
enum Slot {
    /// A slot whose dataset has ended.
    Empty,
    /// A slot with the dataset of an element, the element's index, and the number of [passes](Stage::passes) that were
    /// complete when the element was read.
    Open(Box<dyn Stage>, usize, usize),
    /// A slot with an error instead of a dataset. The error is returned at the slot's turn.
    Failed(Error),
}

impl Cycle {
    pub(super) fn new(
        operation: &'static str,
        input: Box<dyn Stage>,
        function: InnerFn,
        turns: Interleave,
        epoch: u64,
    ) -> Self {
        let (input, left) = (Some(input), turns.block_length);
        let (slots, empty_passes) = (Vec::new(), EmptyPassCounter::default());
        Self { input, operation, function, turns, epoch, index: 0, slots, turn: 0, left, empty_passes }
    }

    /// Returns the number of completed passes over the input.
    fn read_passes(&self) -> usize {
        self.input.as_ref().map_or(0, |input| input.passes())
    }

    /// Opens the dataset of the next element. Returns `Empty` if there is no element, and `Failed` if the element or
    /// its dataset has an error.
    fn open(&mut self) -> Slot {
        let element = match self.input.as_mut().and_then(|input| input.next(1)) {
            None => {
                self.input = None;
                return Slot::Empty;
            }
            Some(chunk) => chunk.and_then(Chunk::into_values).map(|mut values| values.pop()),
        };
        let index = self.index;
        self.index += 1;
        let opened = match element {
            Err(error) => Err(error),
            Ok(None) => return Slot::Empty,
            Ok(Some(tree)) => (self.function)(tree, index).and_then(|inner| self.begin(&inner)),
        };
        match opened {
            Ok(stage) => Slot::Open(stage, index, self.read_passes()),
            Err(error) => {
                self.input = None;
                Slot::Failed(error)
            }
        }
    }

    fn begin(&self, inner: &Pipeline) -> Result<Box<dyn Stage>> {
        let stage = inner.start(self.epoch);
        if self.turns.ahead == 0 {
            return Ok(stage);
        }
        let mut stage = AheadStage::new(stage, self.turns.ahead, self.operation);
        stage.begin()?;
        Ok(Box::new(stage))
    }

    /// Opens all slots of the cycle at the beginning, so that datasets with threads start early. Slots become empty
    /// in the order of their turns, so each gets the same element as if it were opened at its turn.
    fn open_all(&mut self) {
        while self.input.is_some() && self.slots.len() < self.turns.cycle_length {
            let slot = self.open();
            self.slots.push(slot);
        }
    }

    /// Opens the dataset of the next element in the current slot.
    fn reopen(&mut self) {
        let opened = self.open();
        if let Some(slot) = self.slots.get_mut(self.turn) {
            *slot = opened;
        }
    }

    /// Returns the current dataset, and the index of its element. Returns `None` when all datasets have ended.
    fn current(&mut self) -> Result<Option<(&mut dyn Stage, usize)>> {
        if self.turns.ahead > 0 && self.slots.is_empty() {
            self.open_all();
        }
        loop {
            match self.slots.get(self.turn) {
                Some(Slot::Open(..) | Slot::Failed(_)) => break,
                Some(Slot::Empty) if self.input.is_some() => self.reopen(),
                None if self.input.is_some() => {
                    let slot = self.open();
                    self.slots.push(slot);
                }
                _ if self.slots.iter().all(|slot| matches!(slot, Slot::Empty)) => return Ok(None),
                Some(Slot::Empty) => self.next_turn(),
                None => self.turn = 0,
            }
        }
        match self.slots.get_mut(self.turn) {
            Some(Slot::Open(stage, index, _)) => Ok(Some((stage.as_mut(), *index))),
            Some(slot) => match std::mem::replace(slot, Slot::Empty) {
                Slot::Failed(error) => Err(error),
                _ => Ok(None),
            },
            None => Ok(None),
        }
    }

    fn next_turn(&mut self) {
        self.left = self.turns.block_length;
        self.turn = (self.turn + 1) % self.turns.cycle_length.max(1);
    }

    /// Records that the current dataset has yielded `count` elements.
    fn gave(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
        if self.left == 0 {
            self.next_turn();
        }
    }

    /// Empties the current slot, whose dataset has ended, and moves to the next turn. If datasets have threads, the
    /// dataset of the next element is opened in the slot immediately. Returns an error if the datasets of too many
    /// passes were empty.
    fn ended(&mut self) -> Result<()> {
        if let Some(slot) = self.slots.get_mut(self.turn) {
            *slot = Slot::Empty;
        }
        if self.turns.ahead > 0 && self.input.is_some() {
            self.reopen();
        }
        self.next_turn();
        let passes = self.passes();
        self.empty_passes.nothing(self.operation, passes)
    }

    /// Returns a function that wraps an error of the dataset that was created from element `index`.
    fn inner(&self, index: usize) -> impl FnOnce(Error) -> Error + use<> {
        let operation = self.operation;
        move |error| Error::Inner { operation, index, cause: error.into() }
    }
}

impl Stage for Cycle {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        loop {
            let max = max.min(self.left);
            let (pulled, index) = match self.current() {
                Ok(Some((stage, index))) => (stage.next(max), index),
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            match pulled {
                Some(Ok(chunk)) => {
                    self.empty_passes.found();
                    self.gave(chunk.len());
                    return Some(Ok(chunk));
                }
                Some(Err(error)) => return Some(Err(self.inner(index)(error))),
                None => {
                    if let Err(error) = self.ended() {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut to_go = count;
        while to_go > 0 {
            let wanted = to_go.min(self.left);
            let Some((stage, index)) = self.current()? else { break };
            let skipped = stage.skip(wanted);
            let skipped = skipped.map_err(self.inner(index))?;
            to_go -= skipped;
            if skipped > 0 {
                self.empty_passes.found();
            }
            if skipped == wanted { self.gave(skipped) } else { self.ended()? }
        }
        Ok(count - to_go)
    }

    /// Returns the number of completed passes over the input, except those from which a slot still has a dataset.
    fn passes(&self) -> usize {
        let open = self.slots.iter().filter_map(|slot| match slot {
            Slot::Open(_, _, passes) => Some(*passes),
            _ => None,
        });
        open.fold(self.read_passes(), usize::min)
    }
}
