//! The shard of the packs that one worker receives, if variables are partitioned between workers.

use bytes::Bytes;
use candle_core::DType;
use distribute_collective::group::Buffers;
use std::ops::Range;

/// The pack that contains a variable, and the range of the variable's bytes in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackOffset {
    pub(super) pack: usize,
    pub(super) bytes: Range<usize>,
}

/// The shard of the packs that one worker receives: its ranges of the variables in each pack, concatenated.
#[derive(Debug, PartialEq)]
pub struct PackShard {
    /// The byte ranges in each pack, in ascending order.
    pack_ranges: Vec<Vec<Range<usize>>>,
    /// The offset of each variable's range in the worker's shard of its pack.
    offsets: Vec<Option<PackOffset>>,
}

impl PackShard {
    /// Creates the shard of a worker that updates the given `ranges` of the variables. `packs` is the number of packs.
    /// `whole` contains the offset of each complete variable, and `sizes` its dtype and number of elements.
    pub(super) fn new(
        packs: usize,
        whole: &[Option<PackOffset>],
        sizes: &[(DType, usize)],
        ranges: &[Range<usize>],
    ) -> Self {
        let mut shard = Self { pack_ranges: vec![Vec::new(); packs], offsets: vec![None; whole.len()] };
        let mut placed: Vec<_> = whole
            .iter()
            .enumerate()
            .filter_map(|(number, offset)| Some((number, offset.as_ref()?)))
            .collect();
        placed.sort_by_key(|(_, offset)| (offset.pack, offset.bytes.start));
        for (number, offset) in placed {
            let width = sizes[number].0.size_in_bytes();
            let Range { start, end } = ranges[number];
            let (begin, len) = (shard.len(offset.pack), (end - start) * width);
            shard.offsets[number] = Some(PackOffset { pack: offset.pack, bytes: begin..begin + len });
            if len > 0 {
                let from = offset.bytes.start + start * width;
                shard.pack_ranges[offset.pack].push(from..from + len);
            }
        }
        shard
    }

    /// Returns the number of bytes of a pack that the worker receives.
    pub fn len(&self, pack: usize) -> usize {
        self.pack_ranges.get(pack).map_or(0, |pack_ranges| pack_ranges.iter().map(Range::len).sum())
    }

    /// Returns the bytes of a pack that the worker receives. They are copied only if they consist of several ranges.
    pub fn extract(&self, pack: usize, bytes: &Bytes, buffers: &Buffers) -> Bytes {
        let pack_ranges = self.pack_ranges.get(pack).map_or(&[][..], |pack_ranges| pack_ranges);
        buffers.concat(pack_ranges.iter().map(|cut| bytes.slice(cut.clone())))
    }

    pub(super) fn offset(&self, number: usize) -> Option<&PackOffset> {
        self.offsets.get(number)?.as_ref()
    }

    /// Returns numbers that determine the shard, for a digest.
    pub(super) fn digest_words(&self) -> impl Iterator<Item = u64> {
        self.pack_ranges.iter().flatten().flat_map(|cut| [cut.start as u64, cut.end as u64])
    }
}
