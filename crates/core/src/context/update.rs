//! Which copy of a variable is being updated.

use crate::strategy::Strategy;
use distribute_base::DeviceName;
use std::sync::Arc;

/// Which copy is being updated, inside of the closure given to [`Strategy::update`] or
/// [`Strategy::update_non_slot`]. See [`get_update_context`](crate::get_update_context).
#[derive(Clone, Debug)]
pub struct UpdateContext {
    strategy: Strategy,
    copy: usize,
    devices: Arc<[DeviceName]>,
}

impl UpdateContext {
    /// The context of copy `copy`, which is on the device at that place in `devices`.
    pub(crate) fn new(strategy: &Strategy, copy: usize, devices: &Arc<[DeviceName]>) -> Self {
        Self { strategy: strategy.clone(), copy, devices: devices.clone() }
    }

    /// The strategy whose variable is being updated.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// The number of the copy. For a variable with a copy for each replica, that is the replica's local id.
    pub fn copy(&self) -> usize {
        self.copy
    }

    /// The device of the copy.
    pub fn device(&self) -> DeviceName {
        self.devices[self.copy]
    }

    /// The devices of all copies that are updated, one after another.
    pub fn devices(&self) -> &[DeviceName] {
        &self.devices
    }
}
