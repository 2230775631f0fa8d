//! Seeds that broke a rule before a bug was mended that they had found. Where the bug is among those that are planted, it is found
//! again.

use distribute_simulation::{Planted, Scenario};
use distribute_testing::watched;

/// Nothing breaks a rule with these seeds, unless the bug is planted again.
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

// INV-42. A worker that had taken over a state said again where it had stood before, when another was lost before all had it: those
// that had not taken it over yet made the update behind it from another state, or all began anew.
#[test]
fn a_state_that_was_taken_over_counts_at_once() {
    mended(Scenario::TrainHandover, &[2], Some(Planted::TakenUncounted));
}

// INV-34. Who had been told of a world took another that left it, to meet all others again, for one that had ended well, and waited
// for links of those who were gone until its deadline; the others waited for it.
#[test]
fn who_leaves_to_meet_again_is_no_longer_in_the_world_that_is_made() {
    mended(Scenario::TrainHandover, &[39], Some(Planted::LeaveAsEnd));
}

// A worker in the place of one whose machine was gone gave up after 4 s. It takes up to twice the silence of 3 s to notice that where
// all have come meanwhile.
#[test]
fn a_place_is_tried_for_until_the_world_has_noticed() {
    mended(Scenario::TrainSupplanted, &[824, 1149, 2384], None);
}

// INV-60. A worker was given resources to make while closures waited there. It made them first, and where that didn't end, a closure
// that had not begun was taken for what it was busy with, and failed.
#[test]
fn a_closure_that_has_not_begun_is_not_late() {
    mended(Scenario::Coordinator, &[425], None);
    mended(Scenario::CoordinatorLosses, &[770, 1024, 1046], None);
}

// INV-60. A closure that a worker began before it was asked to give it back was not cancelled with the others, and the worker was
// given up.
#[test]
fn a_closure_that_is_not_given_back_in_time_is_cancelled() {
    mended(Scenario::CoordinatorLosses, &[1290, 1470], None);
}

// INV-60. Of resources that a worker makes one after the other, that with the lowest number was taken for what it was busy with.
#[test]
fn the_resource_that_hangs_is_late() {
    mended(Scenario::CoordinatorStorm, &[222, 835], None);
}

// Of two resources that never were made, each was tried again when the worker had been given up for the other.
#[test]
fn what_has_failed_on_a_worker_that_is_given_up_is_not_tried_again() {
    mended(Scenario::Coordinator, &[3054], None);
    mended(Scenario::CoordinatorLosses, &[16831], None);
    mended(Scenario::CoordinatorStorm, &[5974, 16078], None);
}
