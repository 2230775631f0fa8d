//! Closures as callbacks, for [`Trainer::on_epoch`](super::super::Trainer::on_epoch) and
//! [`Trainer::on_step`](super::super::Trainer::on_step).

use super::super::{Epoch, Step};
use super::{Callback, CallbackContext};
use distribute_base::Result;
use std::ops::ControlFlow;

/// A callback that calls a closure after each epoch.
pub(in super::super) struct OnEpoch<F>(pub F);

impl<F: Fn(&Epoch) -> Result<ControlFlow<()>>> Callback for OnEpoch<F> {
    fn on_epoch(&self, _context: &CallbackContext<'_>, epoch: &Epoch) -> Result<ControlFlow<()>> {
        (self.0)(epoch)
    }
}

/// A callback that calls a closure after each step.
pub(in super::super) struct OnStep<F>(pub F);

impl<F: Fn(&Step) -> Result<()>> Callback for OnStep<F> {
    fn on_step(&self, _context: &CallbackContext<'_>, step: &Step) -> Result<()> {
        (self.0)(step)
    }
}
