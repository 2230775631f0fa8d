//! Simulates a cluster. Prints the history of one seed, or the results of many.

use clap::Parser;
use distribute_simulation::{Planted, Scenario};
use std::process::ExitCode;
use std::time::Duration;

/// Simulates a cluster. Prints the history of one seed, or the results of many.
#[derive(Debug, Parser)]
struct Asked {
    /// The scenario. By default, all scenarios are simulated.
    #[arg(long, value_enum)]
    scenario: Option<Scenario>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The number of seeds, beginning with the first. The history is only printed if there is one seed.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// A bug that is planted in the simulation.
    #[arg(long, value_enum)]
    planted: Option<Planted>,
}

fn main() -> ExitCode {
    let Asked { scenario, seed, seeds, planted } = Asked::parse();
    let scenarios = scenario.map_or(Scenario::ALL.to_vec(), |one| vec![one]);
    let mut failed = false;
    for scenario in scenarios {
        let (mut events, mut agreed, mut other, mut broken) = (0, 0, 0, 0);
        let mut lasted = Duration::ZERO;
        for seed in seed..seed + seeds {
            let report = scenario.run(seed, planted, seeds == 1);
            report.history.iter().for_each(|line| println!("{line}"));
            for what in &report.broken {
                println!("--scenario {scenario:?} --seed {seed}: {what}");
            }
            (events, agreed, other) =
                (events + report.events, agreed + report.rounds.0, other + report.rounds.1);
            lasted += report.lasted;
            broken += usize::from(!report.broken.is_empty());
        }
        println!(
            "{scenario:?}: {seeds} seeds, {:.1} h, {events} events, {agreed} rounds agreed or closures ended well, {other} did not, {broken} seeds broke a rule",
            lasted.as_secs_f64() / 3600.0,
        );
        failed |= broken > 0;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
