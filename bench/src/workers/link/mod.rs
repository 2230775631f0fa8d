//! `distribute-bench --link RATE`: training by two processes on two hosts, with a link of limited rate
//! between them.
//!
//! | module | contents |
//! |---|---|
//! | [`rate`] | the rate of a link, as users specify it |
//! | [`network`], [`commands`], [`error`] | the hosts and the link; the commands that create it; its errors |
//! | [`training`] | the figures, next to computing alone and sending alone |
//! | [`table`] | the printed tables |
//!
//! Hosts are network namespaces of this machine, so they share its cores, files and memory. Workers on one machine
//! would use shared memory; here they use only sockets.

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

/// Measures both models, or those whose names contain `filter`, over a link with each of the rates, and prints the
/// results.
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
                // Printed after the table, so as not to interrupt it.
                Form::Markdown => summaries.extend(summary.map(|summary| format!("\n{summary}"))),
                _ => summary.iter().try_for_each(output::line)?,
            }
        }
    }
    summaries.iter().try_for_each(output::line)
}
