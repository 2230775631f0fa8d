//! Seeds that broke a rule before a bug was fixed. If the bug is among the planted ones, they find it again.

use distribute_simulation::{Planted, Scenario};
use distribute_testing::watched;

/// Checks that these seeds break no rule, unless the bug is planted again.
fn mended(scenario: Scenario, seeds: &'static [u64], bug: Option<Planted>) {
    watched(move || {
        for seed in seeds {
            let report = scenario.run(*seed, None, false);
            assert!(report.broken.is_empty(), "--scenario {scenario:?} --seed {seed}: {:?}", report.broken);
            if let Some(bug) = bug {
                let report = scenario.run(*seed, Some(bug), false);
                assert!(
                    !report.broken.is_empty(),
                    "--scenario {scenario:?} --seed {seed} does not find {bug:?}"
                );
            }
        }
    });
}

// INV-42. A worker that had taken over a state reported its old position again, when another was lost before
// all had the state. Workers that had not taken it over yet made the next update from another state, or all
// restarted.
#[test]
fn a_state_that_was_taken_over_counts_at_once() {
    mended(Scenario::TrainHandover, &[2], Some(Planted::TakenUncounted));
}

// INV-34. A worker that had received a world mistook another that left for a rendezvous for one that had
// exited successfully. It waited for links of absent workers until its deadline, and the others waited for
// it.
#[test]
fn who_leaves_to_meet_again_is_no_longer_in_the_world_that_is_made() {
    mended(Scenario::TrainHandover, &[39], Some(Planted::LeaveAsEnd));
}

// The replacement of a worker whose machine had failed gave up after 4 s. It takes up to twice the silence of
// 3 s to detect the failure if all have come by then.
#[test]
fn a_place_is_tried_for_until_the_world_has_noticed() {
    mended(Scenario::TrainSupplanted, &[824, 1149, 2384], None);
}

// INV-60. A worker received resources to make while closures waited there. It made them first. If that hung,
// a closure that had not begun was mistaken for its current task, and failed.
#[test]
fn a_closure_that_has_not_begun_is_not_late() {
    mended(Scenario::Coordinator, &[425], None);
    mended(Scenario::CoordinatorLosses, &[770, 1024, 1046], None);
}

// INV-60. A closure that a worker began before the request to return it was not cancelled with the others,
// and the worker was disconnected.
#[test]
fn a_closure_that_is_not_given_back_in_time_is_cancelled() {
    mended(Scenario::CoordinatorLosses, &[1290, 1470], None);
}

// INV-60. Among resources that a worker makes one after another, the one with the lowest number was mistaken
// for its current task.
#[test]
fn the_resource_that_hangs_is_late() {
    mended(Scenario::CoordinatorStorm, &[222, 835], None);
}

// Two resources hung. Each was tried again after the worker had been disconnected because of the other.
#[test]
fn what_has_failed_on_a_worker_that_is_given_up_is_not_tried_again() {
    mended(Scenario::Coordinator, &[3054], None);
    mended(Scenario::CoordinatorLosses, &[16831], None);
    mended(Scenario::CoordinatorStorm, &[5974, 16078], None);
}
