//! The copies of a variable with which replicas compute whose devices have memory of their own.

use crate::Result;
use crate::lock::lock;
use candle_core::{Device, Tensor, Var};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The copies of a variable of a model, one for each replica whose device has memory of its own, such as a GPU.
///
/// The variable itself is in the memory of the CPU, where it is initialised, updated and saved. Who writes it says so
/// ([`written`](Self::written)), and each replica brings its own copy up to date before it computes ([`refresh`](Self::refresh)).
#[derive(Debug)]
pub(crate) struct DeviceCopies {
    of: Var,
    /// How often it was written.
    version: AtomicU64,
    /// Whether somebody may write it who does not say so.
    watched: AtomicBool,
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
    pub(crate) fn new(of: Var, devices: Vec<Option<Device>>) -> Self {
        let replica = |device| Replica { device, copy: OnceLock::new() };
        let replicas = devices.into_iter().map(|device| device.map(replica)).collect();
        Self { of, version: AtomicU64::new(0), watched: AtomicBool::new(true), replicas }
    }

    /// What a local replica computes with: its copy, which is made now if need be, or the variable itself.
    ///
    /// # Errors
    /// candle's, where there is no memory on the device.
    pub(crate) fn of_replica(&self, replica: usize) -> Result<&Var> {
        let Some(Some(replica)) = self.replicas.get(replica) else { return Ok(&self.of) };
        if let Some(copy) = replica.copy.get() {
            return Ok(&copy.var);
        }
        let version = self.version.load(Ordering::Acquire);
        // A copy of its own also where candle would give the same tensor again, for the same device.
        let value = self.of.as_detached_tensor().to_device(&replica.device)?.copy()?;
        let copy = Copy { var: Var::from_tensor(&value)?, version: Mutex::new(version) };
        Ok(&replica.copy.get_or_init(|| copy).var)
    }

    /// The variable was written.
    pub(crate) fn written(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// From now on somebody may write it who does not say so: candle's own optimizers, say. It is copied before each step.
    pub(crate) fn unwatched(&self) {
        self.watched.store(false, Ordering::Relaxed);
    }

    /// Brings the copy of a local replica up to date, if it has one. Nobody may be computing with it.
    ///
    /// # Errors
    /// candle's. It is copied again the next time, then.
    pub(crate) fn refresh(&self, replica: usize) -> Result<()> {
        let Some(copy) = self.replicas.get(replica).and_then(|replica| replica.as_ref()?.copy.get()) else {
            return Ok(());
        };
        let mut has = lock(&copy.version);
        let version = self.version.load(Ordering::Acquire);
        if self.watched.load(Ordering::Relaxed) && *has == version {
            return Ok(());
        }
        copy.var.set(&self.of.as_detached_tensor().to_device(copy.var.device())?)?;
        *has = version;
        Ok(())
    }

    /// Brings the copies of all replicas up to date, of which none may be computing.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub(crate) fn refresh_all(&self) -> Result<()> {
        (0..self.replicas.len()).try_for_each(|replica| self.refresh(replica))
    }

    /// The candle variables that have been made for replicas.
    pub(crate) fn made(&self) -> impl Iterator<Item = &Var> {
        self.replicas.iter().flatten().filter_map(|replica| Some(&replica.copy.get()?.var))
    }
}

/// Says at its end, however it comes, that some variables were written.
pub(crate) struct Writing<'a>(pub(crate) &'a [Option<Arc<DeviceCopies>>]);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(|copies| copies.written());
    }
}

/// A gradient that candle has found, in the memory of the CPU, where gradients are reduced.
pub(crate) fn to_host(gradient: &Tensor) -> Result<Tensor> {
    Ok(gradient.to_device(&Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;

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

        copies.unwatched();
        of.set(&Tensor::new(&[5f32, 6.], &Device::Cpu).unwrap()).unwrap();
        copies.refresh(1).unwrap();
        assert_eq!(values(&copy), [5., 6.]);
    }
}
