//! Integers that the input pipeline has copied to a device, and that are also kept on the host.
//!
//! Code that checks ids and labels uses the tensor on the host, which [`host_value`] returns, and does not wait for the
//! device.
//!
//! A tensor is recognized by the address of its memory, which it shares with its views. No other tensor can
//! get this memory while the tensor is kept. In-place writes to a tensor are not detected. They are not
//! allowed in any case, because a per-replica batch may share the memory of its dataset.

use super::to_host;
use crate::lock::lock;
use candle_core::{DType, Device, Layout, Result, Storage, Tensor};
use distribute_tensor::without_elements;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// The limits on the tensors that are kept per dataset and replica: the number of tensors, and their total size in
/// bytes. They are sufficient for the steps in flight.
const MOST: (usize, usize) = (64, 16 << 20);

/// The maximum size in bytes of a tensor that is kept. Copying back a larger tensor takes little time compared to the
/// step.
const LARGEST: usize = MOST.1 / 2;

/// The integers that were most recently copied to one device for one dataset.
pub struct HostCopies(Mutex<VecDeque<CopyPair>>);

/// A tensor on a device that fills its memory in order, and a tensor with the same numbers on the host.
struct CopyPair {
    here: Tensor,
    there: Tensor,
}

/// The kept tensors of all datasets.
static ALL: Mutex<Vec<Weak<HostCopies>>> = Mutex::new(Vec::new());

impl HostCopies {
    /// Creates an empty set of kept tensors, which [`host_value`] searches as long as the set exists.
    pub fn new() -> Arc<Self> {
        let copies = Arc::new(Self(Mutex::default()));
        let mut all = lock(&ALL);
        all.retain(|copies| copies.strong_count() > 0);
        all.push(Arc::downgrade(&copies));
        copies
    }

    /// Returns `true` if a tensor should be kept: it is on the host, and may contain ids or labels.
    pub fn accepts(here: &Tensor) -> bool {
        here.device().is_cpu()
            && matches!(here.dtype(), DType::U8 | DType::U32 | DType::I64)
            && (1..=LARGEST).contains(&size(here))
    }

    /// Keeps a pair of tensors: `here` on the host, and its copy `there` on a device. Each must have its own memory.
    /// Does nothing if the copy does not fill its memory in order or has a gradient. Drops the oldest tensors if the
    /// limits are exceeded.
    pub fn insert(&self, here: Tensor, there: Tensor) {
        let is_whole = {
            let (_, layout) = there.storage_and_layout();
            layout.is_contiguous() && layout.start_offset() == 0
        };
        if !is_whole || there.track_op() {
            return;
        }
        let mut kept = lock(&self.0);
        kept.push_back(CopyPair { here, there });
        let mut bytes: usize = kept.iter().map(|copies| size(&copies.here)).sum();
        let mut oldest = Vec::new();
        while kept.len() > MOST.0 || bytes > MOST.1 {
            let Some(copies) = kept.pop_front() else { break };
            bytes -= size(&copies.here);
            oldest.push(copies);
        }
        drop(kept);
        // Freeing memory of CUDA may wait for the GPU. That happens without the lock, which lookups of ids take.
        drop(oldest);
    }

    /// Returns the host tensor whose copy on a device has the given memory address; `None` if it was not kept.
    fn find(&self, memory: usize) -> Option<Tensor> {
        // The latest first, because lookups are of the current steps.
        let kept = lock(&self.0);
        let copies = kept.iter().rev().find(|copies| self::memory(&copies.there) == memory)?;
        Some(copies.here.clone())
    }
}

/// Returns a tensor's value on the host. If the input pipeline copied the tensor to the device and the original has
/// been kept, returns the original. Otherwise waits for the device and copies the value back.
///
/// # Errors
/// Returns candle's error if the device cannot be read.
pub fn host_value(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_cpu() {
        return Ok(tensor.clone());
    }
    if tensor.elem_count() == 0 {
        return without_elements(tensor.dims(), tensor.dtype(), &Device::Cpu);
    }
    let memory = memory(tensor);
    let all: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    match all.iter().find_map(|copies| copies.find(memory)) {
        Some(here) => view(&here, tensor.layout()),
        // Contiguous first: candle copies all of the memory that a tensor is in.
        None => to_host(&tensor.force_contiguous()?),
    }
}

/// Returns a view with the given layout of `all`, the complete memory of a tensor.
fn view(all: &Tensor, layout: &Layout) -> Result<Tensor> {
    let all = all.flatten_all()?;
    let numbers = match layout.contiguous_offsets() {
        // An empty view may begin after the end of the memory.
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

/// Returns the address of a tensor's memory. All views of the memory have the same address. While one of them exists,
/// no other tensor has this address.
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

    /// Returns host copies that contain one tensor of ids, and that tensor. The copy has other numbers than the tensor,
    /// so that tests detect which of the two is read.
    fn inserted(ids: usize) -> (Arc<HostCopies>, Tensor) {
        let copies = HostCopies::new();
        let there = Tensor::zeros((ids / 4, 4), DType::U32, &Device::Cpu).unwrap();
        let here = Tensor::arange(0, ids as u32, &Device::Cpu).unwrap().reshape((ids / 4, 4)).unwrap();
        copies.insert(here, there.clone());
        (copies, there)
    }

    fn found(copies: &HostCopies, there: &Tensor) -> Option<Vec<u32>> {
        let here = copies.find(memory(there))?;
        Some(view(&here, there.layout()).unwrap().flatten_all().unwrap().to_vec1().unwrap())
    }

    // INV-69
    #[test]
    fn views_of_a_cached_tensor_are_found_on_the_host() {
        let (copies, there) = inserted(12);
        assert_eq!(found(&copies, &there), Some((0..12).collect()));
        assert_eq!(found(&copies, &there.narrow(0, 1, 1).unwrap()), Some(vec![4, 5, 6, 7]));
        assert_eq!(found(&copies, &there.flatten_all().unwrap().detach()), Some((0..12).collect()));
        // A column of a table in which each column is a field.
        assert_eq!(found(&copies, &there.get_on_dim(1, 2).unwrap()), Some(vec![2, 6, 10]));
        assert_eq!(found(&copies, &there.t().unwrap()), Some(vec![0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]));
        let twice = there.unsqueeze(0).unwrap().expand((2, 3, 4)).unwrap();
        assert_eq!(found(&copies, &twice), Some((0..12).chain(0..12).collect()));
        assert_eq!(found(&copies, &there.copy().unwrap()), None, "it may have been changed");
    }

    #[test]
    fn the_oldest_are_dropped_by_bytes_and_by_number() {
        let (copies, first) = inserted(400);
        let half = || Tensor::zeros(LARGEST / 4, DType::U32, &Device::Cpu).unwrap();
        let (second, third) = (half(), half());
        copies.insert(second.clone(), second.clone());
        assert!(found(&copies, &first).is_some());
        copies.insert(third.clone(), third.clone());
        assert!(found(&copies, &first).is_none());
        assert!(found(&copies, &second).is_some() && found(&copies, &third).is_some());
        let label = || Tensor::zeros(1, DType::U32, &Device::Cpu).unwrap();
        let labels: Vec<_> = (0..MOST.0).map(|_| label()).collect();
        labels.iter().for_each(|label| copies.insert(label.clone(), label.clone()));
        assert!(found(&copies, &third).is_none());
        assert!(labels.iter().all(|label| found(&copies, label).is_some()));
    }

    #[test]
    fn numbers_and_large_tensors_are_not_taken() {
        let zeros = |len, dtype| Tensor::zeros(len, dtype, &Device::Cpu).unwrap();
        assert!(
            HostCopies::accepts(&zeros(LARGEST / 8, DType::I64)) && HostCopies::accepts(&zeros(1, DType::U8))
        );
        let others = [zeros(LARGEST / 8 + 1, DType::I64), zeros(4, DType::F32), zeros(0, DType::U32)];
        assert!(!others.iter().any(HostCopies::accepts));
    }

    #[test]
    fn a_dataset_that_is_dropped_keeps_nothing() {
        let (copies, _there) = inserted(8);
        let kept = Arc::downgrade(&copies);
        drop(copies);
        assert!(kept.upgrade().is_none());
    }
}
