//! Losses on a device that have not been read yet. Several are read at once, which reduces the number of waits for the
//! device.

use candle_core::{DType, Tensor};
use distribute_base::Result;
use distribute_base::internal::{lock, to_device, to_host};
use std::sync::Mutex;

/// The maximum number of losses that are read with a single wait for the device.
const MAX: usize = 32;

/// The losses of applied steps that are still on a device.
#[derive(Debug, Default)]
pub(crate) struct PendingLosses(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    losses: Vec<StepLoss<Tensor>>,
    /// The number of losses that have been read so far.
    read: usize,
}

/// The loss of a step, with the step's sequence number among the runs of the strategy and among the steps of the
/// optimizer.
#[derive(Debug)]
pub(crate) struct StepLoss<L> {
    pub(crate) step: u64,
    pub(crate) number: u64,
    pub(crate) loss: L,
}

impl PendingLosses {
    /// Adds a loss. Returns the losses that were read during this call. The first loss is read immediately, later
    /// losses in growing groups of up to [`MAX`].
    ///
    /// # Errors
    /// Returns candle's error if a loss cannot be read from its device.
    pub(crate) fn push(&self, loss: StepLoss<Tensor>) -> Result<Vec<StepLoss<f64>>> {
        let mut waiting = lock(&self.0);
        waiting.losses.push(loss);
        if waiting.losses.len() < (waiting.read + 1).min(MAX) {
            return Ok(Vec::new());
        }
        let losses = std::mem::take(&mut waiting.losses);
        waiting.read = waiting.read.saturating_add(losses.len());
        drop(waiting);
        let Some(last) = losses.last().map(|of| of.loss.device()) else { return Ok(Vec::new()) };
        // Losses of other steps may be on other devices.
        let as_f64 = losses.iter().map(|of| to_device(&of.loss, last)?.to_dtype(DType::F64));
        let as_f64 = as_f64.collect::<candle_core::Result<Vec<_>>>()?;
        let read: Vec<f64> = to_host(&Tensor::stack(&as_f64, 0)?)?.to_vec1()?;
        let of =
            |(StepLoss { step, number, .. }, loss): (StepLoss<Tensor>, f64)| StepLoss { step, number, loss };
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
        let unread = PendingLosses::default();
        let mut seen = Vec::new();
        let mut times = 0;
        for number in 1..=200u64 {
            let loss = Tensor::new(number as f32, &Device::Cpu).unwrap();
            let read = unread.push(StepLoss { step: number + 7, number, loss }).unwrap();
            times += usize::from(!read.is_empty());
            seen.extend(read);
        }
        // 1, 2, 4, 8, 16, and 32 at a time.
        assert_eq!((seen.len(), times), (191, 10));
        for (at, StepLoss { step, number, loss }) in seen.iter().enumerate() {
            assert_eq!((*number as usize, *step, *loss), (at + 1, number + 7, *number as f64));
        }
    }
}
