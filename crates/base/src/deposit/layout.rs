//! The layout of gradients in the packs for other workers: a function of sizes and of their order.

use super::Part;
use bytes::Bytes;
use candle_core::DType;
use distribute_cluster::fnv1a;
use distribute_collective::group::Buffers;
use std::ops::Range;

/// Each variable begins on a cache line of its own.
const LINE: usize = 64;

/// The size in bytes at which a pack is closed. On a link of 1 Gbit/s it takes 2 ms, hundreds of times the time of a
/// message itself.
const PACK: usize = 256 << 10;

/// The largest number of packs, or a few more if variables are large or have two dtypes: a large model has larger
/// packs.
const MOST_PACKS: usize = 16;

/// The variables of each pack, and their places.
#[derive(Debug, PartialEq)]
pub struct Layout {
    /// The place of each variable.
    places: Vec<Option<Place>>,
    packs: Vec<Pack>,
    /// The parts of the packs that each worker gets, if they are not all or an equal range of each.
    parts: Option<Vec<Part>>,
    digest: u64,
}

/// The elements of each variable that a worker owns, for each worker.
pub(crate) type Ranges = Vec<Vec<Range<usize>>>;

/// The bytes of a variable in a pack.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) pack: usize,
    pub(super) bytes: Range<usize>,
}

/// Gradients of one dtype, which are sent together.
#[derive(Debug, PartialEq)]
pub struct Pack {
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its bytes.
    pub len: usize,
    /// The number of its variables.
    pub(super) variables: usize,
}

impl Layout {
    /// The layout of the variables that are `dense`, of which each has a dtype and a number of elements. Those that
    /// come first in `order` are in the first packs; those that are not in it come last. Where workers own `ranges` of
    /// variables, each gets its own of every pack.
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
        let size = |number: usize| sizes[number].1 * sizes[number].0.size_in_bytes();
        let whole = numbers.iter().map(|number| size(*number)).sum::<usize>();
        let closed = PACK.max(whole.div_ceil(MOST_PACKS));
        let mut all = Self { places: vec![None; sizes.len()], packs: Vec::new(), parts: None, digest: 0 };
        for number in numbers {
            let dtype = sizes[number].0;
            // A range of a pack of one variable is sent from where it lies.
            let alone = ranges.is_some() && size(number) >= closed;
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
            all.places[number] = Some(Place { pack: index, bytes });
        }
        let places = all.places.iter().map(|place| match place {
            Some(Place { pack, bytes }) => [*pack as u64 + 1, bytes.start as u64, bytes.end as u64],
            None => [0; 3],
        });
        let part = |ranges: &Vec<_>| Part::new(all.packs.len(), &all.places, sizes, ranges);
        let parts: Option<Vec<_>> = ranges.map(|ranges| ranges.iter().map(part).collect());
        let of_parts = parts.iter().flatten().flat_map(Part::numbers);
        all.digest = fnv1a(places.flatten().chain(of_parts).flat_map(u64::to_le_bytes));
        all.parts = parts;
        all
    }

    /// Whether these are the variables that have a place.
    pub(crate) fn is_of(&self, dense: &[bool]) -> bool {
        self.places.iter().map(Option::is_some).eq(dense.iter().copied())
    }

    /// Whether a variable has a place.
    pub fn has(&self, number: usize) -> bool {
        self.place(number).is_some()
    }

    /// The pack of a variable, if it has a place.
    pub(super) fn pack(&self, number: usize) -> Option<usize> {
        Some(self.place(number)?.pack)
    }

    pub(super) fn place(&self, number: usize) -> Option<&Place> {
        self.places.get(number)?.as_ref()
    }

    /// Returns the part of the packs that a worker gets, if workers partition variables.
    pub fn part(&self, worker: usize) -> Option<&Part> {
        self.parts.as_ref()?.get(worker)
    }

    /// Returns the part of a pack that each worker gets, if workers partition variables.
    pub(crate) fn pieces<'a>(
        &'a self,
        pack: usize,
        bytes: &'a Bytes,
        buffers: &'a Buffers,
    ) -> Option<impl Fn(usize) -> Bytes + 'a> {
        let parts = self.parts.as_ref()?;
        Some(move |worker: usize| {
            parts.get(worker).map_or_else(Bytes::new, |part| part.of(pack, bytes, buffers))
        })
    }

    /// The packs, in the order in which they are sent.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// The same for equal layouts alone.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [(DType, usize); 5] =
        [(DType::F32, 3), (DType::F64, 20), (DType::F32, 7), (DType::F64, 0), (DType::F32, 100)];

    fn place(pack: usize, bytes: Range<usize>) -> Option<Place> {
        Some(Place { pack, bytes })
    }

    #[test]
    fn each_variable_begins_on_a_line_of_its_own_and_packs_have_one_dtype() {
        let dense = [true, true, false, true, true];
        let layout = Layout::new(&SIZES, &dense, &[4, 1], None);
        assert!(layout.is_of(&dense) && !layout.is_of(&[true; 5]));
        assert_eq!(
            layout.places,
            [place(0, 448..460), place(1, 0..160), None, place(1, 192..192), place(0, 0..400)]
        );
        let packs: Vec<_> =
            layout.packs().iter().map(|pack| (pack.dtype, pack.len, pack.variables)).collect();
        assert_eq!(packs, [(DType::F32, 512, 2), (DType::F64, 192, 2)]);
    }

    #[test]
    fn packs_are_closed_when_they_are_large_enough() {
        let sizes = [(DType::F32, 40 << 10); 7];
        let numbers = |layout: &Layout| (0..7).map(|n| layout.place(n).unwrap().pack).collect::<Vec<_>>();
        let reversed: Vec<u32> = (0..7).rev().collect();
        assert_eq!(numbers(&Layout::new(&sizes, &[true; 7], &reversed, None)), [3, 2, 2, 1, 1, 0, 0]);
        // A large model has no more of them.
        let sizes = vec![(DType::F32, 1 << 20); 100];
        assert_eq!(Layout::new(&sizes, &[true; 100], &[], None).packs().len(), 15);
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
