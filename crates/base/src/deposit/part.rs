//! The part of the packs that one worker gets, if workers partition variables.

use super::layout::Place;
use bytes::Bytes;
use candle_core::DType;
use distribute_collective::group::Buffers;
use std::ops::Range;

/// The part of the packs that one worker gets: of each pack its ranges of the variables, one after another.
#[derive(Debug, PartialEq)]
pub struct Part {
    /// The bytes of each pack, ascending.
    cuts: Vec<Vec<Range<usize>>>,
    /// The place of the range of each variable in that part of its pack.
    places: Vec<Option<Place>>,
}

impl Part {
    /// Creates the part of a worker that updates these `ranges` of variables, which have these places in this number
    /// of packs.
    pub(super) fn new(
        packs: usize,
        whole: &[Option<Place>],
        sizes: &[(DType, usize)],
        ranges: &[Range<usize>],
    ) -> Self {
        let mut part = Self { cuts: vec![Vec::new(); packs], places: vec![None; whole.len()] };
        let mut placed: Vec<_> =
            whole.iter().enumerate().filter_map(|(number, place)| Some((number, place.as_ref()?))).collect();
        placed.sort_by_key(|(_, place)| (place.pack, place.bytes.start));
        for (number, place) in placed {
            let width = sizes[number].0.size_in_bytes();
            let Range { start, end } = ranges[number];
            let (begin, len) = (part.len(place.pack), (end - start) * width);
            part.places[number] = Some(Place { pack: place.pack, bytes: begin..begin + len });
            if len > 0 {
                let from = place.bytes.start + start * width;
                part.cuts[place.pack].push(from..from + len);
            }
        }
        part
    }

    /// The bytes that the worker gets of a pack.
    pub fn len(&self, pack: usize) -> usize {
        self.cuts.get(pack).map_or(0, |cuts| cuts.iter().map(Range::len).sum())
    }

    /// Returns the part of a pack. It is copied only if it has several ranges.
    pub fn of(&self, pack: usize, bytes: &Bytes, buffers: &Buffers) -> Bytes {
        let cuts = self.cuts.get(pack).map_or(&[][..], |cuts| cuts);
        buffers.joined(cuts.iter().map(|cut| bytes.slice(cut.clone())))
    }

    pub(super) fn place(&self, number: usize) -> Option<&Place> {
        self.places.get(number)?.as_ref()
    }

    /// Numbers that are the same for equal parts alone.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.cuts.iter().flatten().flat_map(|cut| [cut.start as u64, cut.end as u64])
    }
}
