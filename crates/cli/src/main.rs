//! The command `distribute`: `bench` measures this machine against the figures of docs/performance.md, `doctor` looks
//! for what makes training slow on it and between the tasks of a cluster, `launch` starts the tasks of a job, `repair` looks for damage in the folders of parameter
//! servers, `status` tells what a running job does.

mod bench;
mod doctor;
mod hints;
#[cfg(unix)]
mod launch;
mod output;
mod repair;
mod status;

use clap::{Parser, Subcommand};

// candle allocates for every operation: glibc gives large blocks back to the kernel and faults them in again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(
    name = "distribute",
    version,
    about = "Measures and checks machines for distributed training, and starts it"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures this library on this machine, beside recorded figures of its peers
    Bench(Box<bench::Arguments>),
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
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        #[cfg(unix)]
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Repair(arguments) => repair::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
    }
}
