//! What one worker gets of packs, where each worker owns a range of every variable.

use super::layout::Place;
use bytes::Bytes;
use candle_core::DType;
use distribute_collective::group::Buffers;
use std::ops::Range;

/// What one worker gets of packs: of each, its ranges of the variables in it, one after another.
#[derive(Debug, PartialEq)]
pub struct Part {
    /// For each pack, which bytes of it, ascending.
    cuts: Vec<Vec<Range<usize>>>,
    /// For each variable, where its range lies in what the worker gets of its pack.
    places: Vec<Option<Place>>,
}

impl Part {
    /// Of so many packs, in which variables have these places, what the worker gets that owns these `ranges` of their elements.
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

    /// What the worker gets of a pack, which is copied only if it lies in several places.
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
