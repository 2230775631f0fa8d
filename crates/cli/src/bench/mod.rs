//! `distribute bench`: figures of this machine, beside what is to be reached and what peers reached.
//!
//! | module | what it is |
//! |---|---|
//! | [`figure`] | [`Figure`](figure): what is measured, and what it is compared with |
//! | [`statistics`] | median and spread |
//! | [`report`] | table, plain lines, JSON |
//! | [`steps`] | steps without a measurement, for those who count instructions |
//! | [`empty_step`], [`all_reduce`], [`traffic`], [`mlp`] | the figures, one kind a file |

mod all_reduce;
mod empty_step;
mod figure;
mod mlp;
mod report;
mod statistics;
mod steps;
mod traffic;

use crate::output;
use distribute::{Error, Result};
use figure::{Effort, Figure};
use report::Report;
use statistics::Summary;
pub use traffic::memory_bandwidth;

/// The options of `distribute bench`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Measure only figures whose name contains this
    #[arg(long)]
    filter: Option<String>,
    /// How often to measure each figure; the median is given
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Short rounds: to see that it works, not to compare
    #[arg(long)]
    quick: bool,
    /// How long a round measures each figure, in seconds: short rounds have a least value that is undisturbed also on a
    /// busy machine
    #[arg(long)]
    seconds: Option<f64>,
    /// One line of JSON for each figure
    #[arg(long)]
    json: bool,
    /// Name the figures and what they measure, and measure nothing
    #[arg(long)]
    list: bool,
    /// Make so many steps of what --filter names, and measure and print nothing: to count their instructions
    #[arg(long)]
    steps: Option<u64>,
}

/// All figures, in the order in which they are printed.
fn figures() -> Vec<Box<dyn Figure>> {
    let mut all: Vec<Box<dyn Figure>> = Vec::new();
    all.extend(empty_step::figures());
    all.extend(all_reduce::figures());
    all.extend(traffic::figures());
    all.extend(mlp::figures());
    all
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(steps) = arguments.steps {
        return steps::run(arguments.filter.as_deref().unwrap_or_default(), steps);
    }
    let wanted = |figure: &dyn Figure| {
        arguments.filter.as_ref().is_none_or(|filter| figure.about().name.contains(filter))
    };
    let figures: Vec<_> = figures().into_iter().filter(|figure| wanted(&**figure)).collect();
    if figures.is_empty() {
        let filter = arguments.filter.clone().unwrap_or_default();
        return Err(invalid(format!(
            "no figure's name contains {filter:?}; `distribute bench --list` names all"
        )));
    }
    if arguments.rounds == 0 {
        return Err(invalid("--rounds must be 1 or more".into()));
    }
    if arguments.list {
        return figures.iter().try_for_each(|figure| {
            let about = figure.about();
            output::line(format!("{:<26} {}", about.name, about.measures))
        });
    }
    let table = output::is_terminal() && !arguments.json;
    if table {
        output::line(Report::heads())?;
    }
    let effort = Effort { seconds: arguments.seconds.unwrap_or(if arguments.quick { 0.02 } else { 0.3 }) };
    for figure in figures {
        let report = measure(&*figure, effort, arguments.rounds)?;
        output::line(match (arguments.json, table) {
            (true, _) => report.json(),
            (false, true) => report.row(),
            (false, false) => report.plain(),
        })?;
    }
    Ok(())
}

/// A first round that doesn't count: caches, pages and the team's threads come with it.
fn measure(figure: &dyn Figure, effort: Effort, rounds: usize) -> Result<Report> {
    figure.round(effort)?;
    let values = (0..rounds).map(|_| figure.round(effort)).collect::<Result<Vec<_>>>()?;
    Ok(Report { about: figure.about(), ours: Summary::of(&values), rounds })
}

fn invalid(reason: String) -> Error {
    Error::InvalidArgument { operation: "bench", reason }
}

/// `4 KiB`, as `4KiB`.
fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{}MiB", b >> 20),
        b => format!("{}KiB", b >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_fit_the_table() {
        let names: Vec<_> = figures().iter().map(|f| f.about().name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| name.len() <= 26), "{names:?}");
    }

    #[test]
    fn a_round_gives_a_positive_number() {
        for figure in figures() {
            // Larger ones take minutes without optimisation.
            if figure.about().name.contains("64MiB") || figure.about().name.contains("mlp") {
                continue;
            }
            let value = figure.round(Effort { seconds: 1e-4 }).unwrap();
            assert!(value > 0. && value.is_finite(), "{}: {value}", figure.about().name);
        }
    }
}
