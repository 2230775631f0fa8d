//! The copies of a variable on devices with memory of their own.

use crate::coherent::Coherent;
use crate::error::Result;
use crate::transfer::{to_device, to_host};
use candle_core::{Device, Var};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The copies of a variable of a model, one for each replica whose device has memory of its own, such as a GPU.
///
/// The variable itself is in the memory of the CPU, where it is initialised and saved. Code that writes it there marks
/// it as [`written`](Self::written), and each replica [refreshes](Self::refresh) its own copy before it computes. An
/// optimizer may [write the copies](Self::advance) in place of the variable. Code that reads the variable then
/// [brings the value back](Self::bring_back) first, and no other thread waits for a device.
#[derive(Debug)]
pub struct DeviceCopies {
    of: Var,
    /// The number of times that the variable was written.
    version: AtomicU64,
    /// The uses of the variable that are announced, an [`Announced`].
    announced: AtomicU8,
    /// The states of the replicas' copies.
    states: Coherent<u64>,
    /// The replicas of this process; `None` for one that computes in the memory of the CPU.
    replicas: Vec<Option<Replica>>,
}

/// The uses of the variable itself that are announced, from most to least.
#[repr(u8)]
enum Announced {
    /// Reads and writes. Reads go through the variable's storage, which asks for the value first.
    All,
    /// Writes only.
    Writes,
    Nothing,
}

#[derive(Debug)]
struct Replica {
    device: Device,
    /// The copy. It is made when the replica's model asks for it.
    copy: OnceLock<Var>,
}

impl DeviceCopies {
    /// Creates the copies of a variable in the memory of the CPU, for replicas on these devices; `None` for a replica
    /// that computes in the memory of the CPU.
    pub fn new(of: Var, devices: Vec<Option<Device>>) -> Self {
        let replica = |device| Replica { device, copy: OnceLock::new() };
        let replicas: Vec<_> = devices.into_iter().map(|device| device.map(replica)).collect();
        let (version, announced) = (AtomicU64::new(0), AtomicU8::new(Announced::All as u8));
        Self { of, version, announced, states: Coherent::new(replicas.len()), replicas }
    }

    /// Returns the variable that a local replica computes with: its copy, which is made now if there is none, or the
    /// variable itself.
    ///
    /// # Errors
    /// candle's, if the device is out of memory.
    pub fn of_replica(&self, number: usize) -> Result<&Var> {
        let Some(Some(replica)) = self.replicas.get(number) else { return Ok(&self.of) };
        if replica.copy.get().is_none() {
            self.bring_back()?;
            self.copy(number, replica)?;
        }
        Ok(replica.copy.get().unwrap_or(&self.of))
    }

    /// Writes the variable to a replica's copy, if the copy has another version or is missing.
    fn copy(&self, number: usize, replica: &Replica) -> Result<()> {
        // A variable that is written unannounced has another version each time.
        let version = || {
            if self.is_announced(Announced::Writes) {
                self.version.load(Ordering::Acquire)
            } else {
                self.version.fetch_add(1, Ordering::AcqRel) + 1
            }
        };
        self.states.refresh(number, version, || {
            let value = to_device(&self.of.as_detached_tensor(), &replica.device)?;
            match replica.copy.get() {
                Some(copy) => copy.set(&value)?,
                None => drop(replica.copy.set(Var::from_tensor(&value)?)),
            }
            Ok(())
        })
    }

    /// Returns whether at least these uses are announced.
    fn is_announced(&self, least: Announced) -> bool {
        self.announced.load(Ordering::Relaxed) <= least as u8
    }

    /// Marks the variable as written.
    pub fn written(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Stops relying on announcements, because code such as candle's own optimizers may read and write the variable. It
    /// is copied before each step from now on.
    ///
    /// # Errors
    /// The errors of [`bring_back`](Self::bring_back).
    pub fn unwatched(&self) -> Result<()> {
        self.announced.fetch_max(Announced::Nothing as u8, Ordering::Relaxed);
        self.bring_back()
    }

    /// Stops relying on announcements of reads: layers that look up rows, for example, do not ask for the value of the
    /// copies first.
    ///
    /// # Errors
    /// The errors of [`bring_back`](Self::bring_back).
    pub fn read_directly(&self) -> Result<()> {
        self.announced.fetch_max(Announced::Writes as u8, Ordering::Relaxed);
        self.bring_back()
    }

    /// Returns the copy of each local replica, if all have one and reads of the variable itself are announced. Only
    /// then may the copies be written in place of the variable.
    pub fn of_all(&self) -> Option<Vec<&Var>> {
        if !self.is_announced(Announced::All) {
            return None;
        }
        self.replicas.iter().map(|replica| replica.as_ref()?.copy.get()).collect()
    }

    /// Calls `write`, which writes the same value to the copies of all replicas. No replica may be computing.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn advance(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let made = |number: &usize| self.made_by(*number).is_some();
        self.states.write((0..self.replicas.len()).filter(made), write)
    }

    /// Writes the value of the copies to the variable itself, if they have been written in its place. Waits for the
    /// device.
    ///
    /// # Errors
    /// candle's, of the device. The next call copies the value again.
    pub fn bring_back(&self) -> Result<()> {
        // All copies have the same value.
        self.states.read(
            || self.version.load(Ordering::Acquire),
            |number| match self.made_by(number) {
                Some((_, copy)) => Ok(self.of.set(&to_host(&copy.as_detached_tensor())?)?),
                None => Ok(()),
            },
        )
    }

    /// Refreshes the copy of a local replica, if it has one. The replica must not be computing with it.
    ///
    /// # Errors
    /// candle's, of the device. The next call copies the value again.
    pub fn refresh(&self, replica: usize) -> Result<()> {
        self.made_by(replica).map_or(Ok(()), |(of, _)| self.copy(replica, of))
    }

    /// Refreshes the copies of all replicas. No replica may be computing.
    ///
    /// # Errors
    /// The errors of [`refresh`](Self::refresh).
    pub fn refresh_all(&self) -> Result<()> {
        (0..self.replicas.len()).try_for_each(|replica| self.refresh(replica))
    }

    /// Returns a replica and its copy, if it has one.
    fn made_by(&self, replica: usize) -> Option<(&Replica, &Var)> {
        let replica = self.replicas.get(replica)?.as_ref()?;
        Some((replica, replica.copy.get()?))
    }

    /// Returns the copies that have been made.
    pub fn made(&self) -> impl Iterator<Item = &Var> {
        self.replicas.iter().flatten().filter_map(|replica| replica.copy.get())
    }
}

/// A guard that marks some variables as written when it is dropped.
pub struct Writing<'a>(pub Vec<&'a DeviceCopies>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|copies| copies.written());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Tensor;

    fn values(var: &Var) -> Vec<f32> {
        var.to_vec1().unwrap()
    }

    // INV-68
    #[test]
    fn a_copy_has_the_written_value_after_a_refresh_and_not_before() {
        let of = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let copies = DeviceCopies::new(of.clone(), vec![None, Some(Device::Cpu), Some(Device::Cpu)]);
        // The first computes with the variable itself; the last has not asked.
        assert_eq!(copies.of_replica(0).unwrap().id(), of.id());
        let copy = copies.of_replica(1).unwrap().clone();
        assert_eq!(copies.of_replica(1).unwrap().id(), copy.id());
        assert_eq!((copies.made().count(), copy.id() == of.id()), (1, false));

        of.set(&Tensor::new(&[3f32, 4.], &Device::Cpu).unwrap()).unwrap();
        copies.refresh(1).unwrap();
        assert_eq!(values(&copy), [1., 2.], "no call of written yet");
        copies.written();
        assert_eq!(values(&copy), [1., 2.], "it may be computing");
        (0..3).for_each(|replica| copies.refresh(replica).unwrap());
        assert_eq!(values(&copy), [3., 4.]);
        // One that comes later begins with what is there.
        assert_eq!(values(copies.of_replica(2).unwrap()), [3., 4.]);

        copies.unwatched().unwrap();
        of.set(&Tensor::new(&[5f32, 6.], &Device::Cpu).unwrap()).unwrap();
        copies.refresh(1).unwrap();
        assert_eq!(values(&copy), [5., 6.]);
    }

    // INV-68
    #[test]
    fn dirty_copies_stay_and_reads_of_the_variable_get_their_value() {
        let of = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let copies = DeviceCopies::new(of.clone(), vec![Some(Device::Cpu), Some(Device::Cpu)]);
        let first = copies.of_replica(0).unwrap().clone();
        assert!(copies.of_all().is_none(), "one replica has none yet");
        let second = copies.of_replica(1).unwrap().clone();
        let stepped = Tensor::new(&[3f32, 4.], &Device::Cpu).unwrap();
        let step = || copies.of_all().unwrap().into_iter().try_for_each(|copy| Ok(copy.set(&stepped)?));
        copies.advance(step).unwrap();
        assert_eq!(values(&of), [1., 2.], "no read yet");
        (0..2).for_each(|replica| copies.refresh(replica).unwrap());
        assert_eq!((values(&first), values(&second)), (vec![3., 4.], vec![3., 4.]));

        copies.bring_back().unwrap();
        assert_eq!(values(&of), [3., 4.]);
        of.set(&Tensor::new(&[5f32, 6.], &Device::Cpu).unwrap()).unwrap();
        copies.written();
        copies.refresh(1).unwrap();
        assert_eq!(values(&second), [5., 6.]);

        copies.advance(|| Ok(first.set(&stepped)?)).unwrap();
        copies.unwatched().unwrap();
        assert_eq!((values(&of), copies.of_all().is_none()), (vec![3., 4.], true));
    }
}
