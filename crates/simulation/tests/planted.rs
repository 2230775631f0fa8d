//! The simulation finds bugs: each that is planted within 1,000 seeds of a scenario.

#![allow(clippy::unwrap_used, clippy::panic)]

use clap::ValueEnum;
use distribute_simulation::{Planted, Scenario};
use distribute_testing::watched;

/// Which scenario is to find it.
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
    }
}

#[test]
fn each_planted_bug_is_found_within_1_000_seeds() {
    watched(|| {
        for planted in Planted::value_variants() {
            let scenario = finds(*planted);
            let broken = |seed: &u64| !scenario.run(*seed, Some(*planted), false).broken.is_empty();
            let found = (0..1_000).find(broken);
            let Some(seed) = found else { panic!("{scenario:?} does not find {planted:?}") };
            println!("{planted:?}: --scenario {scenario:?} --seed {seed}");
        }
    });
}
