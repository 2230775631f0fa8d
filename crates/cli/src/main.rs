//! The command `distribute`: `bench` measures this machine against the figures of docs/performance.md, `doctor` looks
//! for what makes training slow on it.

mod bench;
mod doctor;
mod output;

use clap::{Parser, Subcommand};

// candle allocates for every operation: glibc gives large blocks back to the kernel and faults them in again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "distribute", version, about = "Measures and checks this machine for distributed training")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures this library on this machine, beside recorded figures of its peers
    Bench(Box<bench::Arguments>),
    /// Looks for what makes training slow on this machine
    Doctor,
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    match Arguments::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Doctor => doctor::run(),
    }
}
