//! Seeds that broke a rule before a bug was fixed. If this bug is one of the planted ones, each seed must still find
//! it.

use distribute_simulation::{Planted, Scenario};
use distribute_testing::watched;

/// Checks that none of the seeds breaks a rule, and that each does if the bug is planted.
fn assert_fixed(scenario: Scenario, seeds: &'static [u64], bug: Option<Planted>) {
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
    assert_fixed(Scenario::TrainHandover, &[2], Some(Planted::TakenUncounted));
}

// INV-34. A worker that had received a world mistook another that left for a rendezvous for one that had
// exited successfully. It waited for links of absent workers until its deadline, and the others waited for
// it.
#[test]
fn a_worker_that_leaves_for_the_next_rendezvous_is_not_in_the_current_world() {
    assert_fixed(Scenario::TrainHandover, &[40, 76], Some(Planted::LeaveAsEnd));
}

// The replacement of a worker whose machine had failed gave up after 4 s. It takes up to twice the silence of
// 3 s to detect the failure if all have come by then.
#[test]
fn a_rank_is_retried_until_the_world_has_detected_the_loss() {
    assert_fixed(Scenario::TrainSupplanted, &[824, 1149, 2384], None);
}

// INV-60. A worker received resources to make while closures waited there. It made them first. If that hung,
// a closure that had not begun was mistaken for its current task, and failed.
#[test]
fn a_closure_that_has_not_started_does_not_time_out() {
    assert_fixed(Scenario::Coordinator, &[425], None);
    assert_fixed(Scenario::CoordinatorLosses, &[770, 1024, 1046], None);
}

// INV-60. A closure that a worker began before the request to return it was not cancelled with the others,
// and the worker was disconnected.
#[test]
fn a_closure_that_is_not_given_back_in_time_is_cancelled() {
    assert_fixed(Scenario::CoordinatorLosses, &[1290, 1470], None);
}

// INV-60. Among resources that a worker makes one after another, the one with the lowest number was mistaken
// for its current task.
#[test]
fn a_resource_that_hangs_times_out() {
    assert_fixed(Scenario::CoordinatorStorm, &[222, 835], None);
}

// Two resources hung. Each was tried again after the worker had been disconnected because of the other.
#[test]
fn a_failed_closure_of_an_abandoned_worker_is_not_retried() {
    assert_fixed(Scenario::Coordinator, &[3054], None);
    assert_fixed(Scenario::CoordinatorLosses, &[16831], None);
    assert_fixed(Scenario::CoordinatorStorm, &[5974, 16078], None);
}

// INV-111. Two of three processes were restarted, and began a world before they had asked the third one, which was busy
// and had the state.
#[test]
fn a_leader_that_has_just_started_asks_all_others_before_it_begins() {
    assert_fixed(Scenario::Elected, &[131], None);
}

// INV-111. Followers of one leader left it for another in turns, although both had too few because a worker was busy.
#[test]
fn followers_do_not_change_the_leader_again_and_again() {
    assert_fixed(Scenario::ElectedApart, &[70], None);
}

// INV-111. A worker that reached only the leader was in each world with one of the two that it could not link to.
#[test]
fn a_worker_that_cannot_link_to_most_others_is_left_out() {
    assert_fixed(Scenario::ElectedApart, &[72, 252], Some(Planted::UnreachedForgotten));
}
