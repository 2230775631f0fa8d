//! How values are combined across devices: the algorithms that users choose from, and the trait of further ones.
//!
//! | module | what it is |
//! |---|---|
//! | `one_device` | [`ReductionToOneDevice`]: everything is summed in one place |
//! | `hierarchical` | [`HierarchicalCopyAllReduce`]: two halves, then across |
//! | `nccl` | [`NcclAllReduce`]: what a library of GPUs does, once there is an engine for it |
//! | `choice` | which of them is used when: a function of devices |
//!
//! All of them give the same bits: the sum over replicas has one order, that of
//! [`kernel::fold`](crate::tensor::kernel::fold).

mod choice;
mod hierarchical;
mod nccl;
mod one_device;

use choice::{Algorithm, choose};
pub use hierarchical::HierarchicalCopyAllReduce;
pub use nccl::NcclAllReduce;
pub use one_device::ReductionToOneDevice;

use super::{CommunicationOptions, DeviceName};
use crate::{Error, Result};
use distribute_tensor::{Leaf, ReduceOp};
use std::fmt::Debug;

/// One value to reduce: its parts, where they are, and where the result is to be.
#[derive(Clone, Debug)]
pub struct Reduction<'a> {
    /// The part of each local replica, in the order of their ids.
    pub parts: Vec<Leaf>,
    /// The device of each replica.
    pub from: &'a [DeviceName],
    /// Where the result is to be; never empty.
    pub to: &'a [DeviceName],
}

/// An algorithm that combines the replicas' values across devices.
///
/// Given to [`MirroredStrategy::builder`](crate::MirroredStrategy::builder), it does what
/// [`reduce`](crate::Strategy::reduce), [`reduce_to`](crate::Strategy::reduce_to) and
/// [`batch_reduce_to`](crate::Strategy::batch_reduce_to) ask for, and each
/// [`all_reduce`](crate::ReplicaContext::all_reduce): there replica 0 calls it while the others wait, as long as their
/// timeout. Optimizers reduce and update in one pass of their own.
///
/// An algorithm of your own implements [`reduce`](Self::reduce); it may use another order of sums, and then gives other
/// bits than those here:
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
pub trait CrossDeviceOps: Debug + Send + Sync + 'static {
    /// Reduces one value, and gives a copy of the result for each of its destinations, in order: of the kind, shape and
    /// dtype that [`Leaf::reduce`] would give. Not called where the parts of a whole batch are one each, where they have
    /// to be.
    ///
    /// # Errors
    /// Where the parts cannot be combined, or a device fails. In `all_reduce`, every replica gets the error.
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>>;

    /// Reduces several values, whose destinations may differ; gives the copies of each, in order. By default one by one.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    fn batch_reduce(
        &self,
        op: ReduceOp,
        values: &[Reduction<'_>],
        options: &CommunicationOptions,
    ) -> Result<Vec<Vec<Leaf>>> {
        values.iter().map(|value| self.reduce(op, value, options)).collect()
    }

    /// Refuses settings that it cannot follow. Asked once, where the strategy is made.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which says which and why. By default any settings will do.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// A copy of one value for each of `to`, in order. Devices that share memory share it.
    ///
    /// # Errors
    /// Where a device fails.
    fn broadcast(&self, value: &Leaf, to: &[DeviceName]) -> Result<Vec<Leaf>> {
        to.iter().map(|device| on_device(value, *device)).collect()
    }
}

/// What reduces where a strategy names no algorithm: without an engine for GPUs, the same on all devices.
pub(crate) const DEFAULT: &dyn CrossDeviceOps = &ReductionToOneDevice { reduce_to_device: None };

/// Reduces a batch by `ops`, and holds it to its promise.
pub(crate) fn reduce_by(
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
    // Rows beside dense parts become dense.
    let Some(like) = parts.iter().find(is_dense).or(parts.first()) else { return true };
    // Of rows there may be any number.
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

/// The reduction of parts that are on one device.
fn sum(op: ReduceOp, parts: &[Leaf]) -> Result<Leaf> {
    Leaf::reduce(op, parts).map_err(Error::tensor("reduce"))
}

/// The value on a device. What is in host memory stays there for every CPU device, and host tensors stay always.
fn on_device(value: &Leaf, device: DeviceName) -> Result<Leaf> {
    match value {
        Leaf::Candle(tensor) => Ok(Leaf::Candle(tensor.to_device(&device.to_candle()?)?)),
        other => Ok(other.clone()),
    }
}
