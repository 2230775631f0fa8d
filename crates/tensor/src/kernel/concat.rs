//! Joining and slicing along an axis.
//!
//! A tensor of shape `[outer…, n, inner…]` consists of `outer` chunks of `n * inner` elements. To join tensors along
//! the axis of size `n`, one chunk of each tensor is copied in turn.

/// Joins `pieces`. Piece `i` consists of chunks with `chunks[i]` elements each. If `chunks[i]` is 0, the piece must be
/// empty.
///
/// # Panics
/// Panics if `chunks` and `pieces` differ in length, or if the pieces do not have the same number of chunks.
pub fn concat<T: Clone>(pieces: &[&[T]], chunks: &[usize]) -> Vec<T> {
    assert_eq!(pieces.len(), chunks.len(), "one chunk size for each piece");
    let outer = pieces.iter().zip(chunks).find(|(_, c)| **c > 0).map_or(0, |(p, c)| p.len() / c);
    for (piece, chunk) in pieces.iter().zip(chunks) {
        assert_eq!(piece.len(), outer * chunk, "all pieces have the same number of chunks");
    }
    let mut out = Vec::with_capacity(pieces.iter().map(|p| p.len()).sum());
    for o in 0..outer {
        for (piece, chunk) in pieces.iter().zip(chunks) {
            out.extend_from_slice(&piece[o * chunk..(o + 1) * chunk]);
        }
    }
    out
}

/// Returns `chunk` elements of each run of `stride` elements, beginning at position `start` in the run.
///
/// # Panics
/// Panics if `whole` does not consist of complete runs, or if the requested elements exceed a run.
pub fn narrow<T: Clone>(whole: &[T], stride: usize, start: usize, chunk: usize) -> Vec<T> {
    if stride == 0 {
        assert!(whole.is_empty(), "elements without runs");
        return Vec::new();
    }
    assert_eq!(whole.len() % stride, 0, "a whole number of runs");
    let mut out = Vec::with_capacity(whole.len() / stride * chunk);
    for run in whole.chunks_exact(stride) {
        out.extend_from_slice(&run[start..start + chunk]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn joins_along_an_inner_axis() {
        // [2, 1] and [2, 2] along axis 1.
        assert_eq!(concat(&[&[1, 4][..], &[2, 3, 5, 6]], &[1, 2]), [1, 2, 3, 4, 5, 6]);
        assert!(concat::<u8>(&[&[], &[]], &[0, 0]).is_empty());
    }

    proptest! {
        #[test]
        fn narrow_undoes_concat(outer in 1usize..5, chunks in prop::collection::vec(0usize..5, 1..5)) {
            let pieces: Vec<Vec<usize>> =
                chunks.iter().enumerate().map(|(i, c)| (0..outer * c).map(|x| 100 * i + x).collect()).collect();
            let views: Vec<&[usize]> = pieces.iter().map(Vec::as_slice).collect();
            let (whole, stride) = (concat(&views, &chunks), chunks.iter().sum());
            let mut start = 0;
            for (piece, chunk) in pieces.iter().zip(&chunks) {
                prop_assert_eq!(&narrow(&whole, stride, start, *chunk), piece);
                start += chunk;
            }
        }
    }
}
