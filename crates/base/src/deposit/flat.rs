//! Dense gradients of several variables in packs, which are sent to other workers from where they lie.

use super::Layout;
use super::layout::Place;
use super::overlap::OverlapSender;
use crate::number::Number;
use bytes::Bytes;
use candle_core::WithDType;
use distribute_collective::group::{Buffer, Buffers, EarlySend};
use std::sync::Arc;

/// Packs that are being filled.
#[derive(Debug)]
pub struct Filling {
    layout: Arc<Layout>,
    buffers: Buffers,
    packs: Vec<Filled>,
    /// Whether one of them has been changed after it was closed.
    reopened: bool,
}

#[derive(Debug)]
enum Filled {
    Open(Buffer),
    Closed(Bytes),
}

impl Filling {
    /// Packs of arbitrary contents.
    pub fn new(layout: Arc<Layout>, buffers: &Buffers) -> Self {
        let packs = layout.packs().iter().map(|pack| Filled::Open(buffers.take(pack.len))).collect();
        Self { layout, buffers: buffers.clone(), packs, reopened: false }
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Returns a sender of these packs, which are those of a replica.
    pub(super) fn overlap_sender(&self, early: EarlySend, replica: usize) -> OverlapSender {
        OverlapSender::new(early, replica, &self.layout, &self.buffers)
    }

    /// Returns the place of a variable. `None` for another dtype, or if it has no place.
    pub fn place<T: Number>(&mut self, number: usize) -> Option<&mut [T]> {
        let Place { pack, bytes } = self.layout.place(number)?.clone();
        if self.layout.packs().get(pack)?.dtype != <T as WithDType>::DTYPE {
            return None;
        }
        Some(bytemuck::cast_slice_mut(&mut self.pack_mut(pack)?[bytes]))
    }

    /// All bytes of a pack. One that was closed is copied: the others may have read it already.
    pub fn pack_mut(&mut self, pack: usize) -> Option<&mut [u8]> {
        let filled = self.packs.get_mut(pack)?;
        if let Filled::Closed(bytes) = filled {
            let mut copy = self.buffers.take(bytes.len());
            copy.bytes_mut().copy_from_slice(bytes);
            *filled = Filled::Open(copy);
            self.reopened = true;
        }
        match filled {
            Filled::Open(buffer) => Some(buffer.bytes_mut()),
            Filled::Closed(_) => None,
        }
    }

    /// Sets the elements of a variable to zero.
    pub fn clear(&mut self, number: usize) {
        if let Some(Place { pack, bytes }) = self.layout.place(number).cloned()
            && let Some(all) = self.pack_mut(pack)
        {
            all[bytes].fill(0);
        }
    }

    /// The bytes of a pack, which is complete.
    pub(super) fn close(&mut self, pack: usize) -> Bytes {
        let Some(filled) = self.packs.get_mut(pack) else { return Bytes::new() };
        *filled = Filled::Closed(match std::mem::replace(filled, Filled::Closed(Bytes::new())) {
            Filled::Open(buffer) => buffer.freeze(),
            Filled::Closed(bytes) => bytes,
        });
        match filled {
            Filled::Closed(bytes) => bytes.clone(),
            Filled::Open(_) => Bytes::new(),
        }
    }

    /// Whether a pack has been changed after it was closed.
    pub(super) fn was_reopened(&self) -> bool {
        self.reopened
    }

    /// The packs, filled.
    pub fn freeze(mut self) -> Flat {
        let packs = (0..self.packs.len()).map(|pack| self.close(pack)).collect();
        Flat { layout: self.layout, part: None, packs, early_call: None }
    }
}

/// The dense gradients of one replica or worker in packs.
#[derive(Clone, Debug)]
pub struct Flat {
    layout: Arc<Layout>,
    /// The worker whose part of the packs this is, where it is not all of them.
    part: Option<usize>,
    packs: Vec<Bytes>,
    /// The call before which they have been sent to the other workers, if they have.
    early_call: Option<u64>,
}

impl Flat {
    /// Packs that another worker has sent, of as many bytes as those of the layout.
    pub fn received(layout: &Arc<Layout>, packs: Vec<Bytes>, buffers: &Buffers) -> Self {
        let aligned = |bytes: Bytes| {
            if bytes.as_ptr().cast::<f64>().is_aligned() {
                return bytes;
            }
            let mut own = buffers.take(bytes.len());
            own.bytes_mut().copy_from_slice(&bytes);
            own.freeze()
        };
        let packs = packs.into_iter().map(aligned).collect();
        Self { layout: layout.clone(), part: None, packs, early_call: None }
    }

    /// Creates packs of the ranges that another worker has sent to this one.
    pub fn received_part(layout: &Arc<Layout>, worker: usize, packs: Vec<Bytes>, buffers: &Buffers) -> Self {
        Self { part: Some(worker), ..Self::received(layout, packs, buffers) }
    }

    /// Records that all of it has been sent before a call.
    pub(super) fn sent_early(self, call: u64) -> Self {
        Self { early_call: Some(call), ..self }
    }

    /// Returns the call before which all of it has been sent to the other workers, if it has.
    pub fn early_call(&self) -> Option<u64> {
        self.early_call
    }

    /// The layout of the packs.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The packs, as bytes.
    pub fn packs(&self) -> &[Bytes] {
        &self.packs
    }

    /// The elements of a variable that are there. None for another dtype, and where it has no place.
    pub(crate) fn dense<T: Number>(&self, number: usize) -> Option<&[T]> {
        let Place { pack, bytes } = match self.part {
            Some(worker) => self.layout.part(worker)?.place(number)?,
            None => self.layout.place(number)?,
        };
        if self.layout.packs().get(*pack)?.dtype != <T as WithDType>::DTYPE {
            return None;
        }
        bytemuck::try_cast_slice(self.packs.get(*pack)?.get(bytes.clone())?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;
    use distribute_collective::group::local;

    const SIZES: [(DType, usize); 5] =
        [(DType::F32, 3), (DType::F64, 20), (DType::F32, 7), (DType::F64, 0), (DType::F32, 100)];

    fn buffers() -> Buffers {
        local::groups(Default::default(), 1, 1).unwrap()[0].buffers().clone()
    }

    fn layout() -> Arc<Layout> {
        Arc::new(Layout::new(&SIZES, &[true, true, false, true, true], &[], None))
    }

    #[test]
    fn what_is_filled_is_read_by_dtype_wherever_it_has_arrived() {
        let layout = layout();
        let mut filling = Filling::new(layout.clone(), &buffers());
        filling.place::<f32>(0).unwrap().copy_from_slice(&[1., 2., 3.]);
        filling.place::<f64>(1).unwrap().fill(-4.);
        assert!(filling.place::<f64>(0).is_none() && filling.place::<f32>(1).is_none());
        assert!(filling.place::<f32>(2).is_none() && filling.place::<f64>(3).unwrap().is_empty());
        filling.place::<f32>(4).unwrap().fill(9.);
        filling.clear(4);
        let flat = filling.freeze();
        // Where no number may lie.
        let shifted = flat.packs().iter().map(|pack| Bytes::from([&[0; 1][..], pack].concat()).slice(1..));
        for flat in [Flat::received(&layout, shifted.collect(), &buffers()), flat] {
            assert_eq!(flat.dense::<f32>(0).unwrap(), [1., 2., 3.]);
            assert_eq!(flat.dense::<f64>(1).unwrap(), [-4.; 20]);
            assert_eq!(flat.dense::<f32>(4).unwrap(), [0.; 100]);
            assert!(flat.dense::<f32>(2).is_none() && flat.dense::<f32>(1).is_none());
        }
    }

    // INV-40
    #[test]
    fn a_worker_that_owns_ranges_gets_them_of_every_pack() {
        let ranges = vec![vec![0..3, 4..20, 0..0, 0..0, 64..100], vec![0..0, 0..4, 0..7, 0..0, 0..64]];
        let layout = Arc::new(Layout::new(&SIZES, &[true, true, false, true, true], &[], Some(&ranges)));
        let mut filling = Filling::new(layout.clone(), &buffers());
        filling.place::<f32>(0).unwrap().copy_from_slice(&[1., 2., 3.]);
        (0..20).for_each(|at| filling.place::<f64>(1).unwrap()[at] = at as f64);
        (0..100).for_each(|at| filling.place::<f32>(4).unwrap()[at] = at as f32);
        let flat = filling.freeze();
        for (worker, ranges) in ranges.iter().enumerate() {
            let part = layout.part(worker).unwrap();
            let pieces: Vec<_> =
                flat.packs().iter().enumerate().map(|(pack, all)| part.of(pack, all, &buffers())).collect();
            assert!(pieces.iter().enumerate().all(|(pack, piece)| piece.len() == part.len(pack)));
            let piece = Flat::received_part(&layout, worker, pieces, &buffers());
            for number in [0, 4] {
                let (mine, all) = (piece.dense::<f32>(number).unwrap(), flat.dense::<f32>(number).unwrap());
                assert_eq!(mine, &all[ranges[number].clone()]);
            }
            assert_eq!(piece.dense::<f64>(1).unwrap(), &flat.dense::<f64>(1).unwrap()[ranges[1].clone()]);
            assert!(piece.dense::<f32>(2).is_none());
        }
        let whole = Layout::new(&SIZES, &[true, true, false, true, true], &[], None);
        assert_ne!(whole.digest(), layout.digest());
    }

    #[test]
    fn a_pack_that_is_changed_after_it_was_closed_is_another_one() {
        let mut filling = Filling::new(layout(), &buffers());
        filling.place::<f32>(0).unwrap().fill(1.);
        let closed = filling.close(0);
        assert!(!filling.was_reopened() && filling.close(0) == closed);
        filling.place::<f32>(0).unwrap()[1] = 2.;
        assert!(filling.was_reopened());
        assert_eq!(bytemuck::cast_slice::<u8, f32>(&closed)[..3], [1.; 3]);
        assert_eq!(filling.freeze().dense::<f32>(0).unwrap(), [1., 2., 1.]);
    }
}
