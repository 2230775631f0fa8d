//! NVIDIA's library for GPUs.
//!
//! | module | contents |
//! |---|---|
//! | `taken` | the sums that NCCL supports, by devices, shapes and types |
//! | `communicators` | communicators of GPUs, and one group of calls for all sums, with a replaceable library |
//! | `cuda` | the same for candle tensors; only in builds with CUDA |
//! | `fault` | errors of sums by NCCL |

#[cfg(any(feature = "cuda", test))]
mod communicators;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", test))]
mod fault;
mod taken;

use super::{CrossDeviceOps, Reduction, ReductionToOneDevice};
use crate::CommunicationOptions;
use candle_core::Tensor;
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::Deadline;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_tensor::{Leaf, ReduceOp};
use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

/// Sums by NVIDIA's NCCL between the GPUs of one process, in a build with the feature `cuda`.
///
/// NCCL sums dense tensors of f32, f64, f16, bf16, u8, u32 and i64 if each replica has one on its GPU and the
/// results stay there. The parts of an `all_reduce` are then not copied to the host, and no thread waits for
/// the sums. Everything else is reduced to one device: values on CPUs, sparse values, values on mixed
/// devices, and other destinations. Programs that use this algorithm therefore run everywhere.
///
/// NCCL chooses its own order of sums: results differ in their last bits from those of other algorithms. f16
/// and bf16 are accumulated as f32. A mean is the sum, divided.
///
/// NCCL (`libnccl.so.2`, 2.14 or later) is loaded when a strategy is created whose devices are several GPUs.
/// If it is not installed, the strategy is refused with [`Error::Device`], which contains instructions. If a
/// sum fails, GPUs may have different results, so all later sums of these GPUs are refused. The same applies
/// if NCCL has not linked the GPUs or not begun a sum within half of the call's timeout; the error then names
/// the GPUs that it waits for.
#[doc(alias = "tf.distribute.NcclAllReduce")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclAllReduce {
    /// The number of buckets in which the values of a batch are reduced. NCCL gets all values in one group of
    /// calls without buckets, so a strategy with more than 1 is refused with [`Error::InvalidArgument`].
    /// [`HierarchicalCopyAllReduce`](super::HierarchicalCopyAllReduce) supports buckets.
    pub num_packs: usize,
}

/// The default is one bucket.
impl Default for NcclAllReduce {
    fn default() -> Self {
        Self { num_packs: 1 }
    }
}

impl CrossDeviceOps for NcclAllReduce {
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>> {
        let copies = self.batch_reduce(op, std::slice::from_ref(value), options)?.pop();
        copies.ok_or_else(|| Error::invalid("reduce", "a batch of one value gave no result"))
    }

    fn batch_reduce(
        &self,
        op: ReduceOp,
        values: &[Reduction<'_>],
        options: &CommunicationOptions,
    ) -> Result<Vec<Vec<Leaf>>> {
        self.check_packs()?;
        let mut results = vec![Vec::new(); values.len()];
        let mut by_nccl: BTreeMap<&[DeviceName], Vec<usize>> = BTreeMap::new();
        for (at, value) in values.iter().enumerate() {
            if can_link(value.from) && taken::is_taken(value) {
                by_nccl.entry(value.from).or_default().push(at);
            } else {
                results[at] = ReductionToOneDevice::default().reduce(op, value, options)?;
            }
        }
        let deadline = Deadline::after(options.timeout.unwrap_or(DEFAULT_TIMEOUT));
        for (devices, numbers) in by_nccl {
            let parts: Vec<&[Leaf]> = numbers.iter().map(|at| values[*at].parts.as_slice()).collect();
            for (at, copies) in numbers.iter().zip(reduce_on_gpus(op, devices, &parts, deadline.remaining())?)
            {
                results[*at] = copies;
            }
        }
        Ok(results)
    }

    fn check(&self, devices: &[DeviceName]) -> Result<()> {
        self.check_packs()?;
        if can_link(devices) { load(devices) } else { Ok(()) }
    }

    fn takes_device_tensors(&self, devices: &[DeviceName]) -> bool {
        can_link(devices)
    }
}

impl NcclAllReduce {
    fn check_packs(&self) -> Result<()> {
        if self.num_packs <= 1 {
            return Ok(());
        }
        let reason = format!(
            "num_packs is {}, but NCCL gets all values in one group, and nothing is packed; leave it at 1, or use \
             HierarchicalCopyAllReduce",
            self.num_packs
        );
        Err(Error::invalid("NcclAllReduce", reason))
    }
}

/// Whether this build can link these devices by NCCL.
fn can_link(devices: &[DeviceName]) -> bool {
    cfg!(feature = "cuda") && taken::gpus(devices).is_some()
}

/// Whether the replicas of this strategy sum by NCCL: several replicas of one process, each on its own GPU.
pub fn uses_nccl(ops: Option<&dyn CrossDeviceOps>, devices: &[DeviceName]) -> bool {
    ops.is_some_and(|ops| (ops as &dyn Any).is::<NcclAllReduce>()) && can_link(devices)
}

/// Sums `parts[replica][number]` over GPUs. The sums are on their replica's device, in the same order, and
/// have no gradient graph. When this returns, they are in the queues of the GPUs, after the parts. The other
/// replicas wait for `timeout`. NCCL has half of it, so that they get its error.
///
/// # Errors
/// - [`Error::Device`]: NCCL is missing, fails or times out; it cannot link the devices; or parts differ or
///   are on other devices.
/// - The errors of candle, if a GPU has no memory for the sums.
pub fn sum_on_gpus(
    devices: &[DeviceName],
    parts: &[Vec<Tensor>],
    timeout: Duration,
) -> Result<Vec<Vec<Tensor>>> {
    let gpus = taken::gpus(devices).filter(|_| cfg!(feature = "cuda"));
    let refuse = || {
        let names = devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason =
            "NCCL sums between several GPUs of CUDA, each named once, in a build with the feature \"cuda\"";
        Error::Device { name: names, reason: reason.into() }
    };
    let gpus = gpus.ok_or_else(refuse)?;
    let _nccl = tracing::trace_span!("nccl", tensors = parts.first().map_or(0, Vec::len)).entered();
    sum(devices, &gpus, parts, timeout / 2)
}

/// Reduces values with a part on each of these GPUs, and returns the copies of each.
fn reduce_on_gpus(
    op: ReduceOp,
    devices: &[DeviceName],
    values: &[&[Leaf]],
    timeout: Duration,
) -> Result<Vec<Vec<Leaf>>> {
    let tensor = || Error::tensor("reduce");
    let mut lists: Vec<Vec<Tensor>> = vec![Vec::with_capacity(values.len()); devices.len()];
    for parts in values {
        let summands = Leaf::summands(op, parts).map_err(tensor())?;
        for (list, summand) in lists.iter_mut().zip(summands) {
            list.extend(if let Leaf::Candle(tensor) = summand { Some(tensor) } else { None });
        }
    }
    let sums = sum_on_gpus(devices, &lists, timeout)?;
    let copies = |(at, parts): (usize, &&[Leaf])| {
        let dtype = parts[0].dtype().map_err(tensor())?;
        let sum = |replica: &Vec<Tensor>| {
            Leaf::Candle(replica[at].clone()).reduction(op, devices.len(), dtype).map_err(tensor())
        };
        sums.iter().map(sum).collect()
    };
    values.iter().enumerate().map(copies).collect()
}

#[cfg(feature = "cuda")]
fn load(devices: &[DeviceName]) -> Result<()> {
    distribute_nccl_library::Nccl::get().map(drop).map_err(|error| fault::Fault::from(error).on(devices))
}

#[cfg(feature = "cuda")]
fn sum(
    devices: &[DeviceName],
    gpus: &[usize],
    parts: &[Vec<Tensor>],
    patience: Duration,
) -> Result<Vec<Vec<Tensor>>> {
    cuda::sum(gpus, parts, patience).map_err(|fault| fault.on(devices))
}

// A build without CUDA cannot link devices (`can_link`), and calls neither function.
#[cfg(not(feature = "cuda"))]
fn load(_: &[DeviceName]) -> Result<()> {
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn sum(_: &[DeviceName], _: &[usize], _: &[Vec<Tensor>], _: Duration) -> Result<Vec<Vec<Tensor>>> {
    Ok(Vec::new())
}

#[cfg(test)]
mod tests;
