//! The choice of an algorithm, based on the devices. All choices have bit-identical results.

use distribute_base::DeviceName;

/// An algorithm that reduces a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// No reduction, because there is only one part, which is already on the destination.
    Nothing,
    /// All parts are copied to one device. This is always possible.
    OneDevice,
    /// Each half of the replicas is summed, and then the two sums.
    Hierarchical,
}

/// Returns the algorithm for a value that has a part on each device in `from`, and whose result is copied to each
/// device in `to`. `sparse` is `true` if a part consists of indexed slices. The hierarchical algorithm is chosen for
/// all values that it supports.
///
/// Logical CPU devices are treated like all other devices, and integers like all other numbers.
pub(super) fn choose(from: &[DeviceName], to: &[DeviceName], sparse: bool) -> Algorithm {
    match (from.len(), from == to) {
        (1, true) => Algorithm::Nothing,
        (2.., true) if !sparse => Algorithm::Hierarchical,
        _ => Algorithm::OneDevice,
    }
}

#[cfg(test)]
mod tests {
    use super::Algorithm::{Hierarchical, Nothing, OneDevice};
    use super::*;

    const fn gpu(index: usize) -> DeviceName {
        DeviceName::gpu(index)
    }

    #[test]
    fn xd_3_xd_7_xd_8_other_destinations_and_sparse_values_are_reduced_to_one_device() {
        let cpus = &[DeviceName::cpu(0), DeviceName::cpu(1), DeviceName::cpu(2)][..];
        let gpus = &[gpu(0), gpu(1)][..];
        let mixed = &[gpu(0), DeviceName::cpu(0)][..];
        let swapped = &[gpu(1), gpu(0)][..];
        for (from, to, sparse, chosen) in [
            // Values and results are on the same devices, including CPUs.
            (cpus, cpus, false, Hierarchical),
            (gpus, gpus, false, Hierarchical),
            (mixed, mixed, false, Hierarchical),
            // Other destinations.
            (cpus, &cpus[..1], false, OneDevice),
            (gpus, &cpus[..1], false, OneDevice),
            (gpus, &gpus[1..], false, OneDevice),
            (gpus, swapped, false, OneDevice),
            // Sparse values.
            (cpus, cpus, true, OneDevice),
            (gpus, gpus, true, OneDevice),
            // One component.
            (&cpus[1..2], &cpus[1..2], false, Nothing),
            (&gpus[..1], &gpus[..1], true, Nothing),
            (&gpus[..1], &cpus[..1], false, OneDevice),
            (&cpus[..1], gpus, false, OneDevice),
        ] {
            assert_eq!(choose(from, to, sparse), chosen, "{from:?} to {to:?}, sparse: {sparse}");
        }
    }
}
