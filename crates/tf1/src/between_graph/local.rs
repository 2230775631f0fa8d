//! Training without a cluster, with variables in this process.

use super::KIND;
use distribute_base::DeviceName;
use distribute_core::{CommunicationOptions, IndependentWorker, StrategyExtended, VariablePlacement};

/// The implementation of a strategy for a process that trains alone.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) devices: Vec<DeviceName>,
    pub(super) options: CommunicationOptions,
}

impl StrategyExtended for Local {
    fn kind(&self) -> &'static str {
        KIND
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    // PSV1-5
    fn variable_placement(&self) -> VariablePlacement {
        match self.devices.len() {
            0 | 1 => VariablePlacement::Ordinary,
            _ => VariablePlacement::Central(DeviceName::cpu(0)),
        }
    }
    fn communication_options(&self) -> CommunicationOptions {
        self.options
    }
    fn independent(&self) -> Option<IndependentWorker> {
        Some(IndependentWorker { workers: 1, worker: 0 })
    }
}
