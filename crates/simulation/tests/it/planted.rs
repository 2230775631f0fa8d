//! Checks that the simulation detects each planted bug within 1,000 seeds of a scenario.

use clap::ValueEnum;
use distribute_simulation::{Planted, Scenario};
use distribute_testing::watched;

/// Returns the scenario that detects a bug.
fn finds(planted: Planted) -> Scenario {
    match planted {
        Planted::SessionFence => Scenario::Storm,
        Planted::RoundFence => Scenario::Declines,
        Planted::NoDeadline => Scenario::Pause,
        Planted::VerdictUnsaid => Scenario::Pause,
        Planted::EarlyDropped => Scenario::Calls,
        Planted::DigestIgnored => Scenario::Calls,
        Planted::GenerationIgnored => Scenario::Revenants,
        Planted::TakenIgnored => Scenario::Twins,
        Planted::LossIgnored => Scenario::CrashInCall,
        Planted::NoGrace => Scenario::Delays,
        Planted::LateForgotten => Scenario::Pause,
        Planted::DeclineUnsaid => Scenario::Declines,
        Planted::LeaveUnheard => Scenario::Declines,
        Planted::LossFirst => Scenario::Declines,
        Planted::TableEarly => Scenario::Starts,
        Planted::MaximumIgnored => Scenario::TrainKilled,
        Planted::ClaimKept => Scenario::TrainHandover,
        Planted::LossGivesUp => Scenario::TrainHandover,
        Planted::TakenGivesUp => Scenario::TrainSupplanted,
        Planted::EarlyUnsaid => Scenario::TrainKilled,
        Planted::LeaveAsEnd => Scenario::TrainHandover,
        Planted::SessionKept => Scenario::TrainKilled,
        Planted::FurthestIgnored => Scenario::TrainKilled,
        Planted::TakenUncounted => Scenario::TrainHandover,
        Planted::TornIgnored => Scenario::TrainHalves,
        Planted::RewindForgotten => Scenario::TrainKilled,
        Planted::LeastIgnored => Scenario::ElasticStarts,
        Planted::MostIgnored => Scenario::SparesKilled,
        Planted::SparesCounted => Scenario::SparesKilled,
        Planted::ReplacedKept => Scenario::SparesSlow,
        Planted::ProposalUnheard => Scenario::SparesSlow,
        Planted::TableOfAll => Scenario::ElasticStarts,
        Planted::DealtAsBefore => Scenario::ElasticStarts,
        Planted::WaitingIgnored => Scenario::ElasticStarts,
        Planted::SupplantedKept => Scenario::ElasticLeader,
        Planted::LostHeard => Scenario::CoordinatorLosses,
        Planted::LossUntold => Scenario::CoordinatorLosses,
        Planted::RunningReturned => Scenario::Coordinator,
        Planted::AttemptMoves => Scenario::Coordinator,
        Planted::PositionForgotten => Scenario::CoordinatorLosses,
        Planted::ResourceKept => Scenario::CoordinatorLosses,
        Planted::VariablesTwice => Scenario::Coordinator,
        Planted::OutcomeTwice => Scenario::Coordinator,
        Planted::FloorHigh => Scenario::Coordinator,
        Planted::WindowExceeded => Scenario::Coordinator,
        Planted::QueueUnbounded => Scenario::Coordinator,
        Planted::CancelUnsent => Scenario::Coordinator,
        Planted::NoLedger => Scenario::CoordinatorLosses,
        Planted::AnySession => Scenario::CoordinatorStorm,
        Planted::TwoAtOnce => Scenario::Coordinator,
        Planted::SessionLives => Scenario::CoordinatorLosses,
        Planted::OldJob => Scenario::CoordinatorStorm,
        Planted::AgeForgotten => Scenario::Rows,
        Planted::WriteUnseen => Scenario::Rows,
        Planted::PrefetchEarly => Scenario::Rows,
        Planted::PrefetchKept => Scenario::Rows,
        Planted::HotUnpatched => Scenario::Rows,
        Planted::HotEarly => Scenario::Rows,
        Planted::HotUnread => Scenario::Rows,
        Planted::HotKept => Scenario::Rows,
    }
}

#[test]
fn each_planted_bug_is_found_within_1_000_seeds() {
    watched(|| {
        let mut missed = Vec::new();
        for planted in Planted::value_variants() {
            let scenario = finds(*planted);
            let broken = |seed: &u64| !scenario.run(*seed, Some(*planted), false).broken.is_empty();
            let found = (0..1_000).find(broken);
            let Some(seed) = found else {
                missed.push(format!("{planted:?} by {scenario:?}"));
                continue;
            };
            // The cause is the bug, and not anything else.
            assert_eq!(scenario.run(seed, None, false).broken, Vec::<String>::new(), "{scenario:?} {seed}");
            println!("{planted:?}: --scenario {scenario:?} --seed {seed}");
        }
        assert!(missed.is_empty(), "not found within 1,000 seeds: {missed:?}");
    });
}
