//! The sum of the numbers that several senders have sent as packets of their [largest ones](super::top_k). Most numbers
//! are in no packet, and are not added up.

use super::CHUNK;
use super::top_k::{chunk_len, decode_chunk};
use crate::Result;
use crate::kernel::fold_scaled;

/// The memory for the sum of a chunk, which is reused for each chunk.
pub(super) struct SparseSum {
    columns: Columns,
    /// The positions of the numbers that are in any packet, in ascending order. Each has a column.
    positions: Vec<u16>,
    /// A row for each sender.
    numbers: Vec<f32>,
    sums: Vec<f32>,
    weights: Vec<f32>,
}

impl SparseSum {
    pub(super) fn new(senders: usize) -> Self {
        let (positions, numbers, sums) = Default::default();
        Self { columns: Columns::new(), positions, numbers, sums, weights: vec![1.; senders] }
    }

    /// Decodes the packets of a range of numbers, and writes their sums, each in the order of
    /// [`fold`](crate::kernel::fold). A sender without a packet sends zeros.
    ///
    /// # Errors
    /// Returns the errors of [`decode`](super::top_k::decode).
    pub(super) fn write(&mut self, packets: &[Option<&[u8]>], sum: &mut [f32]) -> Result<()> {
        sum.fill(0.);
        for (chunk, sum) in sum.chunks_mut(CHUNK).enumerate() {
            let first = chunk * chunk_len(CHUNK);
            let bytes = first..first + chunk_len(sum.len());
            self.write_chunk(|sender| packets[sender]?.get(bytes.clone()), chunk, sum)?;
        }
        Ok(())
    }

    /// Writes the sums of chunk number `chunk` to `sum`, which contains zeros. `packet` returns the packet of a sender.
    fn write_chunk<'p>(
        &mut self,
        packet: impl Fn(usize) -> Option<&'p [u8]>,
        chunk: usize,
        sum: &mut [f32],
    ) -> Result<()> {
        let Self { columns, positions, numbers, sums, weights } = self;
        let senders = weights.len();
        columns.clear();
        for packet in (0..senders).filter_map(&packet) {
            decode_chunk(packet, chunk, sum.len(), |at, _| columns.add(at))?;
        }
        columns.number(positions);
        let width = positions.len();
        if width == 0 {
            return Ok(());
        }
        numbers.clear();
        numbers.resize(senders * width, 0.);
        for (sender, row) in numbers.chunks_mut(width).enumerate() {
            if let Some(packet) = packet(sender) {
                decode_chunk(packet, chunk, sum.len(), |at, x| row[columns.of(at)] = x)?;
            }
        }
        sums.resize(width, 0.);
        fold_scaled(&numbers.chunks(width).collect::<Vec<_>>(), weights, sums);
        for (at, x) in positions.iter().zip(&*sums) {
            sum[usize::from(*at)] = *x;
        }
        Ok(())
    }
}

/// A set of positions in a chunk, which are the columns of a matrix.
struct Columns {
    /// A bit for each position.
    bits: [u64; CHUNK / 64],
    /// The column of each position in the set.
    columns: [u16; CHUNK],
}

impl Columns {
    fn new() -> Self {
        Self { bits: [0; CHUNK / 64], columns: [0; CHUNK] }
    }

    fn clear(&mut self) {
        self.bits.fill(0);
    }

    fn add(&mut self, at: usize) {
        self.bits[at / 64] |= 1 << (at % 64);
    }

    /// Numbers the columns, and writes their positions in ascending order.
    fn number(&mut self, positions: &mut Vec<u16>) {
        positions.clear();
        for (word, bits) in self.bits.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.columns[at] = positions.len() as u16;
                positions.push(at as u16);
            }
        }
    }

    /// Returns the column of a position in the set.
    fn of(&self, at: usize) -> usize {
        usize::from(self.columns[at])
    }
}
