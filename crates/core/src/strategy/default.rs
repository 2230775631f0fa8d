//! The strategy that is current if none has been entered.

use super::{Strategy, StrategyExtended, VariablePlacement};
use distribute_base::DeviceName;
use std::sync::OnceLock;

/// The strategy that is current if none has been entered, with one replica.
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
    /// Returns the strategy that is current if none has been entered.
    pub(crate) fn of_default_context() -> &'static Strategy {
        static DEFAULT: OnceLock<Strategy> = OnceLock::new();
        DEFAULT.get_or_init(|| Strategy::unchecked(Default))
    }
}
