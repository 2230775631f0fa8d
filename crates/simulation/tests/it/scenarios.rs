//! Checks that 200 seeds of each scenario break no rule, or 3 seeds if a scenario has 64 workers.
//! `distribute-simulation --seeds` runs more.

use distribute_simulation::Scenario;
use distribute_testing::watched;

/// Runs `seeds` seeds, none of which may break a rule. Checks that the seeds test something: more rounds, updates or
/// closures must succeed than there are seeds, and some must fail if and only if `disturbed` is `true`.
fn seeds(scenario: Scenario, seeds: u64, disturbed: bool) {
    watched(move || {
        let (mut agreed, mut other) = (0, 0);
        for seed in 0..seeds {
            let report = scenario.run(seed, None, false);
            assert!(report.broken.is_empty(), "--scenario {scenario:?} --seed {seed}: {:?}", report.broken);
            (agreed, other) = (agreed + report.rounds.0, other + report.rounds.1);
        }
        println!("{scenario:?}: all agreed in {agreed} rounds, and not in {other}");
        assert!(agreed as u64 > seeds && (other > 0) == disturbed, "{agreed}, {other}");
    });
}

macro_rules! scenarios {
    ($($name:ident: $scenario:ident, $seeds:expr, $disturbed:expr;)*) => {
        $(#[test] fn $name() { seeds(Scenario::$scenario, $seeds, $disturbed) })*

        #[test]
        fn no_scenario_is_omitted() {
            assert_eq!([$(Scenario::$scenario),*], Scenario::ALL);
        }
    };
}

// INV-2, INV-25, INV-31, INV-34, INV-42, INV-43, INV-60, INV-61, INV-87, INV-100, INV-102, INV-110, INV-113
scenarios! {
    any_order_of_starts: Starts, 200, false;
    a_worker_that_is_started_twice: Twins, 200, false;
    faults_while_the_world_is_made: Joining, 200, true;
    different_calls: Calls, 200, true;
    declines: Declines, 200, true;
    delays_near_the_deadline: Delays, 200, true;
    a_pause_beyond_the_deadline: Pause, 200, true;
    a_stop: Stop, 200, true;
    a_crash_in_a_call: CrashInCall, 200, true;
    a_crash_between_calls: CrashBetween, 200, true;
    a_partition: Partition, 200, true;
    a_link_that_breaks: Break, 200, true;
    processes_of_an_earlier_generation: Revenants, 200, true;
    all_of_it: Storm, 200, true;
    a_crowd: Crowd, 3, true;
    trainings_whose_workers_are_killed: TrainKilled, 200, true;
    a_handover_that_is_disturbed: TrainHandover, 200, true;
    steps_of_several_updates: TrainHalves, 200, true;
    trainings_whose_workers_are_out_of_reach: TrainParted, 200, true;
    workers_that_come_back_when_they_have_been_replaced: TrainSupplanted, 200, true;
    all_of_it_while_they_train: TrainStorm, 200, true;
    a_crowd_that_trains: TrainCrowd, 3, true;
    workers_that_come_late: ElasticStarts, 200, false;
    worlds_that_shrink_and_grow: ElasticKilled, 200, true;
    a_leader_that_begins_anew: ElasticLeader, 200, true;
    all_of_it_in_worlds_that_shrink_and_grow: ElasticStorm, 200, true;
    closures_that_fail: Coordinator, 200, true;
    workers_that_are_lost_to_a_coordinator: CoordinatorLosses, 200, true;
    coordinators_that_are_replaced: CoordinatorStorm, 200, true;
    spares_that_take_places: SparesKilled, 200, true;
    all_of_it_with_spares: SparesStorm, 200, true;
    rows_that_are_cached_and_prefetched: Rows, 200, false;
    rows_that_are_lost: RowsLost, 200, true;
    slow_workers_that_are_replaced: SparesSlow, 200, true;
}

#[test]
fn a_seed_determines_everything() {
    for scenario in [Scenario::Storm, Scenario::Joining, Scenario::TrainStorm, Scenario::CoordinatorStorm] {
        for seed in 0..20 {
            let [first, second] = [0, 1].map(|_| scenario.run(seed, None, true).history);
            assert!(first.len() > 10 && first == second, "{scenario:?} {seed}");
        }
    }
}
