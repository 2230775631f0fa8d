//! [`Steps`]: the batches of one worker's replicas, step by step.

use super::dealt_pieces::DealtPieces;
use super::prepare::Prepare;
use crate::hand::NewFiles;
use crate::pipeline::{Look, Pipeline};
use crate::plan::ends::{StepCounts, UnevenEnds};
use crate::stage::{Stage, one};
use crate::{ElementSpec, Error, Result, TensorSpec};
use distribute_tensor::{HostTensor, Leaf, Tree};

/// The source of the batches of a worker's replicas.
pub(crate) enum Pieces {
    /// One stage that yields the batches of all replicas in turn, and the number of replicas.
    InTurn(Box<dyn Stage>, usize),
    /// A separate stage for each replica.
    Each(Vec<Box<dyn Stage>>),
    /// One stage on a thread, whose files are dealt during the pass.
    Dealt(Box<DealtPieces>),
}

impl Pieces {
    fn replicas(&self) -> usize {
        match self {
            Pieces::InTurn(_, replicas) => *replicas,
            Pieces::Each(stages) => stages.len(),
            Pieces::Dealt(dealt) => dealt.replicas(),
        }
    }

    /// Returns the next batch of each replica; `None` for replicas without one. Records in `ended` which stages have
    /// ended.
    fn next(&mut self, ended: &mut [bool]) -> Result<Vec<Option<Tree<Leaf>>>> {
        let mut pieces = Vec::with_capacity(ended.len());
        for replica in 0..ended.len() {
            // The end of a shared stage is the end for all of its replicas.
            let place = if matches!(self, Pieces::Each(_)) { replica } else { 0 };
            let piece = match self {
                _ if ended[place] => None,
                Pieces::InTurn(stage, _) => one(stage)?,
                Pieces::Each(stages) => one(&mut stages[replica])?,
                Pieces::Dealt(dealt) => dealt.next(),
            };
            ended[place] = piece.is_none();
            pieces.push(piece);
        }
        Ok(pieces)
    }

    fn skip(&mut self, steps: usize, ended: &mut [bool]) -> Result<()> {
        match self {
            Pieces::InTurn(stage, replicas) => {
                let wanted = steps.saturating_mul(*replicas);
                ended[0] = ended[0] || stage.skip(wanted)? < wanted;
            }
            Pieces::Each(stages) => {
                for (stage, ended) in stages.iter_mut().zip(ended) {
                    *ended = *ended || stage.skip(steps)? < steps;
                }
            }
            Pieces::Dealt(dealt) => dealt.skip(steps)?,
        }
        Ok(())
    }
}

/// One worker's pass: batches for its replicas, step by step.
///
/// All workers decide together whether a step is taken. [`prepare`](Steps::prepare) returns the counts of this
/// worker for the next step, and [`finish`](Steps::finish) takes the sum over all workers.
pub struct Steps {
    pieces: Pieces,
    ended: Vec<bool>,
    ends: UnevenEnds,
    /// The value of [`StepCounts::full`]. If the pipeline does not determine it, it is `None` until the first step, and
    /// then the number of rows in that step.
    full: Option<usize>,
    /// An empty batch, once it has been derived; `Some(None)` if that is impossible, because elements have no rows, or
    /// because there are neither elements nor a spec.
    empty: Option<Option<Tree<Leaf>>>,
    templates: Templates,
    /// The function that prepares empty batches. All other batches are already prepared.
    prepare: Option<Prepare>,
    next: Vec<Option<Tree<Leaf>>>,
    /// The empty batches for those replicas that have no batch in `next`, in their order.
    padding: Vec<Tree<Leaf>>,
    taken: u64,
    /// The counts of the prepared step, if files are dealt: the workers may need several rounds for it.
    prepared: Option<StepCounts>,
    /// Whether the pass has ended, for all workers or because of an error.
    over: bool,
}

impl Steps {
    pub(crate) fn new(
        pieces: Pieces,
        ends: UnevenEnds,
        full: Option<usize>,
        templates: Templates,
        prepare: Option<Prepare>,
    ) -> Self {
        let ended = vec![false; pieces.replicas()];
        Self {
            pieces,
            ended,
            ends,
            full,
            empty: None,
            templates,
            prepare,
            next: Vec::new(),
            padding: Vec::new(),
            taken: 0,
            prepared: None,
            over: false,
        }
    }

    /// Adds `steps` steps, which were skipped elsewhere, to the steps taken.
    pub(crate) fn count(&mut self, steps: u64) {
        self.taken += steps;
    }

    pub(crate) fn skip(&mut self, steps: u64) -> Result<()> {
        self.count(steps);
        let mut left = usize::try_from(steps).unwrap_or(usize::MAX);
        if left > 0 && self.ends == UnevenEnds::Drop && self.full.is_none() {
            // The first step determines which later ones are full.
            self.prepare()?;
            left -= 1;
        }
        match left {
            0 => Ok(()),
            _ => self.pieces.skip(left, &mut self.ended),
        }
    }

    /// Returns the number of steps taken or skipped.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Prepares the batches of the next step, and returns their counts. After the end or an error, there are no more
    /// batches.
    ///
    /// If files are dealt and this worker has none for the step, the counts contain no replica. After it has been
    /// [given](Self::give) files, it prepares the step again, together with all other workers.
    pub(crate) fn prepare(&mut self) -> Result<StepCounts> {
        if let Some(counts) = self.prepared {
            return Ok(counts);
        }
        let mut needs_file = 0;
        if let Pieces::Dealt(dealt) = &mut self.pieces
            && !self.over
        {
            let fetched = dealt.fetch();
            needs_file = usize::from(dealt.needs_file());
            let lacks_file = dealt.lacks_file();
            if fetched.is_err() {
                self.end();
            }
            fetched?;
            if lacks_file {
                return Ok(StepCounts { needs_file, lacks_file: 1, ..StepCounts::default() });
            }
        }
        let next = self.pieces.next(&mut self.ended);
        if next.is_err() {
            self.end();
        }
        self.next = next?;
        let filled = self.fill();
        if filled.is_err() {
            self.end();
        }
        let mut counts = StepCounts { unfilled: filled?, needs_file, ..StepCounts::default() };
        for piece in &self.next {
            match piece {
                Some(piece) => {
                    counts.present += 1;
                    // Elements that aren't batches count as one row.
                    counts.rows += piece.rows().unwrap_or(1);
                }
                None => counts.missing += 1,
            }
        }
        counts.full = *self.full.get_or_insert(counts.rows);
        if let Pieces::Dealt(_) = self.pieces {
            // In further rounds of this step, the worker does not ask again.
            self.prepared = Some(StepCounts { needs_file: 0, ..counts });
        }
        Ok(counts)
    }

    /// Passes new files to the thread that reads them, if it has asked for files.
    pub(crate) fn give(&mut self, files: NewFiles) {
        if let Pieces::Dealt(dealt) = &mut self.pieces {
            dealt.give(files);
        }
    }

    /// Creates the empty batches that are needed if the step is taken. Returns the number of replicas for which
    /// none can be created. This happens before all workers decide on the step, so that no worker takes a step
    /// that another cannot take.
    fn fill(&mut self) -> Result<usize> {
        self.padding.clear();
        let missing = self.next.iter().filter(|piece| piece.is_none()).count();
        if self.empty.is_none() {
            self.empty = match self.next.iter().flatten().next() {
                Some(piece) => Some(without_rows(piece)),
                // Without other workers, this is the end.
                None if self.templates.alone => None,
                None => Some(self.templates.empty()?),
            };
        }
        let is_end = self.over || self.templates.alone && missing == self.next.len();
        if self.ends != UnevenEnds::PadEmpty || is_end {
            return Ok(0);
        }
        match self.empty.as_ref().and_then(Option::as_ref) {
            Some(empty) => self.padding = self.padding_of(empty)?,
            None => return Ok(missing),
        }
        Ok(0)
    }

    /// Returns a prepared empty batch for each replica that has no batch.
    fn padding_of(&self, empty: &Tree<Leaf>) -> Result<Vec<Tree<Leaf>>> {
        let missing = self.next.iter().enumerate().filter(|(_, piece)| piece.is_none());
        let prepared = |(replica, _)| match &self.prepare {
            Some(prepare) => prepare.piece(self.taken, replica, empty.clone()),
            None => Ok(empty.clone()),
        };
        missing.map(prepared).collect()
    }

    /// Ends the pass. The remaining batches do not belong to any step.
    fn end(&mut self) {
        self.ended.fill(true);
        self.over = true;
    }

    /// Takes the prepared step, if the total counts of all workers allow it. Returns `None` at the end of the pass,
    /// and [`Error::NoEmptyBatch`] if the step is taken, but a replica of any worker would have no batch. Returns
    /// [`Error::NotDealt`] if a worker needs files first.
    pub(crate) fn finish(&mut self, all: StepCounts) -> Result<Option<Vec<Tree<Leaf>>>> {
        if all.lacks_file > 0 {
            let step = self.taken;
            let why = format!(
                "step {step} needs a file: call WorkerPass::deal, and prepare it again if that returns true"
            );
            return Err(Error::NotDealt { why });
        }
        self.prepared = None;
        let next = std::mem::take(&mut self.next);
        let mut padding = std::mem::take(&mut self.padding).into_iter();
        if !self.ends.take(all) {
            self.end();
            return Ok(None);
        }
        let no_empty = || {
            let StepCounts { present, missing, .. } = all;
            Error::NoEmptyBatch { step: self.taken, present, replicas: present.saturating_add(missing) }
        };
        if all.unfilled > 0 {
            return Err(no_empty());
        }
        let filled = next.into_iter().map(|piece| piece.or_else(|| padding.next()).ok_or_else(no_empty));
        let filled = filled.collect::<Result<_>>()?;
        self.taken += 1;
        Ok(Some(filled))
    }
}

/// The pipelines from which a worker that has not seen a batch can derive an empty one.
pub(crate) struct Templates {
    /// The pipeline before sharding, which has a first batch if any worker has data; for a function, the pipelines of
    /// this worker's datasets, which may be empty.
    pub(crate) pipelines: Vec<Pipeline>,
    pub(crate) epoch: u64,
    /// Whether this process has all replicas, so that its end of the data is the end of the pass.
    pub(crate) alone: bool,
    /// A function that converts a value created from a spec to the kinds of leaves that elements have.
    pub(crate) fit: fn(Tree<Leaf>) -> Tree<Leaf>,
}

impl Templates {
    /// Returns a batch without rows. Returns `None` if elements have no rows, or if these pipelines have neither
    /// elements nor a spec.
    fn empty(&self) -> Result<Option<Tree<Leaf>>> {
        for pipeline in &self.pipelines {
            if let Some(batch) = one(&mut pipeline.start(self.epoch))? {
                return Ok(without_rows(&batch));
            }
        }
        Ok(self.pipelines.iter().find_map(|pipeline| of_spec(pipeline.spec(Look::Never)?)).map(self.fit))
    }
}

/// Returns a batch without rows that matches a spec; `None` if the spec has a scalar. Unknown sizes become 0.
fn of_spec(spec: ElementSpec) -> Option<Tree<Leaf>> {
    let leaf = &mut |spec: TensorSpec| {
        let (_rows, inner) = spec.dims.split_first().ok_or(())?;
        let dims = std::iter::once(0).chain(inner.iter().map(|size| size.unwrap_or(0)));
        HostTensor::zeros(spec.dtype, dims.collect::<Vec<_>>()).map(Leaf::Host).map_err(|_| ())
    };
    spec.try_map(leaf).ok()
}

/// Returns a batch that is like `batch`, but without rows; `None` if elements have no rows.
fn without_rows(batch: &Tree<Leaf>) -> Option<Tree<Leaf>> {
    batch.without_rows().ok()
}
