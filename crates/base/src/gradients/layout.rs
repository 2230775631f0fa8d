//! The layout of gradients in packs. It is a pure function of the variables' sizes and their order.

use super::PackShard;
use super::shard::PackOffset;
use bytes::Bytes;
use candle_core::DType;
use distribute_cluster::fnv1a;
use distribute_collective::group::Buffers;
use std::ops::Range;

/// The size of a cache line in bytes. Each variable begins on a new cache line.
const LINE: usize = 64;

/// The size in bytes at which no more variables are added to a pack. Sending a pack of this size over a 1 Gbit/s link
/// takes 2 ms, which is hundreds of times the fixed cost of a message.
const PACK: usize = 256 << 10;

/// The approximate maximum number of packs. A larger model has larger packs. The number may be exceeded slightly if
/// variables are large or have two dtypes.
const MOST_PACKS: usize = 16;

/// The size in bytes from which a variable has a pack of its own. Such a pack is the same in every layout, so that a
/// gradient that was written before the workers have agreed on a layout is not copied.
const LARGE: usize = 4 << 20;

/// The packs, and the offset of each variable in its pack.
#[derive(Debug, PartialEq)]
pub struct Layout {
    /// The offset of each variable; `None` if the variable is not in a pack.
    offsets: Vec<Option<PackOffset>>,
    packs: Vec<Pack>,
    /// The shard of the packs that each worker receives; `None` if each worker receives everything or an equal range of
    /// each pack.
    shards: Option<Vec<PackShard>>,
    digest: u64,
}

/// The range of each variable's elements that is assigned to each worker, indexed by worker and then by variable.
pub(crate) type Ranges = Vec<Vec<Range<usize>>>;

/// A description of one pack. A pack contains gradients of the same dtype, which are sent together.
#[derive(Debug, PartialEq)]
pub struct Pack {
    /// The dtype of the pack's elements.
    pub dtype: DType,
    /// The size of the pack in bytes.
    pub len: usize,
    /// The number of variables in the pack.
    pub(super) variables: usize,
}

impl Layout {
    /// Computes the layout of the variables that are `dense`. `sizes` contains the dtype and number of elements of each
    /// variable. Packs are filled in the given `order`; variables that are missing in it come last. If `ranges` are
    /// given, each worker receives only its ranges of every pack.
    pub(crate) fn new(
        sizes: &[(DType, usize)],
        dense: &[bool],
        order: &[u32],
        ranges: Option<&Ranges>,
    ) -> Self {
        let mut turn = vec![order.len(); sizes.len()];
        for (at, number) in order.iter().enumerate() {
            if let Some(turn) = turn.get_mut(*number as usize) {
                *turn = at;
            }
        }
        let mut numbers: Vec<_> = (0..sizes.len()).filter(|number| dense[*number]).collect();
        numbers.sort_by_key(|number| turn[*number]);
        let size = |number: usize| bytes_of(sizes[number]);
        let closed = closed_at(numbers.iter().map(|number| sizes[*number]));
        let mut all = Self { offsets: vec![None; sizes.len()], packs: Vec::new(), shards: None, digest: 0 };
        for number in numbers {
            let dtype = sizes[number].0;
            // A range of a pack with one variable is sent without a copy.
            let alone = size(number) >= if ranges.is_some() { closed } else { closed.max(LARGE) };
            let open = all.packs.iter().rposition(|pack| pack.dtype == dtype && pack.len < closed);
            let open = open.filter(|_| !alone);
            let index = open.unwrap_or_else(|| {
                all.packs.push(Pack { dtype, len: 0, variables: 0 });
                all.packs.len() - 1
            });
            let pack = &mut all.packs[index];
            let bytes = pack.len..pack.len + size(number);
            pack.len = bytes.end.next_multiple_of(LINE);
            pack.variables += 1;
            all.offsets[number] = Some(PackOffset { pack: index, bytes });
        }
        let offsets = all.offsets.iter().map(|offset| match offset {
            Some(PackOffset { pack, bytes }) => [*pack as u64 + 1, bytes.start as u64, bytes.end as u64],
            None => [0; 3],
        });
        let shard = |ranges: &Vec<_>| PackShard::new(all.packs.len(), &all.offsets, sizes, ranges);
        let shards: Option<Vec<_>> = ranges.map(|ranges| ranges.iter().map(shard).collect());
        let shard_words = shards.iter().flatten().flat_map(PackShard::digest_words);
        all.digest = fnv1a(offsets.flatten().chain(shard_words).flat_map(u64::to_le_bytes));
        all.shards = shards;
        all
    }

    /// Computes the layout of the variables that have a pack of their own in all layouts; `None` if there are none.
    pub(super) fn of_large(sizes: &[(DType, usize)], ranges: Option<&Ranges>) -> Option<Self> {
        let least = LARGE.max(closed_at(sizes.iter().copied()));
        let large: Vec<_> = sizes.iter().map(|size| bytes_of(*size) >= least).collect();
        large.contains(&true).then(|| Self::new(sizes, &large, &[], ranges))
    }

    /// Returns `true` if the packs contain exactly the variables that are `dense`.
    pub(crate) fn is_of(&self, dense: &[bool]) -> bool {
        self.offsets.iter().map(Option::is_some).eq(dense.iter().copied())
    }

    /// Returns `true` if the packs contain variable `number`.
    pub fn has(&self, number: usize) -> bool {
        self.offset(number).is_some()
    }

    /// Returns the index of the pack that contains variable `number`, if any.
    pub(super) fn pack(&self, number: usize) -> Option<usize> {
        Some(self.offset(number)?.pack)
    }

    pub(super) fn offset(&self, number: usize) -> Option<&PackOffset> {
        self.offsets.get(number)?.as_ref()
    }

    /// Returns the size in bytes and the index of the pack that contains variable `number` and no other; `None` if
    /// there is none.
    pub(super) fn lone(&self, number: usize) -> Option<(usize, usize)> {
        let index = self.pack(number)?;
        let pack = self.packs.get(index).filter(|pack| pack.variables == 1)?;
        Some((pack.len, index))
    }

    /// Returns the shard of the packs that a worker receives; `None` if variables are not partitioned between workers.
    pub fn shard(&self, worker: usize) -> Option<&PackShard> {
        self.shards.as_ref()?.get(worker)
    }

    /// Returns a function that extracts a worker's shard of a pack; `None` if variables are not partitioned between
    /// workers.
    pub(crate) fn shards_of_pack<'a>(
        &'a self,
        pack: usize,
        bytes: &'a Bytes,
        buffers: &'a Buffers,
    ) -> Option<impl Fn(usize) -> Bytes + 'a> {
        let shards = self.shards.as_ref()?;
        Some(move |worker: usize| {
            shards.get(worker).map_or_else(Bytes::new, |shard| shard.extract(pack, bytes, buffers))
        })
    }

    /// Returns the packs, in the order of their indices.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// Returns a digest of the layout, which workers compare.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

/// Returns the size in bytes of a variable with a dtype and a number of elements.
fn bytes_of((dtype, elements): (DType, usize)) -> usize {
    elements * dtype.size_in_bytes()
}

/// Returns the size in bytes at which a pack is full: no variable is added to a pack that has reached it. `sizes`
/// contains the dtype and the number of elements of each variable in the layout.
fn closed_at(sizes: impl Iterator<Item = (DType, usize)>) -> usize {
    PACK.max(sizes.map(bytes_of).sum::<usize>().div_ceil(MOST_PACKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [(DType, usize); 5] =
        [(DType::F32, 3), (DType::F64, 20), (DType::F32, 7), (DType::F64, 0), (DType::F32, 100)];

    fn offset(pack: usize, bytes: Range<usize>) -> Option<PackOffset> {
        Some(PackOffset { pack, bytes })
    }

    #[test]
    fn each_variable_starts_on_a_separate_cache_line_and_packs_have_one_dtype() {
        let dense = [true, true, false, true, true];
        let layout = Layout::new(&SIZES, &dense, &[4, 1], None);
        assert!(layout.is_of(&dense) && !layout.is_of(&[true; 5]));
        assert_eq!(
            layout.offsets,
            [offset(0, 448..460), offset(1, 0..160), None, offset(1, 192..192), offset(0, 0..400)]
        );
        let packs: Vec<_> =
            layout.packs().iter().map(|pack| (pack.dtype, pack.len, pack.variables)).collect();
        assert_eq!(packs, [(DType::F32, 512, 2), (DType::F64, 192, 2)]);
    }

    #[test]
    fn packs_are_closed_when_they_are_large_enough() {
        let sizes = [(DType::F32, 40 << 10); 7];
        let numbers = |layout: &Layout| (0..7).map(|n| layout.offset(n).unwrap().pack).collect::<Vec<_>>();
        let reversed: Vec<u32> = (0..7).rev().collect();
        assert_eq!(numbers(&Layout::new(&sizes, &[true; 7], &reversed, None)), [3, 2, 2, 1, 1, 0, 0]);
        // A large model has no more of them.
        let sizes = vec![(DType::F32, 1 << 20); 100];
        assert_eq!(Layout::new(&sizes, &[true; 100], &[], None).packs().len(), 15);
    }

    #[test]
    fn a_large_variable_has_the_same_pack_in_every_layout() {
        let sizes = [(DType::F32, 3), (DType::F32, LARGE), (DType::F32, 2), (DType::F64, LARGE / 8)];
        let large = Layout::of_large(&sizes, None).unwrap();
        assert_eq!([0, 1, 2, 3].map(|number| large.has(number)), [false, true, false, true]);
        for order in [&[0, 1, 2, 3], &[3, 2, 1, 0]] {
            let layout = Layout::new(&sizes, &[true; 4], order, None);
            for number in [1, 3] {
                let lone = layout.lone(number).map(|(len, _)| len);
                assert_eq!(lone, Some(bytes_of(sizes[number])));
                assert_eq!(lone, large.lone(number).map(|(len, _)| len));
            }
            assert_eq!((layout.lone(0), layout.lone(2)), (None, None));
        }
        assert!(Layout::of_large(&SIZES, None).is_none());
        // Each of many is a small part of the model, and they share packs.
        assert!(Layout::of_large(&[(DType::F32, LARGE / 4); 100], None).is_none());
    }

    #[test]
    fn other_variables_or_another_order_have_another_digest() {
        let layout = |dense, order: &[u32]| Layout::new(&SIZES, dense, order, None).digest();
        let one = layout(&[true; 5], &[0, 1, 2, 3, 4]);
        assert_eq!(one, layout(&[true; 5], &[]));
        assert_ne!(one, layout(&[true; 5], &[4]));
        assert_ne!(one, layout(&[true, true, true, true, false], &[]));
        // Numbers that no variable has, as another worker may send.
        assert_eq!(one, layout(&[true; 5], &[u32::MAX]));
    }
}
