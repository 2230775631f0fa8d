//! The checksum of a piece whose rows are read in ranges.

use crate::bundle::Piece;
use crate::read::compare;
use distribute_checkpoint::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// The ranges of rows that were read, by their first row: the row after the last, the size in bytes, and the checksum.
#[derive(Debug, Default)]
pub(crate) struct Segments(BTreeMap<usize, (usize, usize, u32)>);

impl Segments {
    /// Adds rows of a piece. When all rows have been added, compares the checksum and starts over.
    ///
    /// # Errors
    /// - [`Error::Damaged`](distribute_checkpoint::Error::Damaged): the checksum differs.
    pub(crate) fn add(&mut self, piece: &Piece, rows: Range<usize>, bytes: &[u8]) -> Result<()> {
        // A save that has failed reads the same rows again.
        self.0.retain(|start, (end, ..)| *end <= rows.start || rows.end <= *start);
        let (mut start, mut end) = (rows.start, rows.end);
        let (mut size, mut crc) = (bytes.len(), crc32c::crc32c(bytes));
        let before = self.0.range(..start).next_back().map(|(start, segment)| (*start, *segment));
        if let Some((first, (_, first_size, first_crc))) = before.filter(|(_, (end, ..))| *end == start) {
            self.0.remove(&first);
            crc = crc32c::crc32c_combine(first_crc, crc, size);
            (start, size) = (first, first_size + size);
        }
        if let Some((last, last_size, last_crc)) = self.0.remove(&end) {
            crc = crc32c::crc32c_combine(crc, last_crc, last_size);
            (end, size) = (last, size + last_size);
        }
        if end - start < piece.region.rows().len() {
            self.0.insert(start, (end, size, crc));
            return Ok(());
        }
        self.0.clear();
        compare(piece, crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::masked;
    use crate::slices::Region;

    #[test]
    fn ranges_in_any_order_have_the_checksum_of_all() {
        let bytes: Vec<u8> = (0..40).collect();
        let piece = |crc| Piece {
            region: Region { start: vec![7, 0], shape: vec![10, 4] },
            file: std::path::Path::new("data").into(),
            offset: 3,
            size: 40,
            crc,
        };
        let good = masked(crc32c::crc32c(&bytes));
        let orders: [&[Range<usize>]; 4] = [
            &[0..3, 3..4, 4..10],
            &[4..10, 0..3, 3..4],
            // Again from the beginning, after a part.
            &[0..3, 3..6, 0..5, 5..10],
            &[0..9, 9..10],
        ];
        for order in orders {
            let mut segments = Segments::default();
            for (crc, is_ok) in [(good, true), (good ^ 1, false), (good, true)] {
                let (last, first) = order.split_last().unwrap();
                let mut add = |rows: &Range<usize>| {
                    segments.add(&piece(crc), rows.clone(), &bytes[4 * rows.start..4 * rows.end])
                };
                first.iter().for_each(|rows| add(rows).unwrap());
                assert_eq!(add(last).is_ok(), is_ok, "{order:?}");
            }
        }
    }
}
