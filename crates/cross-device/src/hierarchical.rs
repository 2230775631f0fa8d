//! [`HierarchicalCopyAllReduce`]: sums each half of the replicas, and then the two sums.

use super::choice::{Algorithm, choose};
use super::{CrossDeviceOps, Reduction, ReductionToOneDevice, on_device, sum};
use crate::CommunicationOptions;
use distribute_base::{DeviceName, Error, Result};
use distribute_tensor::{Leaf, Packing, ReduceOp, pack::reduce_packed_alone};

/// An algorithm that sums each half of the replicas on the half's first device, and then adds the two sums.
///
/// The size of the first half is the largest power of two below the number of replicas: of 3 replicas, the first half
/// has 2. This preserves the order in which all algorithms sum. The algorithm is used if the destinations are the
/// replicas' own devices. For other destinations, and for sparse values, the parts are reduced on one device.
#[doc(alias = "tf.distribute.HierarchicalCopyAllReduce")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HierarchicalCopyAllReduce {
    /// The number of buckets per dtype in which the values of a batch are reduced. With 0, each value is reduced
    /// separately.
    pub num_packs: usize,
}

/// Returns the algorithm with one bucket.
impl Default for HierarchicalCopyAllReduce {
    fn default() -> Self {
        Self { num_packs: 1 }
    }
}

impl CrossDeviceOps for HierarchicalCopyAllReduce {
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
        let (mut results, mut mine) = (vec![Vec::new(); values.len()], Vec::new());
        for (at, value) in values.iter().enumerate() {
            let sparse = value.parts.iter().any(|part| matches!(part, Leaf::Slices(_)));
            match choose(value.from, value.to, sparse) {
                Algorithm::Hierarchical => mine.push(at),
                _ => results[at] = ReductionToOneDevice::default().reduce(op, value, options)?,
            }
        }
        let Some(first) = mine.first().map(|at| &values[*at]) else { return Ok(results) };
        let parts = |at: &usize| values[*at].parts.as_slice();
        let sums = self.sums(op, &mine.iter().map(parts).collect::<Vec<_>>(), first.from)?;
        for (at, sum) in mine.into_iter().zip(sums) {
            results[at] = self.broadcast(&sum, values[at].to)?;
        }
        Ok(results)
    }
}

impl HierarchicalCopyAllReduce {
    /// Reduces each of `values`, which has one part on each of `devices`. The results are on the first device.
    fn sums(&self, op: ReduceOp, values: &[&[Leaf]], devices: &[DeviceName]) -> Result<Vec<Leaf>> {
        let tensor = || Error::tensor("reduce");
        let dtypes =
            values.iter().map(|parts| parts[0].dtype()).collect::<Result<Vec<_>, _>>().map_err(tensor())?;
        let values = values.iter().map(|parts| Leaf::summands(op, parts));
        let values = values.collect::<Result<Vec<_>, _>>().map_err(tensor())?;
        let cut = devices.len().next_power_of_two() / 2;
        let half = |replicas: std::ops::Range<usize>| {
            let device = devices[replicas.start];
            let list = |replica| values.iter().map(|parts| on_device(&parts[replica], device)).collect();
            let lists = replicas.map(list).collect::<Result<Vec<Vec<_>>>>()?;
            let views: Vec<&[Leaf]> = lists.iter().map(Vec::as_slice).collect();
            reduce_packed_alone(ReduceOp::Sum, &views, Packing::Count(self.num_packs)).map_err(tensor())
        };
        let (left, right) = (half(0..cut)?, half(cut..devices.len())?);
        let across = left.into_iter().zip(right).zip(dtypes).map(|((left, right), dtype)| {
            let total = sum(ReduceOp::Sum, &[left.clone(), on_device(&right, devices[0])?])?;
            total.reduction(op, devices.len(), dtype).map_err(tensor())
        });
        across.collect()
    }
}
