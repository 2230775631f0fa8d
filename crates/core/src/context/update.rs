//! The copy of a variable that is being updated.

use crate::strategy::Strategy;
use distribute_base::DeviceName;
use std::sync::Arc;

/// The copy that is being updated inside the closure of [`Strategy::update`] or
/// [`Strategy::update_non_slot`]. See [`get_update_context`](crate::get_update_context).
#[derive(Clone, Debug)]
pub struct UpdateContext {
    strategy: Strategy,
    copy: usize,
    devices: Arc<[DeviceName]>,
}

impl UpdateContext {
    /// Creates the context of copy `copy`, which is on device `devices[copy]`.
    pub(crate) fn new(strategy: &Strategy, copy: usize, devices: &Arc<[DeviceName]>) -> Self {
        Self { strategy: strategy.clone(), copy, devices: devices.clone() }
    }

    /// Returns the strategy whose variable is being updated.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Returns the index of the copy. For a variable with one copy per replica, this is the replica's local
    /// id.
    pub fn copy(&self) -> usize {
        self.copy
    }

    /// Returns the device of the copy.
    pub fn device(&self) -> DeviceName {
        self.devices[self.copy]
    }

    /// Returns the devices of all copies, which are updated one after another.
    pub fn devices(&self) -> &[DeviceName] {
        &self.devices
    }
}
