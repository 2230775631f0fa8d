//! Packs with the dense gradients of several variables. They are sent to other workers without being copied.

use super::overlap::OverlapSender;
use super::shard::PackOffset;
use super::{Layout, PackCoding};
use crate::number::Number;
use bytes::Bytes;
use candle_core::WithDType;
use distribute_collective::group::{Buffer, Buffers, EarlySend};
use std::sync::Arc;

/// The packs of a replica while they are being filled.
#[derive(Debug)]
pub struct PackWriter {
    layout: Arc<Layout>,
    buffers: Buffers,
    packs: Vec<PackState>,
    /// Whether a pack has been changed after it was closed.
    reopened: bool,
}

#[derive(Debug)]
enum PackState {
    /// A pack into which nothing has been written, and which has no memory.
    Empty,
    Open(Buffer),
    Closed(Bytes),
}

impl PackWriter {
    /// Creates packs. A pack gets its memory when something is written into it; its initial contents are arbitrary.
    pub fn new(layout: Arc<Layout>, buffers: &Buffers) -> Self {
        let packs = layout.packs().iter().map(|_| PackState::Empty).collect();
        Self { layout, buffers: buffers.clone(), packs, reopened: false }
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Creates the sender of the packs for a replica.
    pub(super) fn overlap_sender(
        &self,
        early: EarlySend,
        replica: usize,
        coding: &PackCoding,
    ) -> OverlapSender {
        OverlapSender::new(early, replica, &self.layout, coding)
    }

    /// Returns the elements of a variable for writing. A closed pack is copied first, as by
    /// [`pack_mut`](Self::pack_mut). Returns `None` if the dtype is different or the variable is not in a pack.
    pub fn elements_mut<T: Number>(&mut self, number: usize) -> Option<&mut [T]> {
        let PackOffset { pack, bytes } = self.layout.offset(number)?.clone();
        if self.layout.packs().get(pack)?.dtype != <T as WithDType>::DTYPE {
            return None;
        }
        Some(bytemuck::cast_slice_mut(&mut self.pack_mut(pack)?[bytes]))
    }

    /// Returns all bytes of a pack for writing; `None` if there is no such pack. If the pack is closed, it is copied
    /// first, because other workers may already have read it.
    pub fn pack_mut(&mut self, pack: usize) -> Option<&mut [u8]> {
        let filled = self.packs.get_mut(pack)?;
        match filled {
            PackState::Empty => {
                *filled = PackState::Open(self.buffers.take(self.layout.packs().get(pack)?.len));
            }
            PackState::Closed(bytes) => {
                let mut copy = self.buffers.take(bytes.len());
                copy.bytes_mut().copy_from_slice(bytes);
                *filled = PackState::Open(copy);
                self.reopened = true;
            }
            PackState::Open(_) => {}
        }
        match filled {
            PackState::Open(buffer) => Some(buffer.bytes_mut()),
            PackState::Empty | PackState::Closed(_) => None,
        }
    }

    /// Sets the elements of a variable to zero.
    pub fn clear(&mut self, number: usize) {
        if let Some(PackOffset { pack, bytes }) = self.layout.offset(number).cloned()
            && let Some(all) = self.pack_mut(pack)
        {
            all[bytes].fill(0);
        }
    }

    /// Closes a complete pack and returns its bytes. Returns no bytes if there is no such pack, or if nothing was
    /// written into it.
    pub(super) fn close(&mut self, pack: usize) -> Bytes {
        let Some(filled) = self.packs.get_mut(pack) else { return Bytes::new() };
        let bytes = match std::mem::replace(filled, PackState::Empty) {
            PackState::Empty => return Bytes::new(),
            PackState::Open(buffer) => buffer.freeze(),
            PackState::Closed(bytes) => bytes,
        };
        *filled = PackState::Closed(bytes.clone());
        bytes
    }

    /// Uses the pack of another layout as the pack of variable `number`, without a copy, and closes it. Returns `false`
    /// and changes nothing if the variable shares its pack with others in this layout or has another size.
    pub fn adopt(&mut self, number: usize, pack: &Bytes) -> bool {
        let Some((len, index)) = self.layout.lone(number) else { return false };
        match self.packs.get_mut(index) {
            Some(state) if len == pack.len() => *state = PackState::Closed(pack.clone()),
            _ => return false,
        }
        true
    }

    /// Returns `true` if a pack has been changed after it was closed.
    pub(super) fn was_reopened(&self) -> bool {
        self.reopened
    }

    /// Closes all packs and returns them.
    pub fn freeze(mut self) -> PackedGradients {
        let packs = (0..self.packs.len()).map(|pack| self.close(pack)).collect();
        PackedGradients { layout: self.layout, worker: None, packs, early_call: None }
    }
}

/// The dense gradients of one replica or worker, in packs.
#[derive(Clone, Debug)]
pub struct PackedGradients {
    layout: Arc<Layout>,
    /// The worker to which this shard of the packs was sent; `None` for complete packs.
    worker: Option<usize>,
    packs: Vec<Bytes>,
    /// The sequence number of the call for which the packs were sent in advance; `None` if they were not.
    early_call: Option<u64>,
}

impl PackedGradients {
    /// Creates the packs from bytes that another worker has sent. Bytes that are not aligned are copied.
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
        Self { layout: layout.clone(), worker: None, packs, early_call: None }
    }

    /// Creates the shard of packs that another worker has sent to `worker`.
    pub fn received_shard(layout: &Arc<Layout>, worker: usize, packs: Vec<Bytes>, buffers: &Buffers) -> Self {
        Self { worker: Some(worker), ..Self::received(layout, packs, buffers) }
    }

    /// Records that all packs were sent in advance for `call`.
    pub(super) fn sent_early(self, call: u64) -> Self {
        Self { early_call: Some(call), ..self }
    }

    /// Returns the sequence number of the call for which all packs were sent in advance; `None` if they were not.
    pub fn early_call(&self) -> Option<u64> {
        self.early_call
    }

    /// Returns the layout of the packs.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Returns the bytes of the packs.
    pub fn packs(&self) -> &[Bytes] {
        &self.packs
    }

    /// Returns the pack of variable `number`, if it is complete and contains no other variable.
    pub(super) fn lone(&self, number: usize) -> Option<&Bytes> {
        let (len, index) = self.layout.lone(number).filter(|_| self.worker.is_none())?;
        self.packs.get(index).filter(|pack| pack.len() == len)
    }

    /// Returns the elements of a variable that are in the packs. Returns `None` if the dtype is different or the
    /// variable is not in a pack.
    pub(crate) fn dense<T: Number>(&self, number: usize) -> Option<&[T]> {
        let PackOffset { pack, bytes } = match self.worker {
            Some(worker) => self.layout.shard(worker)?.offset(number)?,
            None => self.layout.offset(number)?,
        };
        if self.layout.packs().get(*pack)?.dtype != <T as WithDType>::DTYPE {
            return None;
        }
        let bytes = self.packs.get(*pack)?.get(bytes.clone())?;
        // A pack without elements has no memory, and so no alignment.
        if bytes.is_empty() { Some(&[]) } else { bytemuck::try_cast_slice(bytes).ok() }
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
    fn a_pack_without_elements_has_the_values_of_its_variables() {
        let layout = Arc::new(Layout::new(&[(DType::F32, 0), (DType::F64, 0)], &[true, true], &[], None));
        let packs = PackWriter::new(layout, &buffers()).freeze();
        assert_eq!(packs.dense::<f32>(0), Some(&[][..]));
        assert_eq!(packs.dense::<f64>(1), Some(&[][..]));
        assert_eq!(packs.dense::<f64>(0), None);
    }

    #[test]
    fn packed_values_are_read_by_dtype_on_any_device() {
        let layout = layout();
        let mut filling = PackWriter::new(layout.clone(), &buffers());
        filling.elements_mut::<f32>(0).unwrap().copy_from_slice(&[1., 2., 3.]);
        filling.elements_mut::<f64>(1).unwrap().fill(-4.);
        assert!(filling.elements_mut::<f64>(0).is_none() && filling.elements_mut::<f32>(1).is_none());
        assert!(
            filling.elements_mut::<f32>(2).is_none() && filling.elements_mut::<f64>(3).unwrap().is_empty()
        );
        filling.elements_mut::<f32>(4).unwrap().fill(9.);
        filling.clear(4);
        let flat = filling.freeze();
        // At an address that is not aligned for numbers.
        let shifted = flat.packs().iter().map(|pack| Bytes::from([&[0; 1][..], pack].concat()).slice(1..));
        for flat in [PackedGradients::received(&layout, shifted.collect(), &buffers()), flat] {
            assert_eq!(flat.dense::<f32>(0).unwrap(), [1., 2., 3.]);
            assert_eq!(flat.dense::<f64>(1).unwrap(), [-4.; 20]);
            assert_eq!(flat.dense::<f32>(4).unwrap(), [0.; 100]);
            assert!(flat.dense::<f32>(2).is_none() && flat.dense::<f32>(1).is_none());
        }
    }

    // INV-108
    #[test]
    fn a_large_gradient_is_not_copied_into_the_layout_that_is_agreed_later() {
        let sizes = [(DType::F32, 3), (DType::F32, 1 << 20), (DType::F32, 2)];
        let large = Arc::new(Layout::of_large(&sizes, None).unwrap());
        let untouched = PackWriter::new(large.clone(), &buffers()).freeze();
        assert!(untouched.packs()[0].is_empty() && untouched.lone(1).is_none());
        let mut first = PackWriter::new(large, &buffers());
        first.elements_mut::<f32>(1).unwrap().fill(3.);
        let first = first.freeze();
        let pack = first.lone(1).unwrap();

        let agreed = Arc::new(Layout::new(&sizes, &[true; 3], &[2, 1, 0], None));
        let mut packs = PackWriter::new(agreed, &buffers());
        packs.elements_mut::<f32>(0).unwrap().fill(1.);
        assert!(packs.adopt(1, pack) && !packs.adopt(0, pack));
        let packs = packs.freeze();
        assert_eq!(packs.dense::<f32>(1).unwrap().as_ptr(), first.dense::<f32>(1).unwrap().as_ptr());
        assert_eq!((packs.dense::<f32>(0).unwrap(), packs.lone(0)), (&[1.; 3][..], None));
    }

    // INV-40
    #[test]
    fn a_worker_that_owns_ranges_gets_them_of_every_pack() {
        let ranges = vec![vec![0..3, 4..20, 0..0, 0..0, 64..100], vec![0..0, 0..4, 0..7, 0..0, 0..64]];
        let layout = Arc::new(Layout::new(&SIZES, &[true, true, false, true, true], &[], Some(&ranges)));
        let mut filling = PackWriter::new(layout.clone(), &buffers());
        filling.elements_mut::<f32>(0).unwrap().copy_from_slice(&[1., 2., 3.]);
        (0..20).for_each(|at| filling.elements_mut::<f64>(1).unwrap()[at] = at as f64);
        (0..100).for_each(|at| filling.elements_mut::<f32>(4).unwrap()[at] = at as f32);
        let flat = filling.freeze();
        for (worker, ranges) in ranges.iter().enumerate() {
            let shard = layout.shard(worker).unwrap();
            let pieces: Vec<_> = flat
                .packs()
                .iter()
                .enumerate()
                .map(|(pack, all)| shard.extract(pack, all, &buffers()))
                .collect();
            assert!(pieces.iter().enumerate().all(|(pack, piece)| piece.len() == shard.len(pack)));
            let piece = PackedGradients::received_shard(&layout, worker, pieces, &buffers());
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
        let mut filling = PackWriter::new(layout(), &buffers());
        filling.elements_mut::<f32>(0).unwrap().fill(1.);
        let closed = filling.close(0);
        assert!(!filling.was_reopened() && filling.close(0) == closed);
        filling.elements_mut::<f32>(0).unwrap()[1] = 2.;
        assert!(filling.was_reopened());
        assert_eq!(bytemuck::cast_slice::<u8, f32>(&closed)[..3], [1.; 3]);
        assert_eq!(filling.freeze().dense::<f32>(0).unwrap(), [1., 2., 1.]);
    }
}
