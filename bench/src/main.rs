//! `distribute bench`: figures of this machine, beside what is to be reached and what peers reach.
//!
//! | module | what it is |
//! |---|---|
//! | [`figure`] | [`Figure`](figure): what is measured, and what it is compared with |
//! | [`turns`], [`sample`], [`statistics`] | ours and theirs in turn; what a round gave; median and spread |
//! | [`program`], [`group`], [`spawned`] | a program that is measured from outside; stopping it with all that it starts; this one once more |
//! | [`peers`], [`serve`], [`recorded`] | peers and ourselves in processes that are led; what peers reached before |
//! | [`report`], [`form`], [`plot`] | what a figure's values mean; table, plain lines, JSON; SVG |
//! | [`work`] | models, inputs and weights, as the peers have them |
//! | [`empty_step`], [`all_reduce`], [`traffic`], [`training`], [`products`], [`scaling`], [`input`], [`losses`], [`child`] | the figures, one kind a file |
//! | [`servers`] | parameter servers that are processes: variables pulled and pushed, rows looked up and scattered |
//! | [`coordinator`] | functions that a coordinator schedules on workers, which train against parameter servers |
//! | [`workers`], [`hosts`] | all-reduces and training of several processes, also over a slow link; where two hosts are |
//! | [`drift`] | what it costs to compare variables between workers |
//! | [`growth`] | how a step's time and memory grow |
//! | [`steps`] | steps without a measurement, for those who count instructions |

mod all_reduce;
mod child;
mod coordinator;
mod drift;
mod empty_step;
mod error;
mod figure;
mod form;
mod group;
mod growth;
mod hosts;
mod input;
mod losses;
mod peers;
mod plot;
mod products;
mod program;
mod recorded;
mod report;
mod sample;
mod scaling;
mod serve;
mod servers;
mod spawned;
mod statistics;
mod steps;
mod traffic;
mod training;
mod turns;
mod work;
mod workers;

use crate::output;
use distribute::{Error, Result};
use error::invalid;
use figure::{Effort, Figure};
use form::Form;
use hosts::Hosts;
use plot::Bars;
use report::Report;
use std::path::PathBuf;
pub use traffic::memory_bandwidth;
use workers::link;

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
    /// Measure the peers, too, in turn with ours; FOLDER has their scripts, as bench/peers of the repository. Without, what
    /// they reached before is shown
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "bench/peers")]
    peers: Option<PathBuf>,
    /// The Python that has the peers' libraries (bench/peers/README.md says how to make one)
    #[arg(long, default_value = "python3", requires = "peers")]
    python: PathBuf,
    /// How a step grows with replicas, parameters, rows of a table and batch, instead of the figures
    #[arg(long)]
    growth: bool,
    /// What an all-reduce takes among 2 to 16 processes of this machine, and what a model that is fitted to that says of
    /// 1,000 machines, instead of the figures
    #[arg(long, conflicts_with = "growth")]
    worlds: bool,
    /// Training by two processes on two hosts, network namespaces of this machine, with a link of this rate between them (1gbit,
    /// 100mbit, unlimited; several separated by commas), instead of the figures. As root, with ip and tc of iproute2
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["growth", "worlds", "list", "plot", "record"])]
    link: Vec<link::Rate>,
    /// Draw the ratios, or the growth, as SVG into this file
    #[arg(long)]
    plot: Option<PathBuf>,
    /// One line of JSON for each figure
    #[arg(long)]
    json: bool,
    /// The tables of docs/performance.md
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Name the figures and what they measure, and measure nothing
    #[arg(long)]
    list: bool,
    /// Make so many steps of what --filter names, and measure and print nothing: to count their instructions
    #[arg(long)]
    steps: Option<u64>,
    /// Write what the peers reach into this file, for machines without them
    #[arg(long, requires = "peers", requires = "machine")]
    record: Option<PathBuf>,
    /// What is written beside it: the machine and the day
    #[arg(long)]
    machine: Option<String>,
    /// What a figure has done in a process of its own
    #[arg(long, hide = true)]
    child: Option<String>,
    /// Measure this figure, a round for each line of standard input
    #[arg(long, hide = true)]
    serve: Option<String>,
    /// Between these hosts
    #[arg(long, hide = true, requires = "serve")]
    hosts: Option<Hosts>,
}

impl Arguments {
    fn form(&self) -> Form {
        match (self.json, self.markdown) {
            (true, _) => Form::Json,
            (_, true) => Form::Markdown,
            _ => Form::Text,
        }
    }
}

/// All figures, in the order in which they are printed.
fn figures() -> Vec<Box<dyn Figure>> {
    let mut all: Vec<Box<dyn Figure>> = Vec::new();
    all.extend(empty_step::figures());
    all.extend(all_reduce::figures());
    all.extend(traffic::figures());
    all.extend(training::figures());
    all.extend(products::figures());
    all.extend(scaling::figures());
    all.extend(input::figures());
    all.extend(child::figures());
    all.extend(losses::figures());
    all.extend(workers::figures());
    all.extend(drift::figures());
    all.extend(servers::figures());
    all.extend(coordinator::figures());
    all
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(steps) = arguments.steps {
        return steps::run(arguments.filter.as_deref().unwrap_or_default(), steps);
    }
    if arguments.child.is_some() || arguments.serve.is_some() {
        let io = |source| Error::Io { operation: "bench in another process".into(), source };
        group::end_with_parent().map_err(io)?;
    }
    if let Some(name) = &arguments.child {
        return child::run(name);
    }
    if let Some(name) = &arguments.serve {
        let figure = match arguments.hosts {
            Some(hosts) => link::named(name, hosts),
            None => figures().into_iter().find(|figure| figure.about().name == *name),
        };
        let figure = figure.ok_or_else(|| invalid(format!("there is no figure {name:?}")))?;
        return serve::run(&*figure, std::io::stdin().lock());
    }
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 0.02 } else { 0.3 });
    if arguments.rounds == 0 {
        return Err(invalid("--rounds must be 1 or more".into()));
    }
    let filter = arguments.filter.as_deref().unwrap_or_default();
    let (rounds, plot) = (arguments.rounds, arguments.plot.as_deref());
    if arguments.growth {
        return growth::run(filter, rounds, seconds, arguments.form(), plot);
    }
    if arguments.worlds {
        return workers::worlds::run(filter, rounds, seconds, arguments.form(), plot);
    }
    let peers = || {
        let entries = arguments.peers.as_ref().map(|folder| peers::entries(folder, &arguments.python));
        Ok::<_, Error>(entries.transpose()?.unwrap_or_default())
    };
    if !arguments.link.is_empty() {
        return link::run(&arguments.link, filter, Effort { seconds }, rounds, arguments.form(), &peers()?);
    }
    let wanted = |figure: &dyn Figure| figure.about().name.contains(filter);
    let figures: Vec<_> = figures().into_iter().filter(|figure| wanted(&**figure)).collect();
    if figures.is_empty() {
        return Err(invalid(format!(
            "no figure's name contains {filter:?}; `distribute bench --list` names all"
        )));
    }
    if arguments.list {
        return figures.iter().try_for_each(|figure| {
            let about = figure.about();
            output::line(format!("{:<26} {}", about.name, about.measures))
        });
    }
    let (peers, form) = (peers()?, arguments.form());
    match form {
        Form::Text if output::is_terminal() => output::line(Report::heads())?,
        Form::Markdown => output::line(Report::MARKDOWN)?,
        _ => {}
    }
    let (mut drawn, mut kept) = (Vec::new(), String::new());
    for figure in figures {
        let report = turns::measure(&*figure, Effort { seconds }, rounds, &peers)?;
        output::line(match form {
            Form::Json => report.json().to_string(),
            Form::Markdown => report.markdown(),
            Form::Text if output::is_terminal() => report.row(),
            Form::Text => report.plain(),
        })?;
        kept += &recorded::lines(&report, arguments.machine.as_deref().unwrap_or_default());
        let bars = report.ratios().into_iter().map(|(rival, ratio)| (rival.name.clone(), ratio)).collect();
        drawn.push(Bars { label: report.about.name.clone(), bars });
    }
    arguments.record.as_ref().map_or(Ok(()), |path| output::file(path, &kept))?;
    drawn.retain(|group| !group.bars.is_empty());
    plot.map_or(Ok(()), |path| output::file(path, &plot::bars(&drawn)))
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
            let name = figure.about().name;
            // Larger ones take minutes without optimisation; a test's binary has no `bench --child`.
            let left_out = [
                "64MiB",
                "replicas",
                "scaling",
                "losses",
                "start",
                "memory",
                "tfrecord",
                "csv",
                "shuffle",
                "map",
                "2p",
                "processes",
                "drift",
                "servers",
                "coordinator",
            ];
            if left_out.iter().any(|part| name.contains(part)) {
                continue;
            }
            let value = figure.round(Effort { seconds: 1e-4 }).unwrap().value;
            assert!(value > 0. && value.is_finite(), "{}: {value}", figure.about().name);
        }
    }
}
