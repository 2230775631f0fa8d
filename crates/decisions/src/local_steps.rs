//! Steps that each worker trains alone: their settings, and the differences between workers.

use distribute_base::{Error, ErrorKind};
use distribute_cluster::{ReplicaCount, World};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The number of steps that each worker trains alone, and the outer step that follows, in which the workers agree on
/// new weights.
///
/// Set it with
/// [`local_steps`](https://docs.rs/distribute/latest/distribute/strategy/struct.MultiWorkerMirroredStrategyBuilder.html#method.local_steps).
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::strategy::{LocalSteps, Outer};
/// let diloco = LocalSteps { steps: 30, outer: Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 } };
/// assert_eq!(diloco.outer, "nesterov".parse().unwrap());
/// assert!(LocalSteps { steps: 1, outer: Outer::Average }.is_lock_step());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalSteps {
    /// The number of steps of an optimizer from one outer step to the next, at least 1.
    pub steps: u64,
    /// The way in which the outer step computes the new weights.
    pub outer: Outer,
}

/// The way in which workers agree on new weights after their local steps.
#[doc(alias = "DiLoCo")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Outer {
    /// The new weights are the mean of the workers' weights. If what workers send is compressed, they are the weights
    /// before the local steps, changed by the mean of what the workers have sent.
    #[default]
    #[doc(alias = "FedAvg")]
    Average,
    /// DiLoCo: the weights before the local steps are updated by SGD with Nesterov momentum. The gradient is the mean,
    /// over the workers, of the weights before the local steps minus the weights after them.
    Nesterov {
        /// The learning rate; 0.7 is usual.
        learning_rate: f64,
        /// The momentum, in [0, 1); 0.9 is usual.
        momentum: f64,
    },
}

impl LocalSteps {
    /// Returns `true` for one step followed by an average. This is training in lock step: gradients are reduced over
    /// all workers in each step, as without this setting.
    pub fn is_lock_step(&self) -> bool {
        *self == Self { steps: 1, outer: Outer::Average }
    }

    /// Returns how a step of the strategy involves the other workers. `since` is the largest number of local steps that
    /// one of the optimizers has made since its last outer step. `has_begun` is `true` if the workers have begun a step
    /// together since the last outer step of any optimizer.
    ///
    /// All workers decide alike if all have made the same steps. A worker on which a step has failed makes one step
    /// more alone, and begins a step together with the others when the outer step is due on all.
    // INV-112
    pub fn meeting(&self, since: u64, has_begun: bool) -> Meeting {
        if since + 1 >= self.steps {
            Meeting::Complete
        } else if !has_begun {
            Meeting::Beginning
        } else {
            Meeting::Alone
        }
    }

    /// Returns the reason why local steps are not possible with these numbers or in this strategy; `None` if they are.
    /// `world` is the world of the strategy's group, if it has one.
    pub fn contradiction(&self, world: Option<World>, is_elastic: bool, has_servers: bool) -> Option<String> {
        let Self { steps, outer } = self;
        let fits = match outer {
            Outer::Average => true,
            Outer::Nesterov { learning_rate, momentum } => {
                learning_rate.is_finite() && *learning_rate > 0. && (0. ..1.).contains(momentum)
            }
        };
        if *steps == 0 {
            Some("local_steps of 0 steps: use at least 1, which with Outer::Average is lock step".into())
        } else if !fits {
            Some(format!(
                "local_steps with {outer:?}: the learning rate must be positive and finite, and the momentum in [0, 1)"
            ))
        } else if has_servers {
            Some(
                "local_steps, but stores tables on workers or parameter servers, which all workers change in each step: \
                 leave out tables or local_steps"
                    .into(),
            )
        } else if is_elastic {
            Some(
                "local_steps, but workers may leave and join: the mean would be over other workers than those that have \
                 trained; leave out min_workers, spares and their environment variables, or local_steps"
                    .into(),
            )
        } else if world.is_some_and(|world| matches!(world.count(), ReplicaCount::Total(_))) {
            Some(
                "local_steps, so the result depends on which worker trains with which rows, but logical_replicas promise \
                 that it does not: use replicas, or leave out local_steps"
                    .into(),
            )
        } else {
            None
        }
    }
}

/// The part of a step in which all workers wait for each other, apart from the calls that the program makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The workers begin and end the step together: every step in lock step, and those that make an outer step.
    Complete,
    /// The workers begin the step together, compare their variables, and end it alone: the first step after an outer
    /// step.
    Beginning,
    /// This worker makes the step alone.
    Alone,
}

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outer::Average => f.write_str("average"),
            Outer::Nesterov { .. } => f.write_str("nesterov"),
        }
    }
}

/// Parses `average`, and `nesterov` with the learning rate 0.7 and the momentum 0.9.
impl FromStr for Outer {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "average" => Ok(Outer::Average),
            "nesterov" => Ok(Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 }),
            _ => Err(format!("{name:?} is not an outer step: use average or nesterov")),
        }
    }
}

/// The progress of a worker's local steps when a step begins. It must be equal on all workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alone {
    /// The settings of the strategy.
    pub settings: LocalSteps,
    /// The number of local steps since the workers last agreed, of all optimizers together.
    pub since: u64,
    /// The number of outer steps since optimizers were restored, of all optimizers together, including dropped ones.
    pub outer: u64,
    /// The number of local steps of optimizers that were dropped before their outer step.
    pub abandoned: u64,
}

impl Alone {
    /// Returns an error if the workers currently have different weights, for an operation that needs equal weights.
    pub fn own_weights(&self, operation: &'static str) -> Option<Error> {
        let Self { settings: LocalSteps { steps, .. }, since, abandoned, .. } = *self;
        if abandoned > 0 {
            return Some(error_of_abandoned(operation, abandoned));
        }
        let reason = format!(
            "each worker has trained alone for {since} steps since the last outer step, so there is no state of all \
             workers: do this after an outer step (every {steps} steps of an optimizer), or call \
             optimizer.finish_local_steps() on all workers before"
        );
        (since > 0).then(|| Error::failed(ErrorKind::Usage, operation, reason))
    }
}

/// Returns an error if the workers have different settings, or different numbers of local or outer steps, or different
/// weights because an optimizer was dropped between outer steps. Otherwise returns `None`. `all` contains the state of
/// each worker, in the order of ranks.
pub fn alone_differently(operation: &'static str, all: &[Option<Alone>]) -> Option<Error> {
    let first = all.first()?;
    let settings = |alone: &Option<Alone>| alone.map(|alone| alone.settings);
    if let Some(worker) = all.iter().position(|alone| settings(alone) != settings(first)) {
        let describe = |alone: &Option<Alone>| match settings(alone) {
            Some(settings) => format!("{settings:?}"),
            None => "none".to_owned(),
        };
        let reason = format!(
            "worker {worker} has other local_steps than worker 0 ({}, and {}): set the same on all workers",
            describe(&all[worker]),
            describe(first)
        );
        return Some(Error::failed(ErrorKind::Disagreement, operation, reason));
    }
    let of = |number: fn(&Alone) -> u64| all.iter().flatten().map(number).collect::<Vec<_>>();
    if let Some(steps) = of(|alone| alone.abandoned).into_iter().find(|steps| *steps > 0) {
        return Some(error_of_abandoned(operation, steps));
    }
    different_counts(operation, "local steps since the last outer step", &of(|alone| alone.since)).or_else(
        || different_counts(operation, "outer steps since the last restore", &of(|alone| alone.outer)),
    )
}

/// Returns an error if the workers have made different numbers of steps, and `None` otherwise. `counts` contains the
/// number of each worker, in the order of ranks, and `steps` is the name of the steps in the message.
pub fn different_counts(operation: &'static str, steps: &str, counts: &[u64]) -> Option<Error> {
    if counts.iter().all(|count| Some(count) == counts.first()) {
        return None;
    }
    let counts: Vec<_> = counts.iter().map(u64::to_string).collect();
    let reason = format!(
        "the workers have made different numbers of {steps} ({}, by worker), because a step has failed on some of \
         them: restore the last checkpoint on all workers",
        counts.join(", ")
    );
    Some(Error::failed(ErrorKind::Disagreement, operation, reason))
}

/// Returns the error of a call after an optimizer was dropped between two outer steps.
fn error_of_abandoned(operation: &'static str, steps: u64) -> Error {
    let reason = format!(
        "an optimizer was dropped {steps} steps after its last outer step, so each worker has other weights: call \
         finish_local_steps() on all workers before it is dropped, or restore all variables that it trained"
    );
    Error::failed(ErrorKind::Usage, operation, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DILOCO: Outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };

    #[test]
    fn one_step_and_an_average_are_lock_step() {
        assert!(LocalSteps { steps: 1, outer: Outer::Average }.is_lock_step());
        for (steps, outer) in [(1, DILOCO), (2, Outer::Average), (0, Outer::Average)] {
            assert!(!LocalSteps { steps, outer }.is_lock_step());
        }
    }

    // INV-112
    #[test]
    fn workers_meet_after_an_outer_step_and_for_the_next() {
        let meetings = |steps| {
            let local = LocalSteps { steps, outer: DILOCO };
            (0..=steps).map(|since| local.meeting(since, since > 0)).collect::<Vec<_>>()
        };
        use Meeting::{Alone, Beginning, Complete};
        assert_eq!(meetings(1), [Complete; 2]);
        assert_eq!(meetings(2), [Beginning, Complete, Complete]);
        assert_eq!(meetings(5), [Beginning, Alone, Alone, Alone, Complete, Complete]);
        let local = LocalSteps { steps: 3, outer: DILOCO };
        // The first local step has failed on this worker, or another optimizer has made an outer step.
        assert_eq!((local.meeting(0, true), local.meeting(1, false)), (Alone, Beginning));
    }

    #[test]
    fn names_are_parsed() {
        for outer in [Outer::Average, DILOCO] {
            assert_eq!(outer.to_string().parse(), Ok(outer));
        }
        assert!("nesterow".parse::<Outer>().unwrap_err().contains("average or nesterov"));
    }

    #[test]
    fn what_does_not_combine_is_named() {
        let good = LocalSteps { steps: 3, outer: DILOCO };
        let two = World::new(2, 0, 1).ok();
        assert_eq!(good.contradiction(two, false, false), None);
        assert_eq!(good.contradiction(None, false, false), None);
        let with = |learning_rate, momentum| LocalSteps {
            outer: Outer::Nesterov { learning_rate, momentum },
            ..good
        };
        for (of, world, elastic, servers, text) in [
            (LocalSteps { steps: 0, ..good }, two, false, false, "at least 1"),
            (with(0., 0.9), two, false, false, "must be positive"),
            (with(f64::NAN, 0.9), two, false, false, "must be positive"),
            (with(0.7, 1.), two, false, false, "in [0, 1)"),
            (good, two, true, false, "min_workers"),
            (good, two, false, true, "tables"),
            (good, World::logical(2, 0, 5).ok(), false, false, "logical_replicas"),
        ] {
            let found = of.contradiction(world, elastic, servers).unwrap();
            assert!(found.contains(text), "{text:?} is not in {found:?}");
        }
    }

    #[test]
    fn differences_between_workers_are_told() {
        let settings = LocalSteps { steps: 3, outer: DILOCO };
        let of = |since, outer, abandoned| Some(Alone { settings, since, outer, abandoned });
        let at = |since| of(since, 7, 0);
        assert!(alone_differently("run", &[at(2), at(2), at(2)]).is_none());
        assert!(alone_differently("run", &[None, None]).is_none());
        let text = |all: &[Option<Alone>]| alone_differently("run", all).unwrap().to_string();
        let local = text(&[at(2), at(2), at(1)]);
        assert!(local.contains("local steps since the last outer step (2, 2, 1, by worker)"), "{local}");
        // With outer steps after each step, their number is all that differs.
        let outer = text(&[of(0, 3, 0), of(0, 2, 0)]);
        assert!(
            outer.contains("different numbers of outer steps since the last restore (3, 2, by worker)"),
            "{outer}"
        );
        let dropped = text(&[of(0, 3, 2), of(0, 3, 2)]);
        assert!(dropped.contains("was dropped 2 steps after its last outer step"), "{dropped}");
        assert!(text(&[at(2), None]).contains("worker 1 has other local_steps than worker 0 (none, and "));
    }
}
