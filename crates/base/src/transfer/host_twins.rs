//! Integers that input has copied to a device, kept on the host as well.
//!
//! Checks of ids and labels read the tensor on the host, and do not wait for the device. [`known_on_host`] finds it.
//!
//! A tensor is recognised by its memory, which it shares with its views. The memory cannot become another tensor's
//! while the tensor is kept. Writes into a tensor in place are not seen. They are not allowed anyway, because a piece
//! of input may be part of the memory of its dataset.

use super::to_host;
use crate::lock::lock;
use candle_core::{DType, Device, Layout, Result, Storage, Tensor};
use distribute_tensor::without_elements;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// The limits of the tensors that are kept for one dataset and replica: their number, and their bytes. That is enough
/// for the steps in flight.
const MOST: (usize, usize) = (64, 16 << 20);

/// The size in bytes of the largest tensor that is kept. Copying a larger one back takes little time compared to the
/// step.
const LARGEST: usize = MOST.1 / 2;

/// The integers that were last copied to one device for one dataset.
pub struct HostTwins(Mutex<VecDeque<Twins>>);

/// A tensor on a device, which covers its memory in order, and the same numbers on the host.
struct Twins {
    here: Tensor,
    there: Tensor,
}

/// The tensors of all datasets.
static ALL: Mutex<Vec<Weak<HostTwins>>> = Mutex::new(Vec::new());

impl HostTwins {
    /// Creates an empty set of tensors.
    pub fn new() -> Arc<Self> {
        let twins = Arc::new(Self(Mutex::default()));
        let mut all = lock(&ALL);
        all.retain(|twins| twins.strong_count() > 0);
        all.push(Arc::downgrade(&twins));
        twins
    }

    /// Returns whether a tensor may contain ids or labels, and is on the host.
    pub fn takes(here: &Tensor) -> bool {
        here.device().is_cpu()
            && matches!(here.dtype(), DType::U8 | DType::U32 | DType::I64)
            && (1..=LARGEST).contains(&size(here))
    }

    /// Keeps both tensors, which have memory of their own in order. Drops the oldest tensors above the limits.
    pub fn keep(&self, here: Tensor, there: Tensor) {
        let is_whole = {
            let (_, layout) = there.storage_and_layout();
            layout.is_contiguous() && layout.start_offset() == 0
        };
        if !is_whole || there.track_op() {
            return;
        }
        let mut kept = lock(&self.0);
        kept.push_back(Twins { here, there });
        let mut bytes: usize = kept.iter().map(|twins| size(&twins.here)).sum();
        let mut oldest = Vec::new();
        while kept.len() > MOST.0 || bytes > MOST.1 {
            let Some(twins) = kept.pop_front() else { break };
            bytes -= size(&twins.here);
            oldest.push(twins);
        }
        drop(kept);
        // Freeing memory of CUDA may wait for the GPU. That happens without the lock, which lookups of ids take.
        drop(oldest);
    }

    /// Returns the tensor on the host whose twin on a device has this memory.
    fn find(&self, memory: usize) -> Option<Tensor> {
        // The latest first, because lookups are of the current steps.
        let kept = lock(&self.0);
        let twins = kept.iter().rev().find(|twins| self::memory(&twins.there) == memory)?;
        Some(twins.here.clone())
    }
}

/// Returns the tensor on the host: the one that input has copied to the device, or else a copy from the device, which
/// waits for the device.
///
/// # Errors
/// candle's, if the device cannot be read.
pub fn known_on_host(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_cpu() {
        return Ok(tensor.clone());
    }
    if tensor.elem_count() == 0 {
        return without_elements(tensor.dims(), tensor.dtype(), &Device::Cpu);
    }
    let memory = memory(tensor);
    let all: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    match all.iter().find_map(|twins| twins.find(memory)) {
        Some(here) => view(&here, tensor.layout()),
        // Contiguous first: candle copies all of the memory that a tensor is in.
        None => to_host(&tensor.force_contiguous()?),
    }
}

/// Returns the view with this layout of numbers that are all of a tensor's memory.
fn view(all: &Tensor, layout: &Layout) -> Result<Tensor> {
    let all = all.flatten_all()?;
    let numbers = match layout.contiguous_offsets() {
        // An empty view may begin behind the end of the memory.
        Some((from, to)) if from == to => all.narrow(0, 0, 0)?,
        Some((from, to)) => all.narrow(0, from, to - from)?,
        None => {
            let mut places = vec![layout.start_offset()];
            for (dim, stride) in layout.dims().iter().zip(layout.stride()) {
                places = places.iter().flat_map(|place| (0..*dim).map(move |i| place + i * stride)).collect();
            }
            let places: Vec<i64> = places.into_iter().map(|place| place as i64).collect();
            all.index_select(&Tensor::new(places, &Device::Cpu)?, 0)?
        }
    };
    numbers.reshape(layout.shape())
}

/// Returns the address of a tensor's memory: the same for all views of it, and of no other tensor as long as there are
/// any.
fn memory(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage) as usize
}

fn size(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps ids, whose twin on the device has other numbers, so that tests see which of the two is read.
    fn brought(ids: usize) -> (Arc<HostTwins>, Tensor) {
        let twins = HostTwins::new();
        let there = Tensor::zeros((ids / 4, 4), DType::U32, &Device::Cpu).unwrap();
        let here = Tensor::arange(0, ids as u32, &Device::Cpu).unwrap().reshape((ids / 4, 4)).unwrap();
        twins.keep(here, there.clone());
        (twins, there)
    }

    fn found(twins: &HostTwins, there: &Tensor) -> Option<Vec<u32>> {
        let here = twins.find(memory(there))?;
        Some(view(&here, there.layout()).unwrap().flatten_all().unwrap().to_vec1().unwrap())
    }

    // INV-69
    #[test]
    fn views_of_a_kept_tensor_are_known_on_the_host() {
        let (twins, there) = brought(12);
        assert_eq!(found(&twins, &there), Some((0..12).collect()));
        assert_eq!(found(&twins, &there.narrow(0, 1, 1).unwrap()), Some(vec![4, 5, 6, 7]));
        assert_eq!(found(&twins, &there.flatten_all().unwrap().detach()), Some((0..12).collect()));
        // A column, as of a table with a field in each.
        assert_eq!(found(&twins, &there.get_on_dim(1, 2).unwrap()), Some(vec![2, 6, 10]));
        assert_eq!(found(&twins, &there.t().unwrap()), Some(vec![0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]));
        let twice = there.unsqueeze(0).unwrap().expand((2, 3, 4)).unwrap();
        assert_eq!(found(&twins, &twice), Some((0..12).chain(0..12).collect()));
        assert_eq!(found(&twins, &there.copy().unwrap()), None, "it may have been changed");
    }

    #[test]
    fn the_oldest_are_dropped_by_bytes_and_by_number() {
        let (twins, first) = brought(400);
        let half = || Tensor::zeros(LARGEST / 4, DType::U32, &Device::Cpu).unwrap();
        let (second, third) = (half(), half());
        twins.keep(second.clone(), second.clone());
        assert!(found(&twins, &first).is_some());
        twins.keep(third.clone(), third.clone());
        assert!(found(&twins, &first).is_none());
        assert!(found(&twins, &second).is_some() && found(&twins, &third).is_some());
        let label = || Tensor::zeros(1, DType::U32, &Device::Cpu).unwrap();
        let labels: Vec<_> = (0..MOST.0).map(|_| label()).collect();
        labels.iter().for_each(|label| twins.keep(label.clone(), label.clone()));
        assert!(found(&twins, &third).is_none());
        assert!(labels.iter().all(|label| found(&twins, label).is_some()));
    }

    #[test]
    fn numbers_and_large_tensors_are_not_taken() {
        let zeros = |len, dtype| Tensor::zeros(len, dtype, &Device::Cpu).unwrap();
        assert!(HostTwins::takes(&zeros(LARGEST / 8, DType::I64)) && HostTwins::takes(&zeros(1, DType::U8)));
        let others = [zeros(LARGEST / 8 + 1, DType::I64), zeros(4, DType::F32), zeros(0, DType::U32)];
        assert!(!others.iter().any(HostTwins::takes));
    }

    #[test]
    fn a_dataset_that_is_dropped_keeps_nothing() {
        let (twins, _there) = brought(8);
        let kept = Arc::downgrade(&twins);
        drop(twins);
        assert!(kept.upgrade().is_none());
    }
}
