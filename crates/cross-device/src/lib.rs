//! Combination of values across devices: algorithms that programs can choose, and the trait for custom ones.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate. This crate
//! only combines values within one process.
//!
//! | module | contents |
//! |---|---|
//! | `one_device` | [`ReductionToOneDevice`]: everything is summed on one device |
//! | `hierarchical` | [`HierarchicalCopyAllReduce`]: each half of the replicas is summed, and then the two sums |
//! | `nccl` | [`NcclAllReduce`]: NVIDIA's library, between GPUs |
//! | `choice` | the choice of an algorithm by the devices |
//! | `communication` | [`CommunicationOptions`], [`CommunicationImplementation`] |
//!
//! All algorithms have bit-identical results, except for NCCL's sums. The fixed order of sums over replicas is that of
//! [`kernel::fold`](distribute_tensor::kernel::fold).

mod choice;
mod communication;
mod hierarchical;
mod nccl;
mod one_device;

use choice::{Algorithm, choose};
#[doc(alias = "tf.distribute.experimental.CommunicationImplementation")]
#[doc(alias = "tf.distribute.experimental.CollectiveCommunication")]
#[doc(alias = "CollectiveCommunication")]
pub use communication::CommunicationImplementation;
#[doc(alias = "tf.distribute.experimental.CommunicationOptions")]
#[doc(alias = "tf.distribute.experimental.CollectiveHints")]
#[doc(alias = "CollectiveHints")]
pub use communication::CommunicationOptions;
pub use hierarchical::HierarchicalCopyAllReduce;
pub use nccl::NcclAllReduce;
pub use one_device::ReductionToOneDevice;

use distribute_base::internal::to_device;
use distribute_base::{DeviceName, Error, Result};
use distribute_tensor::{Leaf, ReduceOp};
use std::any::Any;
use std::fmt::Debug;

/// A value to reduce: its parts, the devices of the parts, and the destinations of the result.
#[derive(Clone, Debug)]
pub struct Reduction<'a> {
    /// The part of each local replica, in the order of replica ids.
    pub parts: Vec<Leaf>,
    /// The device of each replica, in the order of `parts`. A part need not be on this device: in an `all_reduce`,
    /// parts are in host memory unless [`takes_device_tensors`](CrossDeviceOps::takes_device_tensors) returns `true`.
    pub from: &'a [DeviceName],
    /// The devices on which to put the result; never empty.
    pub to: &'a [DeviceName],
}

/// An algorithm that combines the replicas' values across devices.
///
/// Pass it to `MirroredStrategy::builder`. The strategy's `reduce`, `reduce_to`, `batch_reduce_to` and `all_reduce` use
/// it. In an `all_reduce`, replica 0 calls it while the others wait, but no longer than their timeout. Optimizers do
/// not call it. They reduce and update in one pass or, if the algorithm is [`NcclAllReduce`] and all weights are on
/// GPUs, reduce with NCCL.
///
/// A custom algorithm implements [`reduce`](Self::reduce). It may sum in a different order, which changes the last bits
/// of results:
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{Result, strategy::CommunicationOptions, tensor::Leaf};
/// use distribute::strategy::{CrossDeviceOps, Reduction, ReductionToOneDevice};
/// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
///
/// #[derive(Debug)]
/// struct Counted(Arc<AtomicUsize>);
///
/// impl CrossDeviceOps for Counted {
///     fn reduce(&self, op: ReduceOp, value: &Reduction, options: &CommunicationOptions) -> Result<Vec<Leaf>> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         ReductionToOneDevice::default().reduce(op, value, options)
///     }
/// }
///
/// let count = Arc::new(AtomicUsize::new(0));
/// let strategy =
///     MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]).cross_device_ops(Counted(count.clone())).build()?;
/// let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, (1f32, 2f32)))?;
/// assert_eq!((sums.values(), count.load(Ordering::Relaxed)), (&[(2., 4.), (2., 4.)][..], 2));
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.CrossDeviceOps")]
pub trait CrossDeviceOps: Any + Debug + Send + Sync {
    /// Reduces one value, and returns a copy of the result for each of its destinations, in order. The result has the
    /// same kind, shape and dtype as that of [`Leaf::reduce`]. This is not called if every value of a batch has a
    /// single part that is already on its destination.
    ///
    /// # Errors
    /// Returns an error if the parts cannot be combined, or a device fails. In `all_reduce`, every replica gets this
    /// error.
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>>;

    /// Reduces several values, whose destinations may differ, and returns the copies of each result, in order. By
    /// default, the values are reduced one by one.
    ///
    /// # Errors
    /// Returns the errors of [`reduce`](Self::reduce).
    fn batch_reduce(
        &self,
        op: ReduceOp,
        values: &[Reduction<'_>],
        options: &CommunicationOptions,
    ) -> Result<Vec<Vec<Leaf>>> {
        values.iter().map(|value| self.reduce(op, value, options)).collect()
    }

    /// Checks the settings, and whether the algorithm supports the local replicas' devices. This is called once, when
    /// the strategy is created. By default, everything is accepted.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a setting is not supported.
    /// - [`Error::Device`]: the devices do not support the algorithm.
    fn check(&self, devices: &[DeviceName]) -> Result<()> {
        let _ = devices;
        Ok(())
    }

    /// Returns `true` if, in an `all_reduce` between replicas on these devices, the parts should be passed to
    /// [`reduce`](Self::reduce) on their devices. By default, they are copied to host memory, and each replica gets its
    /// result on the device of its part.
    fn takes_device_tensors(&self, devices: &[DeviceName]) -> bool {
        let _ = devices;
        false
    }

    /// Returns `value` on each device in `to`, in order. A candle tensor is copied, unless it is already on the device.
    /// Host tensors and indexed slices stay in host memory, and all devices share them.
    ///
    /// # Errors
    /// Returns an error if a device cannot be opened, or if candle cannot copy the tensor.
    fn broadcast(&self, value: &Leaf, to: &[DeviceName]) -> Result<Vec<Leaf>> {
        to.iter().map(|device| on_device(value, *device)).collect()
    }
}

/// The default algorithm of strategies. It is the same for all devices.
pub const DEFAULT: &dyn CrossDeviceOps = &ReductionToOneDevice { reduce_to_device: None };

/// Reduces a batch of values with `ops`, and checks the results. Returns the copies of each result, in order. If each
/// value has a single part that is already on its destination, `ops` is not called.
///
/// # Errors
/// - [`Error::InvalidArgument`]: `ops` returned a wrong number of copies, or a copy of the wrong kind, shape or dtype.
///   The error names `operation`.
/// - The errors of [`CrossDeviceOps::batch_reduce`] or, if `ops` is not called, of [`Leaf::reduce`].
pub fn reduce_by(
    ops: &dyn CrossDeviceOps,
    operation: &'static str,
    op: ReduceOp,
    values: &[Reduction<'_>],
    options: &CommunicationOptions,
) -> Result<Vec<Vec<Leaf>>> {
    let nothing = |value: &Reduction<'_>| choose(value.from, value.to, false) == Algorithm::Nothing;
    let reduced = if values.iter().all(nothing) {
        values.iter().map(|value| Ok(vec![sum(op, &value.parts)?])).collect::<Result<Vec<_>>>()?
    } else {
        ops.batch_reduce(op, values, options)?
    };
    let wrong = |what: String| Err(Error::invalid(operation, format!("{ops:?} {what}")));
    let counts = reduced.iter().map(Vec::len);
    if !counts.eq(values.iter().map(|value| value.to.len())) {
        return wrong("did not return one copy for each destination of each value".into());
    }
    for (value, copies) in values.iter().zip(&reduced) {
        if let Some(copy) = copies.iter().find(|copy| !is_reduction(op, &value.parts, copy)) {
            let (kind, copy) = (copy.kind(), copy.describe());
            let (of, part) =
                value.parts.first().map_or(("nothing", String::new()), |p| (p.kind(), p.describe()));
            return wrong(format!(
                "returned {kind} {copy} as the {op} of {of} {part}; kind, shape and dtype must be those of Leaf::reduce"
            ));
        }
    }
    Ok(reduced)
}

/// Returns `true` if `value` has the kind, shape and dtype of a reduction of `parts`.
fn is_reduction(op: ReduceOp, parts: &[Leaf], value: &Leaf) -> bool {
    let is_dense = |leaf: &&Leaf| !matches!(leaf, Leaf::Slices(_));
    // Slices reduced with dense parts become dense.
    let Some(like) = parts.iter().find(is_dense).or(parts.first()) else { return true };
    // The number of rows of slices may differ.
    let shape = |leaf: &Leaf| match leaf {
        Leaf::Slices(slices) => slices.values.dims().get(1..).map(<[usize]>::to_vec),
        dense => Some(dense.dims().to_vec()),
    };
    let dtype = like.dtype().ok().and_then(|dtype| match op {
        ReduceOp::Mean => dtype.mean(),
        ReduceOp::Sum => Some(dtype),
    });
    like.kind() == value.kind() && shape(like) == shape(value) && dtype == value.dtype().ok()
}

/// Reduces parts that are all on one device.
fn sum(op: ReduceOp, parts: &[Leaf]) -> Result<Leaf> {
    Leaf::reduce(op, parts).map_err(Error::tensor("reduce"))
}

/// Returns a value on a device. A candle tensor is copied, unless it is already on the device. Host tensors and indexed
/// slices stay in host memory, whatever the device.
fn on_device(value: &Leaf, device: DeviceName) -> Result<Leaf> {
    match value {
        Leaf::Candle(tensor) => Ok(Leaf::Candle(to_device(tensor, &device.to_candle()?)?)),
        other => Ok(other.clone()),
    }
}

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::nccl::{sum_on_gpus, uses_nccl};
    pub use crate::{DEFAULT, reduce_by};
}
