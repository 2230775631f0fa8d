//! The command `distribute`. `doctor` looks for causes of slow training on this machine and between the tasks of a
//! cluster. `export` writes changed rows to files. `launch` starts the tasks of a job. `repair` inspects the folders of
//! parameter servers for damage. `serve` is a parameter server on its own. `status` shows the state of a running job.
//! `hints` recognizes the syntax of other launchers, and `output` prints. Other crates do the work; this one defines
//! the options and texts.

mod doctor;
mod export;
mod hints;
#[cfg(unix)]
mod launch;
mod output;
mod repair;
mod serve;
mod status;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "distribute",
    version,
    about = "Checks machines for distributed training, starts it, and shows its status"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Looks for causes of slow training, on this machine and between the tasks of a cluster
    Doctor(doctor::Arguments),
    /// Writes the changed rows of parameter servers to files, for programs that serve them
    Export(export::Arguments),
    /// Starts workers and other tasks of a job, on this machine or over ssh, and ends them together
    #[cfg(unix)]
    Launch(Box<launch::Arguments>),
    /// Lists the damage in the folders of parameter servers, and repairs them
    Repair(repair::Arguments),
    /// Serves tables as a parameter server, for clients in any language
    Serve(serve::Arguments),
    /// Shows the state of a running job
    Status(status::Arguments),
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| hints::exit(&error));
    match arguments.command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        #[cfg(unix)]
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Repair(arguments) => repair::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
    }
}
