//! The pairing of chunks, for `zip` and `enumerate`.

use crate::Result;
use crate::chunk::{Chunk, Picks};
use crate::rows::{Rows, pair};
use std::sync::Arc;

/// A cache for pairing chunks, with which pairs of consecutive chunks share one source of rows.
#[derive(Default)]
pub(super) struct Pairing {
    /// The pairs of rows that were created last. The next chunk usually continues in them.
    last: Option<Arc<Rows>>,
}

impl Pairing {
    /// Pairs the elements of two chunks, up to the end of the shorter one. If both chunks are contiguous rows,
    /// the result consists of rows as well.
    pub(super) fn pair(&mut self, first: Chunk, second: Chunk) -> Result<Chunk> {
        match (first, second) {
            (Chunk::Rows(first, Picks::Range(a)), Chunk::Rows(second, Picks::Range(b))) => {
                let count = a.len().min(b.len());
                let (rows, start) = self.rows(&first, a.start, &second, b.start);
                Ok(Chunk::Rows(rows, Picks::Range(start..start + count)))
            }
            (first, second) => {
                let both = first.into_values()?.into_iter().zip(second.into_values()?);
                Ok(Chunk::Values(both.map(|(first, second)| pair(first, second)).collect()))
            }
        }
    }

    /// Returns a source of pairs that contains row `a` of the first source with row `b` of the second, and the index
    /// of this pair.
    fn rows(&mut self, first: &Arc<Rows>, a: usize, second: &Arc<Rows>, b: usize) -> (Arc<Rows>, usize) {
        if let Some(rows) = &self.last
            && let Rows::Pairs { first: x, first_start, second: y, second_start, .. } = rows.as_ref()
            && Arc::ptr_eq(x, first)
            && Arc::ptr_eq(y, second)
            && a >= *first_start
            && a - first_start == b.wrapping_sub(*second_start)
        {
            return (rows.clone(), a - first_start);
        }
        let len = first.len().saturating_sub(a).min(second.len().saturating_sub(b));
        let (first, second) = (first.clone(), second.clone());
        let rows = Arc::new(Rows::Pairs { first, first_start: a, second, second_start: b, len });
        self.last = Some(rows.clone());
        (rows, 0)
    }
}
