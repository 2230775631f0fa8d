//! The copies of a variable with which replicas compute whose devices have memory of their own.

use crate::error::Result;
use crate::lock::lock;
use crate::transfer::{to_device, to_host};
use candle_core::{Device, Var};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// The copies of a variable of a model, one for each replica whose device has memory of its own, such as a GPU.
///
/// The variable itself is in the memory of the CPU, where it is initialised and saved. Who writes it there says so
/// ([`written`](Self::written)), and each replica brings its own copy up to date before it computes ([`refresh`](Self::refresh)).
/// An optimizer may write the copies in its place ([`advance`](Self::advance)): then it is brought up to date by whoever reads it
/// ([`bring_back`](Self::bring_back)), and nobody else waits for a device.
#[derive(Debug)]
pub struct DeviceCopies {
    of: Var,
    /// How often it was written.
    version: AtomicU64,
    /// Whether all who write it say so.
    watched: AtomicBool,
    /// Whether all who read it do so by way of its [`Storage`](super::storage::Storage).
    read_by_storage: AtomicBool,
    /// Whether the copies have been written since it was. Held while they are, and while it is brought up to date.
    ahead: Mutex<bool>,
    /// For each local replica, unless it computes in the memory of the CPU.
    replicas: Vec<Option<Replica>>,
}

#[derive(Debug)]
struct Replica {
    device: Device,
    /// Made when the replica's model asks for it.
    copy: OnceLock<Copy>,
}

#[derive(Debug)]
struct Copy {
    var: Var,
    /// The version of the variable that it has. Held while it is brought up to date: several runs may be at it.
    version: Mutex<u64>,
}

impl DeviceCopies {
    /// Of a variable in the memory of the CPU, for replicas on these devices; `None` for one that computes there.
    pub fn new(of: Var, devices: Vec<Option<Device>>) -> Self {
        let replica = |device| Replica { device, copy: OnceLock::new() };
        let replicas = devices.into_iter().map(|device| device.map(replica)).collect();
        Self {
            of,
            version: AtomicU64::new(0),
            watched: AtomicBool::new(true),
            read_by_storage: AtomicBool::new(true),
            ahead: Mutex::new(false),
            replicas,
        }
    }

    /// What a local replica computes with: its copy, which is made now if need be, or the variable itself.
    ///
    /// # Errors
    /// candle's, where there is no memory on the device.
    pub fn of_replica(&self, replica: usize) -> Result<&Var> {
        let Some(Some(replica)) = self.replicas.get(replica) else { return Ok(&self.of) };
        if let Some(copy) = replica.copy.get() {
            return Ok(&copy.var);
        }
        self.bring_back()?;
        let version = self.version.load(Ordering::Acquire);
        let value = to_device(&self.of.as_detached_tensor(), &replica.device)?;
        let copy = Copy { var: Var::from_tensor(&value)?, version: Mutex::new(version) };
        Ok(&replica.copy.get_or_init(|| copy).var)
    }

    /// The variable was written.
    pub fn written(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// From now on somebody may read and write it who does not say so: candle's own optimizers, say. It is copied before each step.
    ///
    /// # Errors
    /// As [`bring_back`](Self::bring_back).
    pub fn unwatched(&self) -> Result<()> {
        self.watched.store(false, Ordering::Relaxed);
        self.read_directly()
    }

    /// From now on somebody reads it who does not ask for it to be brought up to date first: layers that look up rows, say.
    ///
    /// # Errors
    /// As [`bring_back`](Self::bring_back).
    pub fn read_directly(&self) -> Result<()> {
        self.read_by_storage.store(false, Ordering::Relaxed);
        self.bring_back()
    }

    /// The copy of each local replica, where all have one and the variable itself is read by its storage alone: then they may be
    /// written in its place.
    pub fn of_all(&self) -> Option<Vec<&Var>> {
        if !self.read_by_storage.load(Ordering::Relaxed) {
            return None;
        }
        self.replicas.iter().map(|replica| Some(&replica.as_ref()?.copy.get()?.var)).collect()
    }

    /// Runs what writes the same value to the copies of all replicas, none of which may be computing.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn advance(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut ahead = lock(&self.ahead);
        // Also what was written in part.
        *ahead = true;
        write()
    }

    /// Brings the variable itself up to date, if its copies have been written since. Waits for the device.
    ///
    /// # Errors
    /// candle's, of the device. It is copied again the next time, then.
    pub fn bring_back(&self) -> Result<()> {
        let mut ahead = lock(&self.ahead);
        if !*ahead {
            return Ok(());
        }
        // All have the same.
        if let Some(copy) = self.made().next() {
            self.of.set(&to_host(&copy.as_detached_tensor())?)?;
        }
        *ahead = false;
        Ok(())
    }

    /// Brings the copy of a local replica up to date, if it has one. Nobody may be computing with it.
    ///
    /// # Errors
    /// candle's. It is copied again the next time, then.
    pub fn refresh(&self, replica: usize) -> Result<()> {
        let Some(copy) = self.replicas.get(replica).and_then(|replica| replica.as_ref()?.copy.get()) else {
            return Ok(());
        };
        // Held, so that no optimizer writes the copy meanwhile, which would have the older value then.
        let ahead = lock(&self.ahead);
        if *ahead {
            return Ok(());
        }
        let mut has = lock(&copy.version);
        let version = self.version.load(Ordering::Acquire);
        if self.watched.load(Ordering::Relaxed) && *has == version {
            return Ok(());
        }
        copy.var.set(&to_device(&self.of.as_detached_tensor(), copy.var.device())?)?;
        *has = version;
        Ok(())
    }

    /// Brings the copies of all replicas up to date, of which none may be computing.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn refresh_all(&self) -> Result<()> {
        (0..self.replicas.len()).try_for_each(|replica| self.refresh(replica))
    }

    /// The candle variables that have been made for replicas.
    pub fn made(&self) -> impl Iterator<Item = &Var> {
        self.replicas.iter().flatten().filter_map(|replica| Some(&replica.copy.get()?.var))
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
