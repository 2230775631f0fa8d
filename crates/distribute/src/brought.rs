//! [`Brought`]: integers that input has brought to a device are kept beside as they were on the host, so that who checks ids and labels there
//! needs not wait for the device. [`on_host`] finds them.
//!
//! A tensor is recognised by its memory, which its views have, too. That cannot be another's as long as the tensor is kept. What is written
//! into a tensor in place is not seen: a piece may be part of the memory of its dataset, so nobody may write into one anyway.

use crate::lock::lock;
use candle_core::{DType, Device, Layout, Result, Storage, Tensor};
use distribute_tensor::without_elements;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// What is kept for one replica of a dataset takes no more bytes on its device.
const MOST: usize = 16 << 20;

/// Larger tensors are not kept: bringing them back is not much beside what a step does with so many ids.
const LARGEST: usize = MOST / 2;

/// The integers that were brought last to one device, for one dataset.
pub(crate) struct Brought(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    tensors: VecDeque<Twins>,
    bytes: usize,
}

/// A tensor on a device, which is all of its memory in order, and the same numbers on the host.
struct Twins {
    memory: usize,
    there: Tensor,
    here: Tensor,
}

/// Those of all datasets there are.
static ALL: Mutex<Vec<Weak<Brought>>> = Mutex::new(Vec::new());

impl Brought {
    pub(crate) fn new() -> Arc<Self> {
        let brought = Arc::new(Self(Mutex::default()));
        let mut all = lock(&ALL);
        all.retain(|brought| brought.strong_count() > 0);
        all.push(Arc::downgrade(&brought));
        brought
    }

    /// Keeps both, if they are integers such as ids and labels, and lets go of the oldest where they are too many.
    pub(crate) fn keep(&self, here: &Tensor, there: &Tensor) {
        let bytes = size(here);
        let is_whole = {
            let (_, layout) = there.storage_and_layout();
            layout.is_contiguous() && layout.start_offset() == 0
        };
        let is_one =
            matches!(here.dtype(), DType::U8 | DType::U32 | DType::I64) && is_whole && !there.track_op();
        if !is_one || bytes == 0 || bytes > LARGEST {
            return;
        }
        let mut kept = lock(&self.0);
        kept.bytes += bytes;
        kept.tensors.push_back(Twins { memory: memory(there), there: there.clone(), here: here.clone() });
        while kept.bytes > MOST {
            let Some(oldest) = kept.tensors.pop_front() else { return };
            kept.bytes -= size(&oldest.there);
        }
    }

    /// What the memory of a device holds, as it is on the host.
    fn find(&self, memory: usize) -> Option<Tensor> {
        // The latest first: they are of the steps that are made now.
        lock(&self.0)
            .tensors
            .iter()
            .rev()
            .find(|twins| twins.memory == memory)
            .map(|twins| twins.here.clone())
    }
}

/// The tensor in the memory of the CPU: what input has brought to its device, else what is read there, when the device is done with it.
///
/// # Errors
/// candle's: the device cannot be read.
pub(crate) fn on_host(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_cpu() {
        return Ok(tensor.clone());
    }
    if tensor.elem_count() == 0 {
        return without_elements(tensor.dims(), tensor.dtype(), &Device::Cpu);
    }
    let memory = memory(tensor);
    let all: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    match all.iter().find_map(|brought| brought.find(memory)) {
        Some(here) => view(&here, tensor.layout()),
        None => tensor.to_device(&Device::Cpu),
    }
}

/// What a tensor of this layout shows of these numbers, which are all of its memory.
fn view(all: &Tensor, layout: &Layout) -> Result<Tensor> {
    let all = all.flatten_all()?;
    let numbers = match layout.contiguous_offsets() {
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

/// Where the memory is that the tensor shows: the same for all views of it, and nobody else's as long as there are any.
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

    /// Ids that were brought, with other numbers beside them, by which it shows where they come from.
    fn brought(ids: usize) -> (Arc<Brought>, Tensor) {
        let brought = Brought::new();
        let there = Tensor::zeros((ids / 4, 4), DType::U32, &Device::Cpu).unwrap();
        let here = Tensor::arange(0, ids as u32, &Device::Cpu).unwrap().reshape((ids / 4, 4)).unwrap();
        brought.keep(&here, &there);
        (brought, there)
    }

    fn found(brought: &Brought, there: &Tensor) -> Option<Vec<u32>> {
        let here = brought.find(memory(there))?;
        Some(view(&here, there.layout()).unwrap().flatten_all().unwrap().to_vec1().unwrap())
    }

    // INV-69
    #[test]
    fn views_of_what_was_brought_are_known_on_the_host() {
        let (brought, there) = brought(12);
        assert_eq!(found(&brought, &there), Some((0..12).collect()));
        assert_eq!(found(&brought, &there.narrow(0, 1, 1).unwrap()), Some(vec![4, 5, 6, 7]));
        assert_eq!(found(&brought, &there.flatten_all().unwrap().detach()), Some((0..12).collect()));
        // A column, as of a table with a field in each.
        assert_eq!(found(&brought, &there.get_on_dim(1, 2).unwrap()), Some(vec![2, 6, 10]));
        assert_eq!(found(&brought, &there.t().unwrap()), Some(vec![0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]));
        let twice = there.unsqueeze(0).unwrap().expand((2, 3, 4)).unwrap();
        assert_eq!(found(&brought, &twice), Some((0..12).chain(0..12).collect()));
        assert_eq!(found(&brought, &there.copy().unwrap()), None, "it may have been changed");
    }

    #[test]
    fn the_oldest_are_let_go_and_numbers_are_not_kept() {
        let (brought, first) = brought(400);
        let half = |dtype| Tensor::zeros(LARGEST / 4, dtype, &Device::Cpu).unwrap();
        let floats = half(DType::F32);
        brought.keep(&floats, &floats);
        assert!(found(&brought, &floats).is_none());
        let larger = Tensor::zeros(LARGEST / 4 + 1, DType::U32, &Device::Cpu).unwrap();
        brought.keep(&larger, &larger);
        assert!(found(&brought, &larger).is_none());
        let (second, third) = (half(DType::U32), half(DType::U32));
        brought.keep(&second, &second);
        assert!(found(&brought, &first).is_some());
        brought.keep(&third, &third);
        assert!(found(&brought, &first).is_none());
        assert!(found(&brought, &second).is_some() && found(&brought, &third).is_some());
        assert_eq!(lock(&brought.0).bytes, MOST);
    }

    #[test]
    fn a_dataset_that_is_dropped_keeps_nothing() {
        let (brought, _there) = brought(8);
        let kept = Arc::downgrade(&brought);
        drop(brought);
        assert!(kept.upgrade().is_none());
    }
}
