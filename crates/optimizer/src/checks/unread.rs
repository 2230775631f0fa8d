//! Losses on a device that are not read yet; several are read at once.

use candle_core::{DType, Tensor};
use distribute_base::Result;
use distribute_base::internal::{lock, to_device, to_host};
use std::sync::Mutex;

/// The largest number of losses that are read at once: the device is waited for once in this number of steps.
const MOST: usize = 32;

/// Losses on a device, of steps that were made.
#[derive(Debug, Default)]
pub(crate) struct Unread(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    losses: Vec<Loss<Tensor>>,
    /// The number of losses that have been read.
    read: usize,
}

/// The loss of a step: of this number of the strategy's runs, and of the optimizer's.
#[derive(Debug)]
pub(crate) struct Loss<L> {
    pub(crate) step: u64,
    pub(crate) number: u64,
    pub(crate) loss: L,
}

impl Unread {
    /// Adds a loss and returns those that are read now. The first losses are read soon, later ones many at a time.
    ///
    /// # Errors
    /// candle's, of the device.
    pub(crate) fn push(&self, loss: Loss<Tensor>) -> Result<Vec<Loss<f64>>> {
        let mut waiting = lock(&self.0);
        waiting.losses.push(loss);
        if waiting.losses.len() < (waiting.read + 1).min(MOST) {
            return Ok(Vec::new());
        }
        let losses = std::mem::take(&mut waiting.losses);
        waiting.read = waiting.read.saturating_add(losses.len());
        drop(waiting);
        let Some(last) = losses.last().map(|of| of.loss.device()) else { return Ok(Vec::new()) };
        // Those of other steps may be on other devices.
        let as_f64 = losses.iter().map(|of| to_device(&of.loss, last)?.to_dtype(DType::F64));
        let as_f64 = as_f64.collect::<candle_core::Result<Vec<_>>>()?;
        let read: Vec<f64> = to_host(&Tensor::stack(&as_f64, 0)?)?.to_vec1()?;
        let of = |(Loss { step, number, .. }, loss): (Loss<Tensor>, f64)| Loss { step, number, loss };
        Ok(losses.into_iter().zip(read).map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    // INV-69
    #[test]
    fn each_loss_is_read_once_in_its_order_and_later_ones_many_at_once() {
        let unread = Unread::default();
        let mut seen = Vec::new();
        let mut times = 0;
        for number in 1..=200u64 {
            let loss = Tensor::new(number as f32, &Device::Cpu).unwrap();
            let read = unread.push(Loss { step: number + 7, number, loss }).unwrap();
            times += usize::from(!read.is_empty());
            seen.extend(read);
        }
        // 1, 2, 4, 8, 16, and 32 at a time.
        assert_eq!((seen.len(), times), (191, 10));
        for (at, Loss { step, number, loss }) in seen.iter().enumerate() {
            assert_eq!((*number as usize, *step, *loss), (at + 1, number + 7, *number as f64));
        }
    }
}
