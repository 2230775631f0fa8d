//! Chunks side by side: what `zip` and `enumerate` are made of.

use crate::Result;
use crate::chunk::{Chunk, Picks};
use crate::rows::{Rows, pair};
use std::sync::Arc;

/// Makes pairs of chunks.
#[derive(Default)]
pub(super) struct Pairing {
    /// The pairs of rows made last: those of the next chunk mostly go on in them.
    last: Option<Arc<Rows>>,
}

impl Pairing {
    /// Returns the elements of both, to the end of the shorter. Where both are rows next to each other, they
    /// stay rows.
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

    /// Returns the pairs from row `a` of the one and row `b` of the other on, and where in them these rows
    /// are.
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
