//! The benchmark of `distribute`. It compares figures of this machine with targets and with the figures of peers.
//!
//! | module | contents |
//! |---|---|
//! | [`options`], [`output`], [`files`] | the command line; lines to standard output; files |
//! | [`figure`], [`mod@figures`] | a measurement, and the values to which it is compared; the list of all figures |
//! | [`turns`], [`sample`], [`statistics`] | alternating rounds; the value of a round; median and spread |
//! | [`program`], [`group`], [`spawned`] | programs measured from outside; process groups; this program again |
//! | [`peers`], [`serve`], [`recorded`] | peers and this program in controlled processes; recorded values of peers |
//! | [`report`], [`form`], [`numbers`], [`plot`] | evaluation; table, lines, JSON; numbers as text; SVG |
//! | [`work`] | models, inputs and weights, as in the peers |
//! | [`empty_step`], [`all_reduce`], [`traffic`], [`products`] | figures of steps and sums |
//! | [`training`], [`scaling`], [`input`], [`losses`], [`child`] | figures of training, input and new processes |
//! | [`servers`] | parameter servers in processes: pull and push of variables, lookup and scatter of rows |
//! | [`coordinator`] | functions that a coordinator schedules on workers, which train against parameter servers |
//! | [`workers`], [`hosts`] | all-reduces and training of several processes, also over a slow link; two hosts |
//! | [`drift`] | the cost of comparing variables between workers |
//! | [`memory`], [`error`] | memory bandwidth; errors of invalid requests |
//! | [`growth`] | the growth of a step's time and memory |
//! | [`precision`] | speed, loss and memory of trainings in f32, bf16 and f16 |
//! | [`saves`] | the time of steps while a checkpoint is saved in the background |
//! | [`steps`] | steps without a measurement, for counting instructions |

mod all_reduce;
mod child;
mod coordinator;
mod drift;
mod empty_step;
mod error;
mod figure;
mod figures;
mod files;
mod form;
mod group;
mod growth;
mod hosts;
mod input;
mod losses;
#[path = "../../crates/cli/src/doctor/memory.rs"]
mod memory;
mod numbers;
mod options;
#[path = "../../crates/cli/src/output.rs"]
mod output;
mod peers;
mod plot;
mod precision;
mod products;
mod program;
mod recorded;
mod report;
mod sample;
mod saves;
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

use clap::Parser;
use distribute::{Error, Result};
use error::invalid;
use figure::{Effort, Figure};
use figures::figures;
use form::Form;
use options::Arguments;
use plot::Bars;
use report::Report;
use workers::link;

// candle allocates for every operation: glibc returns large blocks to the kernel and faults them in again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[distribute::main]
fn main() -> Result<()> {
    run(&Arguments::parse())
}

/// Measures and prints what the options request.
fn run(arguments: &Arguments) -> Result<()> {
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
    if arguments.precision {
        return precision::run(rounds, arguments.quick, arguments.form());
    }
    if let Some(folder) = &arguments.saves {
        return saves::run(folder, rounds, arguments.quick, arguments.form());
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
            "no figure's name contains {filter:?}; `distribute-bench --list` names all"
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
    arguments.record.as_ref().map_or(Ok(()), |path| files::write(path, &kept))?;
    drawn.retain(|group| !group.bars.is_empty());
    plot.map_or(Ok(()), |path| files::write(path, &plot::bars(&drawn)))
}
