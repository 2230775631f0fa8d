//! The default strategy, which is current if no other strategy has been entered or set.

use super::{Strategy, StrategyExtended, VariablePlacement};
use distribute_base::DeviceName;
use std::sync::OnceLock;

/// The default strategy, which has one replica.
#[derive(Debug)]
struct Default;

impl StrategyExtended for Default {
    fn kind(&self) -> &'static str {
        "the default strategy"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        const HERE: &[DeviceName] = &[DeviceName::cpu(0)];
        HERE
    }
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Ordinary
    }
}

impl Strategy {
    pub(crate) fn default_strategy() -> &'static Strategy {
        static DEFAULT: OnceLock<Strategy> = OnceLock::new();
        DEFAULT.get_or_init(|| Strategy::unchecked(Default))
    }
}
