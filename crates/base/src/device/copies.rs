//! The copies of a variable with which replicas compute whose devices have memory of their own.

use crate::coherent::Coherent;
use crate::error::Result;
use crate::transfer::{to_device, to_host};
use candle_core::{Device, Var};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The copies of a variable of a model, one for each replica whose device has memory of its own, such as a GPU.
///
/// The variable itself is in the memory of the CPU, where it is initialised and saved. Code that writes it there says
/// so ([`written`](Self::written)), and each replica refreshes its own copy before it computes
/// ([`refresh`](Self::refresh)). An optimizer may write the copies in its place ([`advance`](Self::advance)): then code
/// that reads the variable brings their value back before ([`bring_back`](Self::bring_back)), and no other thread waits
/// for a device.
#[derive(Debug)]
pub struct DeviceCopies {
    of: Var,
    /// The number of times that it was written.
    version: AtomicU64,
    /// An [`Announced`].
    announced: AtomicU8,
    /// The states of the replicas' copies.
    states: Coherent<u64>,
    /// For each local replica, unless it computes in the memory of the CPU.
    replicas: Vec<Option<Replica>>,
}

/// The uses of the variable itself that are announced. Each is less than the one before.
#[repr(u8)]
enum Announced {
    /// Reads, which are by way of its [`Storage`](super::storage::Storage), and writes.
    All,
    /// Writes alone.
    Writes,
    Nothing,
}

#[derive(Debug)]
struct Replica {
    device: Device,
    /// Made when the replica's model asks for it.
    copy: OnceLock<Var>,
}

impl DeviceCopies {
    /// Copies of a variable in the memory of the CPU, for replicas on these devices; `None` for one that computes
    /// there.
    pub fn new(of: Var, devices: Vec<Option<Device>>) -> Self {
        let replica = |device| Replica { device, copy: OnceLock::new() };
        let replicas: Vec<_> = devices.into_iter().map(|device| device.map(replica)).collect();
        let (version, announced) = (AtomicU64::new(0), AtomicU8::new(Announced::All as u8));
        Self { of, version, announced, states: Coherent::new(replicas.len()), replicas }
    }

    /// The variable that a local replica computes with: its copy, which is made now if need be, or the variable itself.
    ///
    /// # Errors
    /// candle's: there is no memory on the device.
    pub fn of_replica(&self, number: usize) -> Result<&Var> {
        let Some(Some(replica)) = self.replicas.get(number) else { return Ok(&self.of) };
        if replica.copy.get().is_none() {
            self.bring_back()?;
            self.copy(number, replica)?;
        }
        Ok(replica.copy.get().unwrap_or(&self.of))
    }

    /// Writes the variable to a replica's copy, which has another version or is not there.
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

    /// Whether at least these uses are announced.
    fn is_announced(&self, least: Announced) -> bool {
        self.announced.load(Ordering::Relaxed) <= least as u8
    }

    /// Marks the variable as written.
    pub fn written(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Counts on no announcements any more: code such as candle's own optimizers may read and write the variable. It is
    /// copied before each step from now on.
    ///
    /// # Errors
    /// As [`bring_back`](Self::bring_back).
    pub fn unwatched(&self) -> Result<()> {
        self.announced.fetch_max(Announced::Nothing as u8, Ordering::Relaxed);
        self.bring_back()
    }

    /// Counts on no announcements of reads any more: layers that look up rows, for example, do not ask for the value of
    /// copies before.
    ///
    /// # Errors
    /// As [`bring_back`](Self::bring_back).
    pub fn read_directly(&self) -> Result<()> {
        self.announced.fetch_max(Announced::Writes as u8, Ordering::Relaxed);
        self.bring_back()
    }

    /// The copy of each local replica, if all have one and reads of the variable itself are announced: then they may be
    /// written in its place.
    pub fn of_all(&self) -> Option<Vec<&Var>> {
        if !self.is_announced(Announced::All) {
            return None;
        }
        self.replicas.iter().map(|replica| replica.as_ref()?.copy.get()).collect()
    }

    /// Runs what writes the same value to the copies of all replicas, none of which may be computing.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn advance(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let made = |number: &usize| self.made_by(*number).is_some();
        self.states.write((0..self.replicas.len()).filter(made), write)
    }

    /// Writes the value of the copies to the variable itself, if they have been written in its place. Waits for the
    /// device.
    ///
    /// # Errors
    /// candle's, of the device. It is copied again the next time.
    pub fn bring_back(&self) -> Result<()> {
        // All have the same.
        self.states.read(
            || self.version.load(Ordering::Acquire),
            |number| match self.made_by(number) {
                Some((_, copy)) => Ok(self.of.set(&to_host(&copy.as_detached_tensor())?)?),
                None => Ok(()),
            },
        )
    }

    /// Refreshes the copy of a local replica, if it has one. The replica may not be computing with it.
    ///
    /// # Errors
    /// candle's. It is copied again the next time.
    pub fn refresh(&self, replica: usize) -> Result<()> {
        self.made_by(replica).map_or(Ok(()), |(of, _)| self.copy(replica, of))
    }

    /// Refreshes the copies of all replicas, of which none may be computing.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn refresh_all(&self) -> Result<()> {
        (0..self.replicas.len()).try_for_each(|replica| self.refresh(replica))
    }

    /// A replica that has a copy.
    fn made_by(&self, replica: usize) -> Option<(&Replica, &Var)> {
        let replica = self.replicas.get(replica)?.as_ref()?;
        Some((replica, replica.copy.get()?))
    }

    /// The candle variables that have been made for replicas.
    pub fn made(&self) -> impl Iterator<Item = &Var> {
        self.replicas.iter().flatten().filter_map(|replica| replica.copy.get())
    }
}

/// Says at its end, however it comes, that some variables were written.
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
    fn a_replica_has_what_was_written_once_it_asks_for_it_and_not_before() {
        let of = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let copies = DeviceCopies::new(of.clone(), vec![None, Some(Device::Cpu), Some(Device::Cpu)]);
        // The first computes with the variable itself; the last has not asked.
        assert_eq!(copies.of_replica(0).unwrap().id(), of.id());
        let copy = copies.of_replica(1).unwrap().clone();
        assert_eq!(copies.of_replica(1).unwrap().id(), copy.id());
        assert_eq!((copies.made().count(), copy.id() == of.id()), (1, false));

        of.set(&Tensor::new(&[3f32, 4.], &Device::Cpu).unwrap()).unwrap();
        copies.refresh(1).unwrap();
        assert_eq!(values(&copy), [1., 2.], "nobody said that it was written");
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
    fn copies_that_are_ahead_stay_and_whoever_reads_the_variable_gets_what_they_have() {
        let of = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let copies = DeviceCopies::new(of.clone(), vec![Some(Device::Cpu), Some(Device::Cpu)]);
        let first = copies.of_replica(0).unwrap().clone();
        assert!(copies.of_all().is_none(), "one replica has none yet");
        let second = copies.of_replica(1).unwrap().clone();
        let stepped = Tensor::new(&[3f32, 4.], &Device::Cpu).unwrap();
        let step = || copies.of_all().unwrap().into_iter().try_for_each(|copy| Ok(copy.set(&stepped)?));
        copies.advance(step).unwrap();
        assert_eq!(values(&of), [1., 2.], "nobody has read it");
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
