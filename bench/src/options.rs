//! The options of the command line.

use super::form::Form;
use super::hosts::Hosts;
use super::workers::link;
use std::path::PathBuf;

/// Measures this library on this machine, next to recorded figures of its peers
#[derive(clap::Parser)]
#[command(name = "distribute-bench", version)]
pub struct Arguments {
    /// Measure only figures whose name contains this text
    #[arg(long)]
    pub filter: Option<String>,
    /// The number of rounds of each figure, of which the median is reported
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// Use short rounds, to check that everything works. They are not suitable for comparisons
    #[arg(long)]
    pub quick: bool,
    /// The length of a round of each figure, in seconds. With short rounds, the minimum is undisturbed even on a busy
    /// machine
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Also measure the peers, alternating with this library. FOLDER contains their scripts, such as bench/peers of the
    /// repository. Without this option, recorded values are shown
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "bench/peers")]
    pub peers: Option<PathBuf>,
    /// The Python with the peers' libraries (bench/peers/README.md explains how to create one)
    #[arg(long, default_value = "python3", requires = "peers")]
    pub python: PathBuf,
    /// Show how a step grows with replicas, parameters, rows of a table and batch size, instead of the figures
    #[arg(long)]
    pub growth: bool,
    /// Show the time of an all-reduce between 2 to 16 processes of this machine, and the prediction of a fitted model
    /// for 1,000 machines, instead of the figures
    #[arg(long, conflicts_with = "growth")]
    pub worlds: bool,
    /// Show speed, loss and memory of trainings in f32, bf16 and f16, instead of the figures
    #[arg(long, conflicts_with_all = ["growth", "worlds", "saves"])]
    pub precision: bool,
    /// Show the time of steps while a checkpoint of 600 MB is saved in this folder, instead of the figures
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["growth", "worlds"])]
    pub saves: Option<PathBuf>,
    /// Show training by two processes on two hosts, which are network namespaces of this machine, instead of the
    /// figures. The link between them has this rate (1gbit, 100mbit, unlimited; several separated by commas). Needs
    /// root, and ip and tc of iproute2
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["growth", "precision", "saves", "worlds", "list", "plot", "record"])]
    pub link: Vec<link::Rate>,
    /// Plot the ratios, or the growth, as SVG to this file
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// Print one line of JSON for each figure
    #[arg(long)]
    pub json: bool,
    /// Print the tables of docs/reference/performance.md
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// List the figures and their descriptions, without measuring
    #[arg(long)]
    pub list: bool,
    /// Make the given number of steps of the figure named by --filter, without measuring or printing, so that their
    /// instructions can be counted
    #[arg(long)]
    pub steps: Option<u64>,
    /// Write the peers' values to this file, for machines without the peers
    #[arg(long, requires = "peers", requires = "machine")]
    pub record: Option<PathBuf>,
    /// A note in the file of --record, which describes the machine and the day
    #[arg(long)]
    pub machine: Option<String>,
    /// The part of a figure to run, in a separate process
    #[arg(long, hide = true)]
    pub child: Option<String>,
    /// Measure this figure, with one round for each line of standard input
    #[arg(long, hide = true)]
    pub serve: Option<String>,
    /// The hosts between which the figure is measured
    #[arg(long, hide = true, requires = "serve")]
    pub hosts: Option<Hosts>,
}

impl Arguments {
    /// Returns the output format of results.
    pub fn form(&self) -> Form {
        match (self.json, self.markdown) {
            (true, _) => Form::Json,
            (_, true) => Form::Markdown,
            _ => Form::Text,
        }
    }
}
