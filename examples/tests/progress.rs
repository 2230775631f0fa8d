//! The progress of examples: a bar on a terminal, lines in a pipe.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

use candle_core::{Device, Tensor};
use common::progress::Progress;
use distribute::prelude::*;
use distribute_testing::{child, watched};
use indicatif::{ProgressDrawTarget, TermLike};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NAME: &str = "a_pipe_gets_plain_lines_and_a_quiet_program_none";

/// A terminal of one line that records its contents.
#[derive(Clone, Debug, Default)]
struct Terminal(Arc<Mutex<Vec<String>>>);

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        100
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().push(text.into());
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Trains three epochs of ten examples, four at a time.
fn train(terminal: Option<ProgressDrawTarget>, quiet: bool) {
    train_with(&MirroredStrategy::cpus(2).unwrap(), terminal, quiet);
}

fn train_with(strategy: &Strategy, terminal: Option<ProgressDrawTarget>, quiet: bool) {
    let loss = Tensor::new(0.5f32, &Device::Cpu).unwrap();
    let losses = PerReplica::from_values(vec![loss.clone(), loss]);
    let mut progress = Progress::on(terminal, quiet, strategy, 3, 10, 4);
    (0..9).for_each(|_| progress.step(&losses).unwrap());
    let pace = progress.finish().unwrap();
    assert!(pace.loss == 0.5 && pace.examples_per_s > 0.);
}

#[test]
fn a_terminal_gets_a_bar() {
    watched(|| {
        let terminal = Terminal::default();
        train(Some(ProgressDrawTarget::term_like(Box::new(terminal.clone()))), false);
        let drawn = terminal.0.lock().unwrap().join("\n");
        assert!(drawn.contains("2 replicas") && drawn.contains("100 %"), "{drawn}");
        assert!(drawn.contains("examples/s, loss 0.5000"), "{drawn}");
        let quiet = Terminal::default();
        train(Some(ProgressDrawTarget::term_like(Box::new(quiet.clone()))), true);
        assert!(quiet.0.lock().unwrap().is_empty());
    });
}

#[test]
fn a_pipe_gets_plain_lines_and_a_quiet_program_none() {
    match child::part().as_deref() {
        Some("workers") => {
            let train = |strategy: &MultiWorkerMirroredStrategy| {
                train_with(strategy, None, false);
                Ok(())
            };
            MultiWorkerMirroredStrategy::on_threads(2, 1, train).unwrap();
        }
        Some(part) => train(None, part == "quiet"),
        None => {
            let minute = Duration::from_secs(60);
            let (out, _) = child::output(child::command(NAME, "lines"), minute);
            let lines: Vec<_> = out.lines().filter(|line| line.contains("2 replicas: ")).collect();
            assert_eq!(lines.len(), 3, "{out}");
            assert!(
                lines[0].contains("epoch 1 of 3, ") && lines[2].ends_with(" examples/s, loss 0.5000"),
                "{out}"
            );
            assert!(!out.contains(['\x1b', '\r']), "{out:?}");
            let (out, _) = child::output(child::command(NAME, "quiet"), minute);
            assert!(!out.contains("replicas"), "{out}");
            let (out, _) = child::output(child::command(NAME, "workers"), minute);
            let count = |who: &str| out.lines().filter(|line| line.contains(who)).count();
            assert_eq!([count("worker 0 of 2, 1 replica each: "), count("worker 1")], [3, 0], "{out}");
        }
    }
}
