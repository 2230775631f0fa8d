//! Variables that have drifted on a minority of the workers, which receive the state of another worker.

// - INV-105: `Healing` decides, and `Training::heal` makes the transfer of a recovery without a rendezvous. Tests:
//   `training/drift.rs`, `multi_worker/heal.rs`.

use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_core::Strategy;
use distribute_log::warn_or_stderr;

/// The most workers and variables that the warning names.
const NAMED: usize = 5;

/// The rule that decides after which drift workers receive the state of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Healing {
    /// Whether the program has asked for it.
    pub is_enabled: bool,
    /// The number of updates when drift was last healed; `None` if it never was.
    healed_at: Option<u64>,
}

/// A drift that can be healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Healable {
    pub step: u64,
    pub variables: Vec<String>,
    /// The workers that receive the state of another one.
    pub workers: Vec<usize>,
}

impl Healing {
    /// Creates the rule. If `is_enabled` is `false`, no drift is healed.
    pub fn new(is_enabled: bool) -> Self {
        Self { is_enabled, healed_at: None }
    }

    /// Returns the drift that an error reports, if it can be healed: the program has asked for it, some worker differs
    /// in no variable, and an update was made since drift was last healed. `updates` is the number of updates, which is
    /// recorded.
    pub fn accept(&mut self, error: &Error, world: World, updates: u64) -> Option<Healable> {
        let Some(Error::Drift { step, variables, workers, .. }) = error.drift() else { return None };
        let is_healable = self.is_enabled && (1..world.workers()).contains(&workers.len());
        if !is_healable || self.healed_at.replace(updates) == Some(updates) {
            return None;
        }
        Some(Healable { step: *step, variables: variables.clone(), workers: workers.clone() })
    }
}

impl Healable {
    /// Logs which variables have drifted on which workers.
    pub fn warn(&self, strategy: &Strategy) {
        let Self { step, variables, workers } = self;
        warn_or_stderr(|| {
            let workers: Vec<_> = workers.iter().map(|worker| strategy.describe_worker(*worker)).collect();
            tracing::warn!(
                "before step {step}, {} on {} differ from those of the majority: the training continues with the state of \
                 another worker there. Suspect the memory or the processor of that machine",
                listed(variables),
                listed(&workers),
            );
        });
    }

    /// Returns an error if this worker's variables have drifted, so that its state is not that of others.
    pub fn require_sound(&self, worker: usize) -> Result<()> {
        if self.workers.contains(&worker) {
            return Err(Error::other("its variables have drifted from those of the others"));
        }
        Ok(())
    }
}

fn listed(names: &[String]) -> String {
    match names.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..NAMED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(workers: &[usize]) -> Error {
        let names = vec!["w".to_owned()];
        let (workers, reason) = (workers.to_vec(), String::new());
        Error::Drift { step: 8, variable: "w".into(), variables: names, workers, reason }
    }

    // INV-105
    #[test]
    fn drift_is_healed_if_some_worker_is_right_and_once_between_updates() {
        let (world, enabled) = (World::new(3, 1, 1).unwrap(), Healing::new(true));
        for (error, workers) in [
            (drift(&[1]), Some(vec![1])),
            (drift(&[0, 2]), Some(vec![0, 2])),
            (drift(&[0, 1, 2]), None),
            (Error::other(drift(&[2])), Some(vec![2])),
            (Error::other("another error"), None),
        ] {
            let accepted = enabled.clone().accept(&error, world, 7).map(|healable| healable.workers);
            assert_eq!(accepted, workers, "{error}");
        }
        assert_eq!(Healing::new(false).accept(&drift(&[1]), world, 7), None);
        let mut healing = enabled;
        let accepted = [7, 7, 8].map(|updates| healing.accept(&drift(&[1]), world, updates).is_some());
        assert_eq!(accepted, [true, false, true]);
    }
}
