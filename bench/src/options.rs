//! The options of the command line.

use super::form::Form;
use super::hosts::Hosts;
use super::workers::link;
use std::path::PathBuf;

/// Measures this library on this machine, beside recorded figures of its peers
#[derive(clap::Parser)]
#[command(name = "distribute-bench", version)]
pub struct Arguments {
    /// Measure only figures whose name contains this
    #[arg(long)]
    pub filter: Option<String>,
    /// The number of times that each figure is measured; the median is given
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// Short rounds: to see that it works, not to compare
    #[arg(long)]
    pub quick: bool,
    /// The length of a round of each figure, in seconds: short rounds have a least value that is undisturbed also on a
    /// busy machine
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Measure the peers, too, in turn with ours; FOLDER has their scripts, as bench/peers of the repository. Without, what
    /// they reached before is shown
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "bench/peers")]
    pub peers: Option<PathBuf>,
    /// The Python that has the peers' libraries (bench/peers/README.md says how to make one)
    #[arg(long, default_value = "python3", requires = "peers")]
    pub python: PathBuf,
    /// The growth of a step with replicas, parameters, rows of a table and batch, instead of the figures
    #[arg(long)]
    pub growth: bool,
    /// The time of an all-reduce among 2 to 16 processes of this machine, and the time that a model fitted to that has for
    /// 1,000 machines, instead of the figures
    #[arg(long, conflicts_with = "growth")]
    pub worlds: bool,
    /// Training by two processes on two hosts, network namespaces of this machine, with a link of this rate between them (1gbit,
    /// 100mbit, unlimited; several separated by commas), instead of the figures. As root, with ip and tc of iproute2
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["growth", "worlds", "list", "plot", "record"])]
    pub link: Vec<link::Rate>,
    /// Draw the ratios, or the growth, as SVG into this file
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// One line of JSON for each figure
    #[arg(long)]
    pub json: bool,
    /// The tables of docs/performance.md
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Name the figures and what they measure, and measure nothing
    #[arg(long)]
    pub list: bool,
    /// Make so many steps of what --filter names, and measure and print nothing: to count their instructions
    #[arg(long)]
    pub steps: Option<u64>,
    /// Write what the peers reach into this file, for machines without them
    #[arg(long, requires = "peers", requires = "machine")]
    pub record: Option<PathBuf>,
    /// The note that is written beside it: the machine and the day
    #[arg(long)]
    pub machine: Option<String>,
    /// The part of a figure that is a process of its own
    #[arg(long, hide = true)]
    pub child: Option<String>,
    /// Measure this figure, a round for each line of standard input
    #[arg(long, hide = true)]
    pub serve: Option<String>,
    /// Between these hosts
    #[arg(long, hide = true, requires = "serve")]
    pub hosts: Option<Hosts>,
}

impl Arguments {
    /// Returns how results are printed.
    pub fn form(&self) -> Form {
        match (self.json, self.markdown) {
            (true, _) => Form::Json,
            (_, true) => Form::Markdown,
            _ => Form::Text,
        }
    }
}
