//! The command `distribute`: `doctor` looks for what makes training slow on this machine and between the tasks of a cluster, `launch`
//! starts the tasks of a job, `repair` looks for damage in the folders of parameter servers, `status` tells what a running job does.

mod doctor;
mod hints;
#[cfg(unix)]
mod launch;
mod output;
mod repair;
mod status;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "distribute",
    version,
    about = "Checks machines for distributed training, starts it, and tells how it goes"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Looks for what makes training slow, on this machine and between the tasks of a cluster
    Doctor(doctor::Arguments),
    /// Starts workers and other tasks of a job, here or over ssh, and ends them together
    #[cfg(unix)]
    Launch(Box<launch::Arguments>),
    /// Shows what is damaged in the folders of parameter servers, and goes on without it
    Repair(repair::Arguments),
    /// Tells what a running job does
    Status(status::Arguments),
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| hints::exit(&error));
    match arguments.command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        #[cfg(unix)]
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Repair(arguments) => repair::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
    }
}
