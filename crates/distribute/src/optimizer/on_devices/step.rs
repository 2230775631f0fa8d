//! A step of which some variables are updated on devices, and the others, such as tables there is no room for, on the host.

use super::{Copies, DeviceGradient, OnDevices, transform, weigh};
use crate::Result;
use crate::deposit::LocalGradient;
use crate::optimizer::Optimizer;
use crate::optimizer::brought::Brought;
use crate::optimizer::judge::Judged;
use crate::optimizer::operands::Operands;
use crate::optimizer::progress::Change;
use crate::optimizer::reduction;
use crate::optimizer::threads::Threads;
use crate::optimizer::transform::Transform;
use distribute_optim::Rule;

impl<R: Rule> Optimizer<R> {
    /// Reduces and applies what replicas have brought: what has stayed on a device, there.
    pub(in crate::optimizer) fn apply_brought(
        &self,
        judged: &Judged,
        brought: &Brought,
        all: &Operands<'_>,
        copies: &Copies<'_>,
        change: &Change<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let [only] = brought.mine.as_slice() else {
            return self.apply_operands(judged, &self.after_reduce, all, copies, change, threads);
        };
        let Some(on_device) = &only.on_device else {
            return self.apply_operands(judged, &self.after_reduce, all, copies, change, threads);
        };
        let mine: Vec<_> = copies.iter().map(|copies| copies.as_ref()?.first().copied()).collect();
        let mut gradients = on_device.gradients.clone();
        weigh(&mut gradients, judged.weight(&only.tally, 1))?;
        transform(&self.after_reduce, &mut gradients, &mine)?;
        self.apply_both(judged, &[gradients], copies, change, || {
            self.in_place(judged, &self.after_reduce).reduce_and_apply(change, all, threads)
        })
    }

    /// Reduces gradients on the host, brings those of variables on devices there, and applies all.
    pub(in crate::optimizer) fn apply_operands(
        &self,
        judged: &Judged,
        transforms: &[Transform],
        all: &Operands<'_>,
        copies: &Copies<'_>,
        change: &Change<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let mut on_host = reduction::reduced(transforms, &self.trained, all, threads)?;
        let mut there: Vec<Vec<Option<DeviceGradient>>> =
            vec![vec![None; on_host.len()]; self.trained.strategy.world().replicas()];
        for (number, (gradient, copies)) in on_host.iter_mut().zip(copies).enumerate() {
            let (Some(copies), true) = (copies, gradient.is_some()) else { continue };
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
