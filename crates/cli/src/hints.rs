//! Hints for command lines that are meant for another program, such as another launcher.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// The options by which other launchers set the number of processes.
const WORKERS: [&str; 8] =
    ["-n", "-np", "--n", "--np", "--nproc_per_node", "--nproc-per-node", "--num-workers", "--num_processes"];

/// Prints a command-line error, followed by a hint if there is one, and exits in the same way as clap.
pub fn exit(error: &Error) -> ! {
    let _ = error.print();
    let is_launch = std::env::args_os().nth(1).is_some_and(|command| command == "launch");
    if let Some(hint) = if is_launch { of(error) } else { of_another_program(error) } {
        crate::output::remark(format!("\n{hint}"));
    }
    std::process::exit(error.exit_code())
}

/// Returns a hint if the command is a separate program, and `None` otherwise.
fn of_another_program(error: &Error) -> Option<String> {
    let is_bench = matches!(error.get(ContextKind::InvalidSubcommand), Some(ContextValue::String(command)) if command == "bench");
    is_bench.then(|| {
        "hint: the benchmark is a separate program: cargo run --release -p distribute-bench -- --help".into()
    })
}

/// Returns a hint if an argument of `distribute launch` is unknown, and `None` otherwise.
fn of(error: &Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = argument.split('=').next().unwrap_or(argument);
    if error.kind() != ErrorKind::UnknownArgument {
        None
    } else if WORKERS.contains(&name) {
        Some("hint: the number of processes is --workers: distribute launch --workers 2 -- ./train".into())
    } else if !name.starts_with('-') {
        Some(format!(
            "hint: the command comes after all options and --: distribute launch --workers 2 -- {argument}"
        ))
    } else {
        Some(
            "hint: options of the command come after -- and the command: distribute launch -- ./train --epochs 3"
                .into(),
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    fn hint(words: &str) -> Option<String> {
        let words = ["distribute", "launch"].into_iter().chain(words.split(' '));
        super::of(&crate::Arguments::try_parse_from(words).err().unwrap())
    }

    #[test]
    fn the_words_of_other_launchers_are_answered_by_this_ones() {
        for option in ["--np 2 -- ./train", "-np 2 ./train", "-n 2 ./train", "--nproc_per_node=2 train.py"] {
            let hint = hint(option).unwrap();
            assert!(hint.contains("--workers 2 -- ./train"), "{option}: {hint}");
        }
        let command = hint("--workers 2 ./train --epochs 3").unwrap();
        assert!(command.ends_with("distribute launch --workers 2 -- ./train"), "{command}");
        assert!(hint("--workers 2 --epochs 3 -- ./train").unwrap().contains("options of the command"));
        // clap's own message is sufficient.
        assert_eq!(hint("--workers two -- ./train"), None);
    }

    #[test]
    fn bench_names_the_program_that_it_has_become() {
        let hint = |command| {
            let error = crate::Arguments::try_parse_from(["distribute", command, "--list"]).err().unwrap();
            super::of_another_program(&error)
        };
        assert!(hint("bench").unwrap().contains("cargo run --release -p distribute-bench"));
        assert_eq!(hint("benhc"), None);
    }
}
