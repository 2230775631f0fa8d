//! Sums between GPUs with NVIDIA's library NCCL.
//!
//! | module | contents |
//! |---|---|
//! | `support` | the sums that NCCL supports, by devices, shapes and types |
//! | `communicators` | communicators of GPUs, and one group of calls for all sums, with a replaceable library |
//! | `cuda` | the same for candle tensors; only in builds with CUDA |
//! | `fault` | errors of sums by NCCL |

#[cfg(any(feature = "cuda", test))]
mod communicators;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", test))]
mod fault;
mod support;

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

/// An algorithm that sums with NVIDIA's NCCL between the GPUs of one process. It requires a build with the feature
/// `cuda`.
///
/// NCCL sums dense tensors of f32, f64, f16, bf16, u8, u32 and i64 if each replica has one on its GPU and the results
/// stay there. The parts of an `all_reduce` are then not copied to the host, and no thread waits for the sums.
/// Everything else is reduced on one device: values on CPUs, sparse values, values on different kinds of devices, and
/// values with other destinations. A program that uses this algorithm therefore also runs without GPUs.
///
/// NCCL chooses its own order of sums, so results differ from those of other algorithms in their last bits. f16 and
/// bf16 are accumulated in f32. A mean is computed by dividing the sum.
///
/// NCCL (`libnccl.so.2`, 2.14 or later) is loaded when a strategy with several GPUs is created. If it is not installed,
/// creating the strategy fails with [`Error::Device`], which contains instructions. If NCCL fails in a sum, GPUs may
/// have different results, so all later sums on these GPUs fail. The same applies if, within half of the call's
/// timeout, NCCL has not linked the GPUs or has not enqueued a sum. The error then names the GPUs for which NCCL was
/// waiting.
#[doc(alias = "tf.distribute.NcclAllReduce")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclAllReduce {
    /// The number of buckets in which the values of a batch are reduced. NCCL gets all values in one group of calls
    /// without buckets, so creating a strategy with more than 1 fails with [`Error::InvalidArgument`].
    /// [`HierarchicalCopyAllReduce`](super::HierarchicalCopyAllReduce) supports buckets.
    pub num_packs: usize,
}

/// Returns the algorithm with one bucket.
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
        copies.ok_or_else(|| Error::invalid("reduce", "a batch with one value returned no result"))
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
            if can_link(value.from) && support::is_supported(value) {
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
            "num_packs is {}, but NCCL sums all values in one group without packs; set it to 1, or use \
             HierarchicalCopyAllReduce",
            self.num_packs
        );
        Err(Error::invalid("NcclAllReduce", reason))
    }
}

/// Returns `true` if this build can link the given devices with NCCL.
fn can_link(devices: &[DeviceName]) -> bool {
    cfg!(feature = "cuda") && support::gpus(devices).is_some()
}

/// Returns `true` if a strategy with these `ops` and `devices` sums with NCCL: `ops` is [`NcclAllReduce`], there are
/// several replicas, each with its own GPU, and the build has the feature `cuda`.
pub fn uses_nccl(ops: Option<&dyn CrossDeviceOps>, devices: &[DeviceName]) -> bool {
    ops.is_some_and(|ops| (ops as &dyn Any).is::<NcclAllReduce>()) && can_link(devices)
}

/// Sums `parts[replica][number]` over the GPUs. Each replica gets the sums on its device, in the same order and without
/// a gradient graph. When this returns, the sums have been enqueued on the GPUs, after the parts. The other replicas
/// wait for `timeout`. NCCL gets half of this time, so that the other replicas receive its error before they time out.
///
/// # Errors
/// - [`Error::Device`]: NCCL is missing, fails or times out; NCCL cannot link the devices; or parts differ or are on
///   other devices.
/// - [`Error::Candle`]: a GPU does not have enough memory for the sums, or candle cannot record that they were
///   enqueued.
pub fn sum_on_gpus(
    devices: &[DeviceName],
    parts: &[Vec<Tensor>],
    timeout: Duration,
) -> Result<Vec<Vec<Tensor>>> {
    let gpus = support::gpus(devices).filter(|_| cfg!(feature = "cuda"));
    let refuse = || {
        let names = devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = "NCCL needs several CUDA GPUs, each named once, and a build with the feature \"cuda\"";
        Error::Device { name: names, reason: reason.into() }
    };
    let gpus = gpus.ok_or_else(refuse)?;
    let _nccl = tracing::trace_span!("nccl", tensors = parts.first().map_or(0, Vec::len)).entered();
    sum(devices, &gpus, parts, timeout / 2)
}

/// Reduces values that have one part on each of the given GPUs. For each value, returns one copy of the result per GPU.
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
