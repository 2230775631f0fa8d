//! The update of variables on devices with separate memory. With a single replica, no thread waits for the device,
//! except for the trial of a new kernel. A variable of which some replica has no copy, such as a very large table, is
//! updated on the host.
//!
//! | module | contents |
//! |---|---|
//! | `compute` | a rule, applied to the copies of all replicas |
//! | `sums` | gradients of several replicas, added up on their devices |
//! | `transforms` | transforms of gradients before the update |
//!
//! `distribute-kernels` runs the step of a rule: as candle's operations, or as a single kernel on a GPU.

// - **INV-69** A step of a lone replica on a device with its own memory waits for the device only when losses are
//   read, many at once. The exceptions are one wait for each kernel of a rule (INV-71), and checks of ids or labels
//   that are on the device and were not copied there by the input. A weight that was updated there is copied to the
//   host when it is read, and an update that fails for lack of memory has changed nothing. In `base`'s `transfer`
//   only `to_host` waits, and large copies use pinned memory. Tests: `optimizer/src/update/devices/tests.rs`,
//   `optimizer/src/checks/pending_losses.rs`, `distribute/tests/devices/main.rs`, `base/src/transfer/host_copies.rs`,
//   `base/src/transfer/device_copier.rs`.

mod compute;
#[cfg(test)]
#[cfg(feature = "cuda")]
mod cuda_tests;
mod sums;
mod transforms;

pub(crate) use transforms::{are_finite, transform, weigh};

use crate::parameters::{Copies, Parameters};
use crate::progress::Change;
use crate::reduce::operands::Operands;
use crate::reduce::{self, Weighted};
use crate::sync::Threads;
use crate::update::local::InPlaceUpdater;
use crate::update::{Backend, Pass, Update};
use crate::{Inner, Transform};
use candle_core::Var;
use compute::DeviceUpdater;
use distribute_base::internal::ReplicaGradient;
use distribute_base::{DeviceName, Result};
use distribute_core::strategy::Compression;
use distribute_cross_device::internal::{sum_on_gpus, uses_nccl};
use sums::sum_on_devices;

/// A backend that updates the replicas' copies on devices, and variables without such copies on the host.
#[derive(Debug)]
pub(crate) struct Devices;

impl Backend for Devices {
    fn reduce_and_apply(&self, update: &Update<'_>, pass: &Pass<'_>) -> Result<()> {
        let Pass { change, operands, replicas, threads, .. } = *pass;
        let on_device =
            |(_, gradients): &Weighted<'_>| gradients.iter().flatten().any(ReplicaGradient::is_on_device);
        let on_device = replicas.iter().any(on_device);
        if update.copies.is_empty() && !on_device {
            return InPlaceUpdater::new(update, update.transforms)
                .reduce_and_apply(change, operands, threads);
        }
        let parameters = update.parameters();
        let (devices, timeout) = (parameters.strategy.devices(), parameters.strategy.extended().timeout());
        let gradients = match weigh_gradients(replicas, update.copies)? {
            Some(there) if !replicas.is_empty() && !update.copies.is_empty() => {
                sum_on_devices(there, update.copies, |parts| sum_on_gpus(&devices, parts, timeout))?
            }
            _ => None,
        };
        let Some(mut gradients) = gradients else {
            if !on_device {
                return apply_from_host(update, operands, change, threads);
            }
            // Rows are summed on the host, and so are gradients that only some replicas have on their device.
            let on_host = replicas.iter().map(|(_, gradients)| to_host(parameters, gradients));
            let on_host = on_host.collect::<Result<Vec<_>>>()?;
            let weights = replicas.iter().map(|(weight, _)| *weight);
            let weighted: Vec<_> = weights.zip(on_host.iter().map(Vec::as_slice)).collect();
            let all = Operands::new(parameters, &weighted, weighted.len())?;
            return apply_from_host(update, &all, change, threads);
        };
        for (replica, gradients) in gradients.iter_mut().enumerate() {
            let mine: Vec<_> =
                update.copies.iter().map(|copies| copies.as_ref()?.get(replica).copied()).collect();
            transform(update.transforms, gradients, &mine)?;
        }
        apply_mixed(update, &gradients, change, || {
            InPlaceUpdater::new(update, update.transforms).reduce_and_apply(change, operands, threads)
        })
    }

    /// Returns each replica's copies of the variables whose rule has a program. The result is empty if there are no
    /// such variables, if there are several workers or gradients are rounded as for several, if a rule does more than
    /// compute, or if a device cannot update variables.
    fn copies<'a>(&self, optimizer: &'a Inner) -> Copies<'a> {
        let parameters = &*optimizer.parameters;
        let strategy = &parameters.strategy;
        if strategy.world().is_multi_worker()
            || parameters.compression_of_gradients() != Compression::None
            || !optimizer.groups.only_compute()
            || !strategy.devices().into_iter().all(DeviceName::can_update)
        {
            return Vec::new();
        }
        let copies = parameters.device_copies.iter().zip(optimizer.groups.have_programs());
        let all: Copies<'_> = copies.map(|(copies, has)| copies.as_ref().filter(|_| has)?.all()).collect();
        if all.iter().any(Option::is_some) { all } else { Vec::new() }
    }

    /// Returns the copies of the variables whose gradients stay on devices: none if gradients must first be reduced on
    /// the host. Gradients of several replicas stay on devices if NCCL can sum all of them.
    fn gradients_on_device<'a>(
        &self,
        optimizer: &Inner,
        copies: &Copies<'a>,
        replica: usize,
    ) -> Vec<Option<&'a Var>> {
        let transforms = || optimizer.before_reduce.iter().chain(&optimizer.after_reduce);
        let whole = transforms().any(|transform| transform.closure().is_some());
        // A norm is over all gradients, on any device.
        let torn = transforms().any(Transform::takes_norms) && copies.iter().any(Option::is_none);
        let strategy = &optimizer.parameters.strategy;
        let (world, extended) = (strategy.world(), strategy.extended());
        let by_nccl =
            || !world.is_multi_worker() && uses_nccl(extended.cross_device_ops(), extended.worker_devices());
        let meet = world.replicas() > 1 && !(by_nccl() && copies.iter().all(Option::is_some));
        if meet || whole || torn {
            return Vec::new();
        }
        copies.iter().map(|copies| copies.as_ref()?.get(replica).copied()).collect()
    }
}

/// Returns the gradients on each replica's device, multiplied by the replica's weight. Returns `None` if a variable on
/// devices has a gradient on the host, or vice versa.
fn weigh_gradients(
    replicas: &[Weighted<'_>],
    copies: &Copies<'_>,
) -> Result<Option<Vec<Vec<Option<ReplicaGradient>>>>> {
    let of = |(weight, gradients): &Weighted<'_>| {
        let on_host = |(gradient, copies): (&Option<ReplicaGradient>, &Option<_>)| {
            copies.is_some() && gradient.as_ref().is_some_and(|gradient| !gradient.is_on_device())
        };
        if gradients.iter().zip(copies).any(on_host) {
            return None;
        }
        let there = |gradient: &&ReplicaGradient| gradient.is_on_device();
        let mut there: Vec<_> = gradients.iter().map(|of| of.as_ref().filter(there).cloned()).collect();
        let is_updated =
            |(gradient, copies): (&Option<_>, &Option<_>)| gradient.is_none() || copies.is_some();
        if !there.iter().zip(copies).all(is_updated) {
            return None;
        }
        Some(weigh(&mut there, *weight).map(|()| there))
    };
    replicas.iter().map(of).collect::<Option<Result<_>>>().transpose()
}

/// Returns the gradients of a replica on the host. Waits for the replica's device.
pub(crate) fn to_host(
    parameters: &Parameters,
    gradients: &[Option<ReplicaGradient>],
) -> Result<Vec<Option<ReplicaGradient>>> {
    let host = |(gradient, (_, variable)): (&Option<ReplicaGradient>, &(String, Var))| {
        gradient.as_ref().map(|gradient| gradient.to_host(variable)).transpose()
    };
    gradients.iter().zip(&parameters.variables).map(host).collect()
}

/// Reduces gradients on the host, copies the gradients of variables that are on devices to the devices, and applies all
/// of them.
fn apply_from_host(
    update: &Update<'_>,
    all: &Operands<'_>,
    change: &Change<'_>,
    threads: &Threads<'_>,
) -> Result<()> {
    let parameters = update.parameters();
    let mut on_host = reduce::reduce_to_gradients(update.transforms, parameters, all, threads)?;
    let mut there: Vec<Vec<Option<ReplicaGradient>>> =
        vec![vec![None; on_host.len()]; parameters.strategy.world().replicas()];
    for (number, (gradient, copies)) in on_host.iter_mut().zip(update.copies).enumerate() {
        let Some(copies) = copies else { continue };
        let Some(gradient) = gradient.take() else { continue };
        for (of_replica, copy) in there.iter_mut().zip(copies) {
            of_replica[number] = Some(gradient.clone().into_device(copy)?);
        }
    }
    apply_mixed(update, &there, change, || {
        let rest = Operands::new(parameters, &[(1., on_host.as_slice())], 1)?;
        InPlaceUpdater::new(update, &[]).reduce_and_apply(change, &rest, threads)
    })
}

/// Applies the gradients that are on devices, and calls `on_host` to apply the others. All memory is allocated before
/// the first write.
fn apply_mixed(
    update: &Update<'_>,
    gradients: &[Vec<Option<ReplicaGradient>>],
    change: &Change<'_>,
    on_host: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let on_devices =
        DeviceUpdater { rules: &update.rules, parameters: update.parameters(), copies: update.copies };
    let made = on_devices.compute(gradients, &mut change.slots())?;
    on_host()?;
    on_devices.write(made, &mut change.slots())
}

#[cfg(test)]
mod tests;
