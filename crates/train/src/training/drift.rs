//! Variables that have drifted on a minority of the workers, which receive the state of another worker.

// - INV-105: `Healing` decides from values that are the same on all workers, and `Training::heal` makes the transfer of
//   a recovery without a rendezvous. A process whose variables have drifted gives its state to no other until it has
//   received one, even if the group re-forms. Tests: `training/drift.rs`, `multi_worker/heal.rs`, `recovery/healed.rs`.

use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::World;
use distribute_core::Strategy;
use distribute_log::warn_or_stderr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of workers, and of variables, that the warning names.
const NAMED: usize = 5;

/// The rule that decides whether a drift is healed, which means that workers receive the state of another worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Healing {
    /// Whether [`heal_drift`](super::TrainingBuilder::heal_drift) is set.
    pub is_enabled: bool,
    /// The step before which drift was last healed; `None` if none has been healed since the group formed.
    healed_before: Option<u64>,
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
        Self { is_enabled, healed_before: None }
    }

    /// Returns the drift that an error reports if it can be healed, and records its step. Healing must be enabled, some
    /// worker must differ in no variable, and the step must be later than that of the last drift that was healed. All
    /// workers make the same decision, because it does not depend on the number of updates, which may have drifted as
    /// well.
    pub fn accept(&mut self, error: &Error, world: World) -> Option<Healable> {
        let Some(Error::Drift { step, variables, workers, .. }) = error.drift() else { return None };
        let is_healable = self.is_enabled && (1..world.workers()).contains(&workers.len());
        if !is_healable || self.healed_before.is_some_and(|healed| *step <= healed) {
            return None;
        }
        self.healed_before = Some(*step);
        Some(Healable { step: *step, variables: variables.clone(), workers: workers.clone() })
    }

    /// Forgets the last drift, after the group has re-formed, because a replacement process has not seen it.
    pub fn forget(&mut self) {
        self.healed_before = None;
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
}

/// Returns an error if variables of this process have drifted, so that it needs the state of another worker.
pub(super) fn require_sound(unsound: &AtomicBool) -> Result<()> {
    if !unsound.load(Ordering::Relaxed) {
        return Ok(());
    }
    let reason = "variables of this worker have drifted from those of the others, and it has not received the state of \
                  another worker since: restore the last checkpoint";
    Err(Error::failed(ErrorKind::RestoreNeeded, "Training::recover", reason))
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

    /// An error of a program, for tests.
    #[derive(Debug)]
    struct OfProgram(Error);

    impl std::fmt::Display for OfProgram {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an epoch failed")
        }
    }

    impl std::error::Error for OfProgram {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    fn drift_before(step: u64, workers: &[usize]) -> Error {
        let names = vec!["w".to_owned()];
        let (workers, reason) = (workers.to_vec(), String::new());
        Error::Drift { step, variable: "w".into(), variables: names, workers, reason }
    }

    fn drift(workers: &[usize]) -> Error {
        drift_before(8, workers)
    }

    // INV-105
    #[test]
    fn drift_is_healed_if_some_worker_is_right_and_once_before_a_step() {
        let (world, enabled) = (World::new(3, 1, 1).unwrap(), Healing::new(true));
        for (error, workers) in [
            (drift(&[1]), Some(vec![1])),
            (drift(&[0, 2]), Some(vec![0, 2])),
            (drift(&[0, 1, 2]), None),
            (Error::other(drift(&[2])), Some(vec![2])),
            (Error::other(OfProgram(drift(&[2]))), Some(vec![2])),
            (Error::worker_failed(1, Error::other(OfProgram(Error::other(drift(&[2]))))), Some(vec![2])),
            (Error::other("another error"), None),
        ] {
            let accepted = enabled.clone().accept(&error, world).map(|healable| healable.workers);
            assert_eq!(accepted, workers, "{error}");
        }
        assert_eq!(Healing::new(false).accept(&drift(&[1]), world), None);
        let mut healing = enabled;
        let accepted = [7, 7, 6, 8].map(|step| healing.accept(&drift_before(step, &[1]), world).is_some());
        assert_eq!(accepted, [true, false, false, true]);
        // A replacement accepts it.
        healing.forget();
        assert!(healing.accept(&drift_before(8, &[1]), world).is_some());
    }
}
