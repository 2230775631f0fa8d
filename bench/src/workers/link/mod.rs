//! `distribute-bench --link RATE`: training by two processes on two hosts, with a link of a certain rate between them.
//!
//! | module | what it is |
//! |---|---|
//! | [`rate`] | how fast a link is, as users say it |
//! | [`network`], [`commands`], [`error`] | both and the link while they are held; the commands that make it; why there is none |
//! | [`training`] | the figures, beside computing alone and sending alone |
//! | [`table`] | what is printed |
//!
//! Hosts are network namespaces of this machine, so they share its cores, its files, and memory, where workers would find it:
//! here they use sockets alone.

mod commands;
mod error;
mod network;
mod rate;
mod table;
mod training;

pub use rate::Rate;
pub use training::named;

use crate::error::invalid;
use crate::figure::Effort;
use crate::form::Form;
use crate::output;
use crate::peers::Entry;
use crate::turns::measure;
use distribute::{Error, Result};
use network::Network;

/// Measures both models, or those whose name contains `filter`, over links of these rates, and prints what was found.
pub fn run(
    rates: &[Rate],
    filter: &str,
    effort: Effort,
    rounds: usize,
    form: Form,
    peers: &[Entry],
) -> Result<()> {
    let wanted = |name: &str| name.contains(filter);
    let names: Vec<_> = rates.iter().flat_map(|rate| training::names(*rate)).collect();
    if !names.iter().any(|name| wanted(name)) {
        return Err(invalid(format!(
            "no figure of --link has a name that contains {filter:?}; there are {}",
            names.join(", ")
        )));
    }
    if form == Form::Markdown {
        output::line(table::MARKDOWN)?;
    }
    let mut summaries = Vec::new();
    for rate in rates.iter().filter(|rate| training::names(**rate).iter().any(|name| wanted(name))) {
        let network = Network::new(*rate).map_err(Error::other)?;
        for figure in training::figures(*rate, network.hosts()) {
            if !wanted(&figure.about().name) {
                continue;
            }
            let report = measure(&*figure, effort, rounds, peers)?;
            if form == Form::Json {
                output::line(table::json(&report).to_string())?;
                continue;
            }
            table::rows(&report, form).iter().try_for_each(output::line)?;
            let summary = table::summary(&report);
            match form {
                // Behind the table, which it would tear apart.
                Form::Markdown => summaries.extend(summary.map(|summary| format!("\n{summary}"))),
                _ => summary.iter().try_for_each(output::line)?,
            }
        }
    }
    summaries.iter().try_for_each(output::line)
}
