//! A component of checkpoints whose copy waits until the test permits it.

use distribute::checkpoint::{Checkpointed, HeldTensors, LiveTensors, Reader, Restore, SourceError, Writer};
use distribute::tensor::DType;
use distribute::{HostTensor, Result};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The maximum time for which a copy waits for its permit.
const LIMIT: Duration = Duration::from_secs(60);

/// A component of numbers, each of which is copied when the test permits it, with the result that the test sends.
pub struct Gate {
    live: Arc<dyn LiveTensors>,
    numbers: usize,
}

struct Permits(Mutex<Receiver<Result<(), String>>>);

impl LiveTensors for Permits {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(self))
    }
}

impl HeldTensors for &Permits {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        self.0.lock().unwrap().recv_timeout(LIMIT)??;
        Ok(HostTensor::scalar(1i64))
    }
}

impl Gate {
    /// Creates a component of one number, and the sender of its permits.
    pub fn new() -> (Self, Sender<Result<(), String>>) {
        Self::of(1)
    }

    /// Creates a component of the given number of numbers, and the sender of their permits.
    pub fn of(numbers: usize) -> (Self, Sender<Result<(), String>>) {
        let (permit, permitted) = channel();
        (Self { live: Arc::new(Permits(Mutex::new(permitted))), numbers }, permit)
    }
}

impl Checkpointed for Gate {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        for number in 0..self.numbers {
            writer.insert_live(format!("{prefix}/{number}"), DType::I64, [], &self.live, number)?;
        }
        Ok(())
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}
