//! Elements on their way through a pipeline, several at a time.
//!
//! Stages pass [`Chunk`]s to each other. Rows of a source remain indices until an operation needs their values. A batch
//! of such rows is copied from the source at once: as a view if the rows are contiguous, otherwise in one gather. A
//! batch remains a list of its elements until its values are needed. A batch that is split over replicas is therefore
//! assembled per replica, and no row is copied twice.

use crate::room::reserve;
use crate::rows::Rows;
use crate::{Error, Result};
use distribute_tensor::{Leaf, Tree};
use std::ops::Range;
use std::sync::Arc;

/// One or more consecutive elements.
pub(crate) enum Chunk {
    /// Rows of a source, represented by their indices.
    Rows(Arc<Rows>, Picks),
    /// Single elements.
    Values(Vec<Tree<Leaf>>),
    /// One element: a batch that has not been assembled yet.
    Batch(Assembly),
}

/// The rows of a source that a chunk contains, in order.
pub(crate) enum Picks {
    /// Contiguous rows.
    Range(Range<usize>),
    /// Rows in any order.
    List(Vec<usize>),
}

impl Picks {
    pub(crate) fn len(&self) -> usize {
        match self {
            Picks::Range(range) => range.len(),
            Picks::List(list) => list.len(),
        }
    }

    /// Returns the index of the first row; `None` if there are none.
    pub(crate) fn first(&self) -> Option<usize> {
        match self {
            Picks::Range(range) => range.clone().next(),
            Picks::List(list) => list.first().copied(),
        }
    }

    /// Returns the indices of the rows as a list.
    pub(crate) fn into_list(self) -> Result<Vec<usize>> {
        match self {
            Picks::List(list) => Ok(list),
            range => {
                let mut list = Vec::new();
                range.extend(&mut list)?;
                Ok(list)
            }
        }
    }

    /// Appends the indices of the rows to `list`.
    pub(crate) fn extend(self, list: &mut Vec<usize>) -> Result<()> {
        reserve("a list of rows", list, self.len())?;
        match self {
            Picks::Range(range) => list.extend(range),
            Picks::List(more) => list.extend(more),
        }
        Ok(())
    }

    /// Appends the rows in `other`. Returns `other`, and changes nothing, if there is not enough memory for the list.
    fn append(&mut self, other: Picks) -> Option<Picks> {
        match (&mut *self, other) {
            (Picks::Range(mine), Picks::Range(theirs)) if mine.end == theirs.start => mine.end = theirs.end,
            (Picks::List(mine), theirs) => match reserve("a list of rows", mine, theirs.len()) {
                Ok(()) => theirs.extend(mine).ok()?,
                Err(_) => return Some(theirs),
            },
            (Picks::Range(mine), theirs) => {
                let mut list = Vec::new();
                if reserve("a list of rows", &mut list, mine.len().saturating_add(theirs.len())).is_err() {
                    return Some(theirs);
                }
                list.extend(mine.clone());
                theirs.extend(&mut list).ok()?;
                *self = Picks::List(list);
            }
        }
        None
    }
}

impl Chunk {
    /// Creates a chunk with a single element.
    pub(crate) fn one(value: Tree<Leaf>) -> Self {
        Chunk::Values(vec![value])
    }

    /// Creates a chunk of all `len` rows of a batch that was created during the pass.
    pub(crate) fn rows(tree: Tree<Leaf>, len: usize) -> Self {
        Chunk::Rows(Arc::new(Rows::Section { tree, len }), Picks::Range(0..len))
    }

    /// Returns the same elements. Copies rows that are fewer than half of their section, because they would otherwise
    /// keep the complete section in memory.
    pub(crate) fn compact(self) -> Result<Chunk> {
        match self {
            Chunk::Rows(source, picks)
                if source.is_transient() && picks.len().saturating_mul(2) < source.len() =>
            {
                let len = picks.len();
                Ok(Chunk::rows(source.gather(&picks.into_list()?)?, len))
            }
            other => Ok(other),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Chunk::Rows(_, picks) => picks.len(),
            Chunk::Values(values) => values.len(),
            Chunk::Batch(_) => 1,
        }
    }

    /// Returns the given range of the elements, without copying tensors. The range must be within bounds.
    pub(crate) fn slice(&self, range: Range<usize>) -> Chunk {
        match self {
            Chunk::Rows(source, Picks::Range(rows)) => {
                Chunk::Rows(source.clone(), Picks::Range(rows.start + range.start..rows.start + range.end))
            }
            Chunk::Rows(source, Picks::List(rows)) => {
                Chunk::Rows(source.clone(), Picks::List(rows[range].to_vec()))
            }
            Chunk::Values(values) => Chunk::Values(values[range].to_vec()),
            Chunk::Batch(_) if range.is_empty() => Chunk::Values(Vec::new()),
            Chunk::Batch(assembly) => Chunk::Batch(assembly.slice(0..assembly.len())),
        }
    }

    /// Drops the first `count` elements. `count` must be less than the number of elements.
    fn drop_first(&mut self, count: usize) {
        match self {
            Chunk::Rows(_, Picks::Range(rows)) => rows.start += count,
            Chunk::Rows(_, Picks::List(rows)) => drop(rows.drain(..count)),
            Chunk::Values(values) => drop(values.drain(..count)),
            Chunk::Batch(_) => {}
        }
    }

    /// Returns each element as a separate value.
    pub(crate) fn into_values(self) -> Result<Vec<Tree<Leaf>>> {
        match self {
            Chunk::Rows(source, picks) => {
                let mut values = Vec::new();
                reserve("single elements", &mut values, picks.len())?;
                match picks {
                    Picks::Range(range) => {
                        range.map(|i| source.row(i)).try_for_each(|row| row.map(|row| values.push(row)))?;
                    }
                    Picks::List(list) => {
                        list.into_iter()
                            .map(|i| source.row(i))
                            .try_for_each(|row| row.map(|row| values.push(row)))?;
                    }
                }
                Ok(values)
            }
            Chunk::Values(values) => Ok(values),
            Chunk::Batch(assembly) => Ok(vec![assembly.finish()?]),
        }
    }

    /// Returns the same chunk, assembled if it is a batch. Stages that keep a chunk for later or read it more than once
    /// call this.
    pub(crate) fn assembled(self) -> Result<Chunk> {
        match self {
            Chunk::Batch(assembly) => Ok(Chunk::one(assembly.finish()?)),
            other => Ok(other),
        }
    }

    /// Appends the elements of `other`. Returns `other` if both cannot be combined into one chunk.
    pub(crate) fn append(&mut self, other: Chunk) -> Option<Chunk> {
        match (self, other) {
            (Chunk::Rows(mine, picks), Chunk::Rows(theirs, more)) if Arc::ptr_eq(mine, &theirs) => {
                picks.append(more).map(|more| Chunk::Rows(theirs, more))
            }
            (Chunk::Values(mine), Chunk::Values(theirs)) => {
                mine.extend(theirs);
                None
            }
            (_, other) => Some(other),
        }
    }

    /// Stacks the elements into one batch: every leaf gets a new axis 0.
    fn into_batch(self) -> Result<Tree<Leaf>, Fault> {
        match self {
            Chunk::Rows(source, Picks::Range(range)) => source.slice(range).map_err(Fault::from),
            Chunk::Rows(source, Picks::List(list)) => source.gather(&list).map_err(Fault::from),
            Chunk::Values(values) => Tree::stack(values).map_err(Fault::Tensor),
            Chunk::Batch(assembly) => Tree::stack(vec![assembly.finish()?]).map_err(Fault::Tensor),
        }
    }
}

/// The reason why chunks could not be assembled into a batch.
enum Fault {
    Tensor(distribute_tensor::Error),
    Other(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(source) => Fault::Tensor(source),
            other => Fault::Other(other),
        }
    }
}

/// Appends a chunk to a list of chunks, combined with the last one if possible. Otherwise, the last one is
/// compacted.
pub(crate) fn append(chunks: &mut Vec<Chunk>, chunk: Chunk) -> Result<()> {
    let Some(mut last) = chunks.pop() else {
        chunks.push(chunk);
        return Ok(());
    };
    match last.append(chunk) {
        None => chunks.push(last),
        Some(next) => chunks.extend([last.compact()?, next]),
    }
    Ok(())
}

/// The elements of a batch that has not been assembled yet, as chunks.
pub(crate) struct Assembly {
    /// The index of the batch in the pass, for errors.
    number: usize,
    chunks: Vec<Chunk>,
    len: usize,
}

/// A position among the chunks of an [`Assembly`], from which the next search continues.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    chunk: usize,
    /// The number of elements before the chunk.
    start: usize,
}

impl Assembly {
    /// Creates an empty batch. `number` is its index in the pass.
    pub(crate) fn new(number: usize) -> Self {
        Self { number, chunks: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Appends elements to the batch. If they cannot be combined with the last chunk, that chunk is
    /// [compacted](Chunk::compact) first.
    pub(crate) fn push(&mut self, chunk: Chunk) -> Result<()> {
        self.len += chunk.len();
        append(&mut self.chunks, chunk)
    }

    /// Returns each element as a separate value.
    pub(crate) fn into_values(self) -> Result<Vec<Tree<Leaf>>> {
        let mut values = Vec::new();
        reserve("single elements", &mut values, self.len)?;
        for chunk in self.chunks {
            values.extend(chunk.into_values()?);
        }
        Ok(values)
    }

    /// Returns the same elements as the batch with the index `number`.
    pub(crate) fn numbered(self, number: usize) -> Self {
        Self { number, ..self }
    }

    /// Returns the elements at the indices 0, `stride`, `2 * stride`, … that are less than `end`.
    pub(crate) fn every(&self, stride: usize, end: usize) -> Result<Assembly> {
        let len = end.min(self.len);
        if stride <= 1 {
            return Ok(self.slice(0..len));
        }
        let mut picked = Assembly::new(self.number);
        let (mut next, mut start) = (0usize, 0);
        for chunk in &self.chunks {
            let end = len.min(start + chunk.len());
            while next < end {
                picked.push(chunk.slice(next - start..next - start + 1))?;
                next = next.saturating_add(stride);
            }
            start += chunk.len();
        }
        Ok(picked)
    }

    /// Drops the first `count` elements, or all if there are fewer. The others are not copied.
    pub(crate) fn drop_first(&mut self, count: usize) {
        let (mut left, mut chunks) = (count.min(self.len), 0);
        self.len -= left;
        for chunk in &mut self.chunks {
            if left < chunk.len() {
                chunk.drop_first(left);
                break;
            }
            left -= chunk.len();
            chunks += 1;
        }
        self.chunks.drain(..chunks);
    }

    /// Returns elements from `index` on: at most `max`, all from one chunk. There may be fewer even before the end.
    /// Returns `None` if `index` is out of range. The search begins at `cursor`, so `index` must not be less than in
    /// the previous call with the same cursor.
    pub(crate) fn chunk_at(&self, index: usize, max: usize, cursor: &mut Cursor) -> Option<Chunk> {
        while let Some(chunk) = self.chunks.get(cursor.chunk) {
            let Cursor { start, .. } = *cursor;
            let end = start + chunk.len();
            if index < end {
                return Some(chunk.slice(index - start..end.min(index.saturating_add(max)) - start));
            }
            *cursor = Cursor { chunk: cursor.chunk + 1, start: end };
        }
        None
    }

    /// Returns the given range of the elements, without copying tensors. The range must be within bounds.
    pub(crate) fn slice(&self, range: Range<usize>) -> Assembly {
        let mut part = Assembly::new(self.number);
        let mut start = 0;
        for chunk in &self.chunks {
            let end = start + chunk.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                let chunk = chunk.slice(from - start..to - start);
                part.len += chunk.len();
                part.chunks.push(chunk);
            }
            start = end;
        }
        part
    }

    /// Splits the batch into one batch for each of the given ranges of rows. If there are several ranges, none of them
    /// is empty, and all chunks are rows of sources, each row is copied at most once, directly into its new batch.
    /// Otherwise the complete batch is assembled first.
    pub(crate) fn cut(self, pieces: Vec<Range<usize>>) -> Result<Vec<Tree<Leaf>>> {
        let of_rows = self.chunks.iter().all(|chunk| matches!(chunk, Chunk::Rows(..)));
        // An empty piece is made from the complete batch. If elements differ, assembling them once gives one error.
        if pieces.len() < 2 || !of_rows || pieces.iter().any(Range::is_empty) {
            let batch = self.finish()?;
            crate::split::batch_rows(&batch)?;
            return crate::split::pieces_of(&batch, &pieces);
        }
        pieces.into_iter().map(|piece| self.slice(piece).finish()).collect()
    }

    /// Assembles and returns the batch.
    pub(crate) fn finish(self) -> Result<Tree<Leaf>> {
        let (batch, elements) = (self.number, self.len);
        self.assemble().map_err(|fault| match fault {
            Fault::Tensor(source) => Error::Stack { batch, elements, source },
            Fault::Other(error) => error,
        })
    }

    fn assemble(self) -> Result<Tree<Leaf>, Fault> {
        let mut batches = self.chunks.into_iter().map(Chunk::into_batch).collect::<Result<Vec<_>, _>>()?;
        match batches.len() {
            1 => Ok(batches.remove(0)),
            _ => Tree::concat_rows(batches).map_err(Fault::Tensor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_tensor::{HostTensor, Nest};
    use proptest::prelude::*;

    /// Returns elements in chunks of these lengths: values, contiguous rows and other rows in turn.
    fn assembly(lens: &[usize]) -> Assembly {
        let mut all = Assembly::new(0);
        for (i, len) in lens.iter().enumerate() {
            let numbers: Vec<i64> = (0..*len).map(|n| (all.len() + n) as i64).collect();
            let leaf = |tensor| Tree::Leaf(Leaf::Host(tensor));
            let chunk = match i % 3 {
                0 => Chunk::Values(numbers.iter().map(|n| leaf(HostTensor::scalar(*n))).collect()),
                1 => Chunk::rows(leaf(HostTensor::vector(numbers)), *len),
                _ => {
                    let Chunk::Rows(rows, _) = Chunk::rows(leaf(HostTensor::vector(numbers)), *len) else {
                        unreachable!()
                    };
                    Chunk::Rows(rows, Picks::List((0..*len).collect()))
                }
            };
            all.len += len;
            all.chunks.push(chunk);
        }
        all
    }

    fn numbers(assembly: Assembly) -> Vec<usize> {
        let number = |tree| i64::from_tree(tree).unwrap() as usize;
        assembly.into_values().unwrap().into_iter().map(number).collect()
    }

    proptest! {
        #[test]
        fn elements_are_dropped_picked_and_found_in_any_chunks(
            lens in proptest::collection::vec(1usize..5, 0..8),
            (dropped, stride, end, max) in (0usize..20, 1usize..5, 0usize..30, 1usize..6),
        ) {
            let n = lens.iter().sum::<usize>();
            let mut rest = assembly(&lens);
            rest.drop_first(dropped);
            prop_assert_eq!(rest.len(), n.saturating_sub(dropped));
            let left: Vec<usize> = (dropped.min(n)..n).collect();
            let picked: Vec<usize> = left.iter().take(end).step_by(stride).copied().collect();
            prop_assert_eq!(numbers(rest.every(stride, end).unwrap()), picked);
            prop_assert_eq!(numbers(rest), left);
            let (all, mut cursor, mut found) = (assembly(&lens), Cursor::default(), Vec::new());
            while let Some(chunk) = all.chunk_at(found.len(), max, &mut cursor) {
                let mut one = Assembly::new(0);
                one.push(chunk).unwrap();
                prop_assert!(one.len() <= max && one.len() > 0);
                found.extend(numbers(one));
            }
            prop_assert_eq!(found, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn elements_that_stay_are_not_copied() {
        let value = |n: usize| Tree::List(vec![Tree::Leaf(Leaf::Host(HostTensor::scalar(n as i64)))]);
        let place = |value: &Tree<Leaf>| match value {
            Tree::List(items) => items.as_ptr(),
            other => panic!("{other:?}"),
        };
        let values: Vec<_> = (0..4).map(value).collect();
        let last = place(&values[3]);
        let mut held = Assembly::new(0);
        held.push(Chunk::Values(values)).unwrap();
        held.drop_first(2);
        assert_eq!(place(&held.into_values().unwrap()[1]), last);
    }
}
