//! How values are combined across devices: the algorithms that users choose from, and the trait for others.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | what it is |
//! |---|---|
//! | `one_device` | [`ReductionToOneDevice`]: everything is summed on one device |
//! | `hierarchical` | [`HierarchicalCopyAllReduce`]: two halves, then their sums |
//! | `nccl` | [`NcclAllReduce`]: NVIDIA's library, between GPUs |
//! | `choice` | chooses the algorithm by the devices |
//!
//! All of them give the same bits, but for what NCCL sums: sums over replicas have one order, that of
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

/// A value to reduce: its parts, where they are, and where the result should be.
#[derive(Clone, Debug)]
pub struct Reduction<'a> {
    /// The part of each local replica, in the order of their ids.
    pub parts: Vec<Leaf>,
    /// The device of each replica.
    pub from: &'a [DeviceName],
    /// The devices for the result; never empty.
    pub to: &'a [DeviceName],
}

/// An algorithm that combines the replicas' values across devices.
///
/// Given to `MirroredStrategy::builder`, it implements
/// `reduce`, `reduce_to`,
/// `batch_reduce_to` and `all_reduce`. In an
/// `all_reduce`, replica 0 calls it while the others wait, at most for their timeout. Optimizers don't call it: they reduce
/// and update in one pass, or, where it is [`NcclAllReduce`] and all weights are on GPUs, by NCCL.
///
/// An algorithm of your own implements [`reduce`](Self::reduce). It may use another order of sums, whose results differ in
/// their last bits:
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{CommunicationOptions, Leaf, Result};
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
    /// Reduces one value, and returns a copy of the result for each of its destinations, in order. The result has the kind,
    /// shape and dtype of that of [`Leaf::reduce`]. Not called if every value of a batch has a single part, which is already
    /// where the result should be.
    ///
    /// # Errors
    /// If the parts cannot be combined, or a device fails. In `all_reduce`, every replica gets the error.
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>>;

    /// Reduces several values, whose destinations may differ, and returns the copies of each, in order. By default it
    /// reduces them one by one.
    ///
    /// # Errors
    /// Those of [`reduce`](Self::reduce).
    fn batch_reduce(
        &self,
        op: ReduceOp,
        values: &[Reduction<'_>],
        options: &CommunicationOptions,
    ) -> Result<Vec<Vec<Leaf>>> {
        values.iter().map(|value| self.reduce(op, value, options)).collect()
    }

    /// Refuses unsupported settings, and what cannot be used between these devices, those of the local replicas. Called once, when the
    /// strategy is made. By default it accepts all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which says which setting and why; [`Error::Device`], which says what the devices lack.
    fn check(&self, devices: &[DeviceName]) -> Result<()> {
        let _ = devices;
        Ok(())
    }

    /// Whether the parts of an `all_reduce` between replicas on these devices come to [`reduce`](Self::reduce) where they are. By default they come
    /// in the memory of the CPU, and each replica gets its result on the device of its part.
    fn takes_device_tensors(&self, devices: &[DeviceName]) -> bool {
        let _ = devices;
        false
    }

    /// Returns a copy of one value for each of `to`, in order. Devices that share memory share the copy.
    ///
    /// # Errors
    /// If a device fails.
    fn broadcast(&self, value: &Leaf, to: &[DeviceName]) -> Result<Vec<Leaf>> {
        to.iter().map(|device| on_device(value, *device)).collect()
    }
}

/// The algorithm of strategies that name none. Without an engine for GPUs, it is the same for all devices.
pub const DEFAULT: &dyn CrossDeviceOps = &ReductionToOneDevice { reduce_to_device: None };

/// Reduces a batch by `ops`, and checks the results that it returns.
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
        return wrong("has to give one copy for each destination of each value, and did not".into());
    }
    for (value, copies) in values.iter().zip(&reduced) {
        if let Some(copy) = copies.iter().find(|copy| !is_reduction(op, &value.parts, copy)) {
            let (kind, copy) = (copy.kind(), copy.describe());
            let (of, part) =
                value.parts.first().map_or(("nothing", String::new()), |p| (p.kind(), p.describe()));
            return wrong(format!(
                "gave {kind} {copy} as the {op} of {of} {part}; kind, shape and dtype have to be those of Leaf::reduce"
            ));
        }
    }
    Ok(reduced)
}

/// Whether a value can be the reduction of `parts`, by its kind, shape and dtype.
fn is_reduction(op: ReduceOp, parts: &[Leaf], value: &Leaf) -> bool {
    let is_dense = |leaf: &&Leaf| !matches!(leaf, Leaf::Slices(_));
    // Slices reduced with dense parts become dense.
    let Some(like) = parts.iter().find(is_dense).or(parts.first()) else { return true };
    // Slices may have any number of rows.
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

/// Reduces parts that are on one device.
fn sum(op: ReduceOp, parts: &[Leaf]) -> Result<Leaf> {
    Leaf::reduce(op, parts).map_err(Error::tensor("reduce"))
}

/// Copies the value to a device. Values in host memory stay there for every CPU device, and host tensors always do.
fn on_device(value: &Leaf, device: DeviceName) -> Result<Leaf> {
    match value {
        Leaf::Candle(tensor) => Ok(Leaf::Candle(to_device(tensor, &device.to_candle()?)?)),
        other => Ok(other.clone()),
    }
}

/// The interface for the other crates of `distribute`. It is not public: anything in it may change.
#[doc(hidden)]
pub mod internal {
    pub use crate::nccl::{sum_on_gpus, uses_nccl};
    pub use crate::{DEFAULT, reduce_by};
}
