//! Dense gradients of several variables in one vector, which is sent to other workers from where it lies.

use crate::number::Number;
use bytes::Bytes;
use candle_core::DType;
use distribute_collective::group::{Buffer, Buffers};
use std::ops::Range;
use std::sync::Arc;

/// Each variable begins on a cache line of its own.
const LINE: usize = 64;

/// Which variables have a place in a vector, and where: a function of their dtypes, sizes and order, so the same on all
/// workers.
#[derive(Debug, PartialEq)]
pub(crate) struct Layout {
    /// For each variable the bytes of its elements.
    places: Vec<Option<Range<usize>>>,
    /// The bytes of elements of f64; those of f32 are behind them.
    wide: usize,
    len: usize,
}

impl Layout {
    /// The layout of the variables that are `dense`, of which each has a dtype and a number of elements.
    pub(crate) fn new(sizes: &[(DType, usize)], dense: &[bool]) -> Self {
        let (mut places, mut len, mut wide) = (vec![None; sizes.len()], 0, 0);
        for (is_wide, width) in [(true, 8), (false, 4)] {
            for (number, (dtype, count)) in sizes.iter().enumerate() {
                if dense[number] && (*dtype == DType::F64) == is_wide {
                    places[number] = Some(len..len + count * width);
                    len = (len + count * width).next_multiple_of(LINE);
                }
            }
            if is_wide {
                wide = len;
            }
        }
        Self { places, wide, len }
    }

    /// Whether these are the variables that have a place.
    pub(crate) fn is_of(&self, dense: &[bool]) -> bool {
        self.places.iter().map(Option::is_some).eq(dense.iter().copied())
    }

    /// Whether a variable has a place.
    pub(crate) fn has(&self, number: usize) -> bool {
        self.place(number).is_some()
    }

    fn place(&self, number: usize) -> Option<Range<usize>> {
        self.places.get(number).cloned().flatten()
    }

    /// The size of the vector in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of elements of f64, and of f32.
    pub(crate) fn regions(&self) -> (Range<usize>, Range<usize>) {
        (0..self.wide, self.wide..self.len)
    }
}

/// A vector that is being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    layout: Arc<Layout>,
    buffer: Buffer,
}

impl Filling {
    /// A vector of arbitrary contents.
    pub(crate) fn new(layout: Arc<Layout>, buffers: &Buffers) -> Self {
        Self { buffer: buffers.take(layout.len), layout }
    }

    /// Whether a variable has a place.
    pub(super) fn has(&self, number: usize) -> bool {
        self.layout.has(number)
    }

    /// Where the elements of a variable go. None for another dtype, and where it has no place.
    pub(crate) fn place<T: Number>(&mut self, number: usize) -> Option<&mut [T]> {
        let place = self.layout.place(number)?;
        let is_wide = place.end <= self.layout.wide && self.layout.wide > 0;
        let fits = (size_of::<T>() == 8) == is_wide || place.is_empty();
        fits.then(|| bytemuck::cast_slice_mut(&mut self.buffer.bytes_mut()[place]))
    }

    /// Sets the elements of a variable to zero.
    pub(crate) fn clear(&mut self, number: usize) {
        if let Some(place) = self.layout.place(number) {
            self.buffer.bytes_mut()[place].fill(0);
        }
    }

    /// All bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// The vector, filled.
    pub(crate) fn freeze(self) -> Flat {
        Flat { layout: self.layout, bytes: self.buffer.freeze() }
    }
}

/// The dense gradients of one replica or worker in one vector.
#[derive(Clone, Debug)]
pub(crate) struct Flat {
    layout: Arc<Layout>,
    bytes: Bytes,
}

impl Flat {
    /// A vector that another worker has sent, of as many bytes as the layout has.
    pub(crate) fn received(layout: &Arc<Layout>, bytes: Bytes, buffers: &Buffers) -> Self {
        if bytes.len() == layout.len && bytes.as_ptr().cast::<f64>().is_aligned() {
            return Self { layout: layout.clone(), bytes };
        }
        let mut own = Filling::new(layout.clone(), buffers);
        let len = bytes.len().min(layout.len);
        own.bytes_mut()[..len].copy_from_slice(&bytes[..len]);
        own.freeze()
    }

    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The elements of a variable. None for another dtype, and where it has no place.
    pub(crate) fn dense<T: Number>(&self, number: usize) -> Option<&[T]> {
        bytemuck::try_cast_slice(&self.bytes[self.layout.place(number)?]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_collective::group::local;

    const SIZES: [(DType, usize); 5] =
        [(DType::F32, 3), (DType::F64, 20), (DType::F32, 7), (DType::F64, 0), (DType::F32, 100)];

    fn buffers() -> Buffers {
        local::groups(Default::default(), 1, 1).unwrap()[0].buffers().clone()
    }

    #[test]
    fn each_variable_begins_on_a_line_of_its_own_and_doubles_come_first() {
        let dense = [true, true, false, true, true];
        let layout = Layout::new(&SIZES, &dense);
        assert!(layout.is_of(&dense) && !layout.is_of(&[true; 5]));
        assert_eq!(layout.places, [Some(192..204), Some(0..160), None, Some(192..192), Some(256..656)]);
        assert_eq!((layout.regions(), layout.len()), ((0..192, 192..704), 704));
    }

    #[test]
    fn what_is_filled_is_read_by_dtype_wherever_it_has_arrived() {
        let layout = Arc::new(Layout::new(&SIZES, &[true, true, false, true, true]));
        let mut filling = Filling::new(layout.clone(), &buffers());
        filling.place::<f32>(0).unwrap().copy_from_slice(&[1., 2., 3.]);
        filling.place::<f64>(1).unwrap().fill(-4.);
        assert!(filling.place::<f64>(0).is_none() && filling.place::<f32>(1).is_none());
        assert!(filling.place::<f32>(2).is_none() && filling.place::<f64>(3).unwrap().is_empty());
        filling.place::<f32>(4).unwrap().fill(9.);
        filling.clear(4);
        let flat = filling.freeze();
        // Where no number may lie.
        let shifted = Bytes::from([&[0; 1][..], flat.bytes()].concat()).slice(1..);
        for flat in [Flat::received(&layout, shifted, &buffers()), flat] {
            assert_eq!(flat.dense::<f32>(0).unwrap(), [1., 2., 3.]);
            assert_eq!(flat.dense::<f64>(1).unwrap(), [-4.; 20]);
            assert_eq!(flat.dense::<f32>(4).unwrap(), [0.; 100]);
            assert!(flat.dense::<f32>(2).is_none());
        }
    }
}
