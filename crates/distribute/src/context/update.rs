//! Which copy of a variable is being updated.

use crate::Strategy;
use crate::strategy::DeviceName;

/// Which copy is being updated, inside of the closure given to [`Strategy::update`] or
/// [`Strategy::update_non_slot`]. See [`get_update_context`](crate::get_update_context).
#[derive(Clone, Debug)]
pub struct UpdateContext {
    strategy: Strategy,
    copy: usize,
    device: DeviceName,
}

impl UpdateContext {
    pub(crate) fn new(strategy: &Strategy, copy: usize, device: DeviceName) -> Self {
        Self { strategy: strategy.clone(), copy, device }
    }

    /// The strategy whose variable is being updated.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Which copy: of a variable with one for each replica, that replica's local id.
    pub fn copy(&self) -> usize {
        self.copy
    }

    /// The device of the copy.
    pub fn device(&self) -> DeviceName {
        self.device
    }
}
