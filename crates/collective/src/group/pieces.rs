//! A vector in several pieces, each in the memory into which it was received.

use super::Buffers;
use bytes::Bytes;
use std::ops::Range;

/// The bytes of a vector in consecutive pieces. There are gaps between pieces that have not been received yet.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<(usize, Bytes)>);

impl Pieces {
    /// Replaces the bytes from offset `start` by `bytes`.
    pub(super) fn put(&mut self, start: usize, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let end = start + bytes.len();
        let mut all = Vec::with_capacity(self.0.len() + 2);
        for (at, old) in std::mem::take(&mut self.0) {
            let old_end = at + old.len();
            if at < start {
                all.push((at, old.slice(..old.len().min(start - at))));
            }
            if old_end > end {
                all.push((at.max(end), old.slice(end.saturating_sub(at)..)));
            }
        }
        all.push((start, bytes));
        all.sort_by_key(|(at, _)| *at);
        self.0 = all;
    }

    /// Returns the bytes in the range `place`, or `None` if some of them are missing. They are copied only if they are
    /// in several pieces.
    pub(super) fn get(&self, place: Range<usize>, buffers: &Buffers) -> Option<Bytes> {
        let mut parts = Vec::new();
        let mut next = place.start;
        for (at, bytes) in &self.0 {
            if *at <= next && next < (at + bytes.len()).min(place.end) {
                parts.push(bytes.slice(next - at..bytes.len().min(place.end - at)));
                next = (at + bytes.len()).min(place.end);
            }
        }
        (next == place.end).then(|| buffers.concat(parts))
    }

    /// Returns all pieces, in the order of their offsets.
    pub(super) fn into_all(self) -> impl Iterator<Item = Bytes> {
        self.0.into_iter().map(|(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbox::tests::Still;
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn pieces_are_the_vector_into_which_they_are_put(
            puts in proptest::collection::vec((0usize..40, 0usize..20), 0..8), start in 0usize..60, len in 0usize..20,
        ) {
            let buffers = Buffers::new(Arc::new(Still));
            let (mut pieces, mut model) = (Pieces::default(), vec![None; 80]);
            for (value, (start, len)) in puts.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..len).map(|at| (20 * value + at) as u8).collect();
                bytes.iter().zip(&mut model[start..]).for_each(|(byte, place)| *place = Some(*byte));
                pieces.put(start, bytes.into());
            }
            let expected: Option<Vec<u8>> = model[start..start + len].iter().copied().collect();
            prop_assert_eq!(pieces.get(start..start + len, &buffers).map(|bytes| bytes.to_vec()), expected);
            let all: Vec<u8> = model.into_iter().flatten().collect();
            prop_assert_eq!(pieces.into_all().flatten().collect::<Vec<u8>>(), all);
        }
    }
}
