//! The copies of a variable on devices with separate memory.

use crate::coherent::Coherent;
use crate::error::Result;
use crate::transfer::{to_device, to_host};
use candle_core::{Device, Var};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The copies of a model's variable, one per replica whose device has separate memory, such as a GPU.
///
/// The variable itself is in CPU memory, where it is initialized and saved. Code that writes it there [marks it as
/// written](Self::mark_written), and each replica [refreshes](Self::refresh) its own copy before it computes. An
/// optimizer may [write the copies](Self::write_on_devices) instead of the variable. Code that then reads the variable
/// first [copies the value back](Self::sync_to_host). Copying back is the only operation that waits for a device.
#[derive(Debug)]
pub struct DeviceCopies {
    variable: Var,
    /// The number of times that the variable has been written.
    version: AtomicU64,
    /// The accesses to the variable itself that are tracked, as the number of a [`Tracking`] variant.
    tracking: AtomicU8,
    /// The states of the replicas' copies.
    states: Coherent<u64>,
    /// The replicas of this process. A replica that computes in CPU memory is `None`.
    replicas: Vec<Option<Replica>>,
}

/// The accesses to the variable itself that are tracked. The order of the variants matters: each tracks less than the
/// one before.
#[repr(u8)]
enum Tracking {
    /// Reads and writes. Every read goes through the variable's storage, which first copies the value back.
    All,
    /// Only writes, because some code reads the variable without copying the value back first.
    Writes,
    None,
}

#[derive(Debug)]
struct Replica {
    device: Device,
    /// The copy, which is created when the replica's model requests it.
    copy: OnceLock<Var>,
}

impl DeviceCopies {
    /// Prepares copies of `variable`, which is in CPU memory. `devices` contains the device of each replica; `None` for
    /// a replica that computes in CPU memory. Each copy is created when it is first requested.
    pub fn new(variable: Var, devices: Vec<Option<Device>>) -> Self {
        let replica = |device| Replica { device, copy: OnceLock::new() };
        let replicas: Vec<_> = devices.into_iter().map(|device| device.map(replica)).collect();
        let (version, tracking) = (AtomicU64::new(0), AtomicU8::new(Tracking::All as u8));
        Self { variable, version, tracking, states: Coherent::new(replicas.len()), replicas }
    }

    /// Returns the variable with which local replica `number` computes: its copy, or the variable itself if the replica
    /// computes in CPU memory. Creates the copy on the first call.
    ///
    /// # Errors
    /// Returns candle's error if the device fails or has too little memory.
    pub fn replica_var(&self, number: usize) -> Result<&Var> {
        let Some(Some(replica)) = self.replicas.get(number) else { return Ok(&self.variable) };
        if replica.copy.get().is_none() {
            self.sync_to_host()?;
            self.copy(number, replica)?;
        }
        Ok(replica.copy.get().unwrap_or(&self.variable))
    }

    /// Writes the variable to a replica's copy, unless the copy is dirty or holds the current version. Creates the copy
    /// if it is missing. If writes are not tracked, every copy that is not dirty is written.
    fn copy(&self, number: usize, replica: &Replica) -> Result<()> {
        // If writes are not tracked, the variable has a different version each time.
        let version = || {
            if self.tracks(Tracking::Writes) {
                self.version.load(Ordering::Acquire)
            } else {
                self.version.fetch_add(1, Ordering::AcqRel) + 1
            }
        };
        self.states.refresh(number, version, || {
            let value = to_device(&self.variable.as_detached_tensor(), &replica.device)?;
            match replica.copy.get() {
                Some(copy) => copy.set(&value)?,
                None => drop(replica.copy.set(Var::from_tensor(&value)?)),
            }
            Ok(())
        })
    }

    /// Returns `true` if the accesses of `least` are tracked, and possibly more.
    fn tracks(&self, least: Tracking) -> bool {
        self.tracking.load(Ordering::Relaxed) <= least as u8
    }

    /// Records that the variable has been written.
    pub fn mark_written(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Stops tracking reads and writes, because other code, such as candle's own optimizers, may access the variable.
    /// Copies the value back if the copies are dirty. From then on, each refresh copies the variable to the device.
    ///
    /// # Errors
    /// Returns the errors of [`sync_to_host`](Self::sync_to_host).
    pub fn disable_tracking(&self) -> Result<()> {
        self.tracking.fetch_max(Tracking::None as u8, Ordering::Relaxed);
        self.sync_to_host()
    }

    /// Stops tracking reads, because some code reads the variable without copying the value back first. Layers that
    /// look up rows do so, for example. Copies the value back if the copies are dirty.
    ///
    /// # Errors
    /// Returns the errors of [`sync_to_host`](Self::sync_to_host).
    pub fn disable_read_tracking(&self) -> Result<()> {
        self.tracking.fetch_max(Tracking::Writes as u8, Ordering::Relaxed);
        self.sync_to_host()
    }

    /// Returns the copies of all local replicas. Returns `None` if a replica has no copy, or if reads of the variable
    /// itself are not tracked. Only if this returns `Some` may the copies be written instead of the variable.
    pub fn all(&self) -> Option<Vec<&Var>> {
        if !self.tracks(Tracking::All) {
            return None;
        }
        self.replicas.iter().map(|replica| replica.as_ref()?.copy.get()).collect()
    }

    /// Calls `write`, which must write the same value to the copies of all replicas, and marks the copies as dirty,
    /// even if `write` fails. No replica may be computing during the call.
    ///
    /// # Errors
    /// Returns the error of `write`.
    pub fn write_on_devices(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let exists = |number: &usize| self.existing(*number).is_some();
        self.states.write((0..self.replicas.len()).filter(exists), write)
    }

    /// Copies the value from a device to the variable itself if the copies were written instead of the variable. Waits
    /// for the device.
    ///
    /// # Errors
    /// Returns candle's error if the value cannot be copied. The next call then tries again.
    pub fn sync_to_host(&self) -> Result<()> {
        // All copies have the same value.
        self.states.read(
            || self.version.load(Ordering::Acquire),
            |number| match self.existing(number) {
                Some((_, copy)) => Ok(self.variable.set(&to_host(&copy.as_detached_tensor())?)?),
                None => Ok(()),
            },
        )
    }

    /// Refreshes a local replica's copy of the variable, if the copy exists. The replica must not be using the copy
    /// during the call.
    ///
    /// # Errors
    /// Returns candle's error if the value cannot be copied. The next call then tries again.
    pub fn refresh(&self, replica: usize) -> Result<()> {
        self.existing(replica).map_or(Ok(()), |(found, _)| self.copy(replica, found))
    }

    /// Refreshes the copies of all replicas. No replica may be computing during the call.
    ///
    /// # Errors
    /// Returns the errors of [`refresh`](Self::refresh).
    pub fn refresh_all(&self) -> Result<()> {
        (0..self.replicas.len()).try_for_each(|replica| self.refresh(replica))
    }

    /// Returns a replica and its copy, or `None` if it has no copy.
    fn existing(&self, replica: usize) -> Option<(&Replica, &Var)> {
        let replica = self.replicas.get(replica)?.as_ref()?;
        Some((replica, replica.copy.get()?))
    }

    /// Returns the copies that have been created.
    pub fn existing_copies(&self) -> impl Iterator<Item = &Var> {
        self.replicas.iter().flatten().filter_map(|replica| replica.copy.get())
    }
}

/// A guard that marks variables as written when it is dropped.
pub struct MarkWritten<'a>(pub Vec<&'a DeviceCopies>);

impl Drop for MarkWritten<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|copies| copies.mark_written());
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
        let variable = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let copies = DeviceCopies::new(variable.clone(), vec![None, Some(Device::Cpu), Some(Device::Cpu)]);
        // The first computes with the variable itself; the last has not requested a copy.
        assert_eq!(copies.replica_var(0).unwrap().id(), variable.id());
        let copy = copies.replica_var(1).unwrap().clone();
        assert_eq!(copies.replica_var(1).unwrap().id(), copy.id());
        assert_eq!((copies.existing_copies().count(), copy.id() == variable.id()), (1, false));

        variable.set(&Tensor::new(&[3f32, 4.], &Device::Cpu).unwrap()).unwrap();
        copies.refresh(1).unwrap();
        assert_eq!(values(&copy), [1., 2.], "no call of mark_written yet");
        copies.mark_written();
        assert_eq!(values(&copy), [1., 2.], "it may be computing");
        (0..3).for_each(|replica| copies.refresh(replica).unwrap());
        assert_eq!(values(&copy), [3., 4.]);
        // A copy that is made later begins with the current values.
        assert_eq!(values(copies.replica_var(2).unwrap()), [3., 4.]);

        copies.disable_tracking().unwrap();
        variable.set(&Tensor::new(&[5f32, 6.], &Device::Cpu).unwrap()).unwrap();
        copies.refresh(1).unwrap();
        assert_eq!(values(&copy), [5., 6.]);
    }

    // INV-68
    #[test]
    fn dirty_copies_stay_and_reads_of_the_variable_get_their_value() {
        let variable = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let copies = DeviceCopies::new(variable.clone(), vec![Some(Device::Cpu), Some(Device::Cpu)]);
        let first = copies.replica_var(0).unwrap().clone();
        assert!(copies.all().is_none(), "one replica has none yet");
        let second = copies.replica_var(1).unwrap().clone();
        let stepped = Tensor::new(&[3f32, 4.], &Device::Cpu).unwrap();
        let step = || copies.all().unwrap().into_iter().try_for_each(|copy| Ok(copy.set(&stepped)?));
        copies.write_on_devices(step).unwrap();
        assert_eq!(values(&variable), [1., 2.], "no read yet");
        (0..2).for_each(|replica| copies.refresh(replica).unwrap());
        assert_eq!((values(&first), values(&second)), (vec![3., 4.], vec![3., 4.]));

        copies.sync_to_host().unwrap();
        assert_eq!(values(&variable), [3., 4.]);
        variable.set(&Tensor::new(&[5f32, 6.], &Device::Cpu).unwrap()).unwrap();
        copies.mark_written();
        copies.refresh(1).unwrap();
        assert_eq!(values(&second), [5., 6.]);

        copies.write_on_devices(|| Ok(first.set(&stepped)?)).unwrap();
        copies.disable_tracking().unwrap();
        assert_eq!((values(&variable), copies.all().is_none()), (vec![3., 4.], true));
    }
}
