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
