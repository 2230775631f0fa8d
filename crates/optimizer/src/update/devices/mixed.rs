//! A step of which some variables are updated on devices, and the others, such as tables there is no room for, on the host.

use crate::Optimizer;
use crate::progress::Change;
use crate::reduce;
use crate::reduce::operands::Operands;
use crate::step::decide::Judged;
use crate::step::exchange::Brought;
use crate::step::replica::Contribution;
use crate::sync::Threads;
use crate::sync::Together;
use crate::transform::Transform;
use crate::update::Updater;
use crate::update::devices::{Copies, DeviceGradient, OnDevices, summed, transform, weigh};
use distribute_base::Result;
use distribute_base::internal::LocalGradient;
use distribute_cross_device::internal::sum_on_gpus;
use distribute_optim::Rule;
use std::sync::Arc;

/// Applies gradients of the host, those of variables on devices there.
pub(crate) struct OnDevicesToo<'a, R> {
    pub(crate) optimizer: &'a Optimizer<R>,
    pub(crate) judged: &'a Judged,
    /// What is done to gradients before; no closures.
    pub(crate) transforms: &'a [Transform],
    pub(crate) copies: &'a Copies<'a>,
}

impl<R: Rule> Updater for OnDevicesToo<'_, R> {
    fn apply(
        &self,
        together: &Together<'_>,
        gradients: &Arc<Vec<Option<LocalGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()> {
        let Self { optimizer, judged, transforms, copies } = *self;
        together.lead(|threads| {
            let Some(change) = change else { return Ok(()) };
            let all = Operands::new(&optimizer.trained, &[(1., gradients.as_slice())], 1)?;
            optimizer.apply_operands(judged, transforms, &all, copies, change, threads)?;
            optimizer.trained.end_step(change)
        })
    }
}

impl<R: Rule> Optimizer<R> {
    /// Reduces and applies what replicas have brought: what has stayed on a device, there.
    pub(crate) fn apply_brought(
        &self,
        judged: &Judged,
        brought: &Brought,
        all: &Operands<'_>,
        copies: &Copies<'_>,
        change: &Change<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        if brought.mine.iter().all(|of| of.on_device.is_none()) {
            return self.apply_operands(judged, &self.after_reduce, all, copies, change, threads);
        }
        let devices = self.trained.strategy.devices();
        let timeout = self.trained.strategy.extended().timeout();
        let gradients = match self.weighed(judged, &brought.mine, copies)? {
            Some(there) => summed(there, copies, |parts| sum_on_gpus(&devices, parts, timeout))?,
            None => None,
        };
        let Some(mut gradients) = gradients else {
            // Rows are added up on the host.
            let on_host = brought.on_host(&self.trained)?;
            let weighted: Vec<_> = on_host
                .iter()
                .map(|of| (judged.weight(&of.tally, on_host.len()), of.gradients.as_slice()))
                .collect();
            let all = Operands::new(&self.trained, &weighted, weighted.len())?;
            return self.apply_operands(judged, &self.after_reduce, &all, copies, change, threads);
        };
        for (replica, gradients) in gradients.iter_mut().enumerate() {
            let mine: Vec<_> = copies.iter().map(|copies| copies.as_ref()?.get(replica).copied()).collect();
            transform(&self.after_reduce, gradients, &mine)?;
        }
        self.apply_both(judged, &gradients, copies, change, || {
            self.in_place(judged, &self.after_reduce).reduce_and_apply(change, all, threads)
        })
    }

    /// For each replica the gradients that have stayed on its device, weighed by its examples; `None` where those of one have not, or of a variable
    /// that is updated on the host by now.
    fn weighed(
        &self,
        judged: &Judged,
        mine: &[Arc<Contribution>],
        copies: &Copies<'_>,
    ) -> Result<Option<Vec<Vec<Option<DeviceGradient>>>>> {
        let of = |contribution: &Arc<Contribution>| {
            let mut gradients = contribution.on_device.as_ref()?.gradients.clone();
            let updated =
                |(gradient, copies): (&Option<_>, &Option<_>)| gradient.is_none() || copies.is_some();
            if !gradients.iter().zip(copies).all(updated) {
                return None;
            }
            let weight = judged.weight(&contribution.tally, mine.len());
            Some(weigh(&mut gradients, weight).map(|()| gradients))
        };
        mine.iter().map(of).collect::<Option<Result<_>>>().transpose()
    }

    /// Reduces gradients on the host, brings those of variables on devices there, and applies all.
    fn apply_operands(
        &self,
        judged: &Judged,
        transforms: &[Transform],
        all: &Operands<'_>,
        copies: &Copies<'_>,
        change: &Change<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let mut on_host = reduce::reduced(transforms, &self.trained, all, threads)?;
        let mut there: Vec<Vec<Option<DeviceGradient>>> =
            vec![vec![None; on_host.len()]; self.trained.strategy.world().replicas()];
        for (number, (gradient, copies)) in on_host.iter_mut().zip(copies).enumerate() {
            let Some(copies) = copies else { continue };
            let Some(gradient) = gradient.take() else { continue };
            for (of_replica, copy) in there.iter_mut().zip(copies) {
                of_replica[number] = Some(DeviceGradient::new(gradient.clone(), copy)?);
            }
        }
        self.apply_both(judged, &there, copies, change, || {
            let rest: &[Option<LocalGradient>] = &on_host;
            let rest = Operands::new(&self.trained, &[(1., rest)], 1)?;
            self.in_place(judged, &[]).reduce_and_apply(change, &rest, threads)
        })
    }

    /// Applies gradients on devices, and `on_host` those that are there. What can fail for want of memory comes before anything is
    /// written.
    fn apply_both(
        &self,
        judged: &Judged,
        gradients: &[Vec<Option<DeviceGradient>>],
        copies: &Copies<'_>,
        change: &Change<'_>,
        on_host: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let rules = self.rules_of(judged);
        let on_devices = OnDevices { rules: &rules, trained: &self.trained, copies };
        let made = on_devices.make(gradients, &mut change.slots())?;
        on_host()?;
        on_devices.write(made, &mut change.slots())
    }
}
