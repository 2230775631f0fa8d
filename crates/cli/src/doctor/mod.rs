//! `distribute doctor`: looks for causes of slow training on this machine, and tests the links to the tasks of a
//! cluster. This module defines the options; `machine` and `memory` examine the machine, and `links` the links.

mod links;
mod machine;
mod memory;

pub(crate) use machine::{THREADS, given};

use crate::output::{coloured, line};
use distribute::{Error, Result};
use machine::Machine;
use std::path::PathBuf;

/// Looks for causes of slow training: on this machine and, if the environment names a cluster, between its
/// tasks
#[derive(clap::Args)]
pub struct Arguments {
    /// Participate as this process's task of the cluster. Each task listens, and the chief or worker 0 measures all
    /// links
    #[arg(long)]
    listen: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The maximum time to wait for a missing task, such as 5s; by default 5s, or one minute with --listen
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// The certificate of the job's CA, if certificates protect the links; by default DISTRIBUTE_SECRET protects them
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    ca: Option<PathBuf>,
    /// The certificate of this process
    #[arg(long, value_name = "FILE", requires = "ca")]
    certificate: Option<PathBuf>,
    /// The private key of this process
    #[arg(long, value_name = "FILE", requires = "ca")]
    key: Option<PathBuf>,
    /// Measure links without encryption, even between machines
    #[arg(long)]
    allow_plain_text_on_the_network: bool,
}

/// Prints the findings. If a link is closed, refused, broken or slow, exits with code 1.
pub fn run(arguments: &Arguments) -> Result<()> {
    // Several listening tasks may be on one machine, whose memory they would measure at the same time.
    let machine = if arguments.listen { None } else { Some(Machine::look()?) };
    if let (Some(machine), false) = (&machine, arguments.json) {
        machine.lines().iter().try_for_each(line)?;
    }
    let report = links::report(arguments)?;
    if arguments.json {
        let found = serde_json::json!({
            "machine": machine.as_ref().map(Machine::json),
            "links": report.as_ref().map(|report| &report.links),
            "findings": report.as_ref().map(|report| &report.findings),
        });
        // A task that only listens has no findings.
        if machine.is_some() || report.is_some() {
            line(serde_json::to_string_pretty(&found).map_err(Error::other)?)?;
        }
    } else {
        let mut wrong = machine.as_ref().map(Machine::warnings).unwrap_or_default();
        if let Some(report) = &report {
            let colour = |word: &str, well| coloured(word, if well { 32 } else { 31 });
            report.table(colour).iter().try_for_each(line)?;
            wrong.extend(report.findings.iter().map(ToString::to_string));
        }
        if wrong.is_empty() && (machine.is_some() || report.is_some()) {
            line(coloured("no problems found", 32))?;
        }
        wrong.iter().try_for_each(|wrong| line(format!("{} {wrong}", coloured("warning:", 33))))?;
    }
    if report.is_some_and(|report| !report.is_healthy()) {
        std::process::exit(1);
    }
    Ok(())
}
