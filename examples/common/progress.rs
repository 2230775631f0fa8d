//! How far a training is, how fast, and its loss: a bar on a terminal, lines in a pipe.

use super::{Options, say};
use candle_core::Tensor;
use distribute::cluster::deadline::Stopwatch;
use distribute::data::Position;
use distribute::prelude::*;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Told of each step, it says how far the training is.
pub struct Progress {
    view: View,
    title: String,
    epochs: usize,
    /// How many examples an epoch has, and a step (the last one of an epoch may have fewer).
    examples: usize,
    batch: usize,
    /// How many the training has seen, how many of them here, and how many of these the sum of losses has of this epoch.
    seen: usize,
    made: usize,
    counted: usize,
    loss: f64,
    last_loss: f64,
    clock: Stopwatch,
}

enum View {
    Bar(ProgressBar),
    /// One every so many examples.
    Lines(usize),
    Nothing,
}

/// Lines that a long training prints at most.
const LINES: usize = 20;
/// Trainings of fewer epochs print lines within them.
const LONG: usize = 3;

impl Progress {
    /// Starts the clock. Where standard output is a terminal, there is a bar on it.
    pub fn start(
        options: &Options,
        strategy: &Strategy,
        epochs: usize,
        examples: usize,
        batch: usize,
    ) -> Self {
        let terminal = std::io::stdout().is_terminal().then(ProgressDrawTarget::stdout);
        Self::on(terminal, options.quiet, strategy, epochs, examples, batch)
    }

    /// The same, with a bar on this terminal; without one, lines.
    pub fn on(
        terminal: Option<ProgressDrawTarget>,
        quiet: bool,
        strategy: &Strategy,
        epochs: usize,
        examples: usize,
        batch: usize,
    ) -> Self {
        let title = strategy.world().to_string();
        let view = match terminal {
            // Of several workers, the chief alone tells.
            _ if quiet || !strategy.should_save_summary() => View::Nothing,
            None => View::Lines(match epochs {
                ..LONG => (epochs * examples).div_ceil(LINES),
                _ => epochs.div_ceil(LINES) * examples,
            }),
            Some(terminal) => View::Bar(bar(&title, (epochs * examples) as u64, terminal)),
        };
        let clock = Stopwatch::start();
        Self {
            view,
            title,
            epochs,
            examples,
            batch,
            seen: 0,
            made: 0,
            counted: 0,
            loss: 0.,
            last_loss: f64::NAN,
            clock,
        }
    }

    /// The training is there, at first or after an interruption.
    pub fn at(&mut self, position: Position) {
        let (epoch, steps) = (position.epoch as usize, position.steps as usize);
        let seen = epoch * self.examples + (steps * self.batch).min(self.examples);
        (self.seen, self.counted, self.loss) = (seen, 0, 0.);
        if let View::Bar(bar) = &self.view {
            bar.set_position(seen as u64);
        }
    }

    /// A step has been made; `losses` is what `minimize` gave: on every replica the mean over all examples.
    pub fn step(&mut self, losses: &PerReplica<Tensor>) -> distribute::Result<()> {
        let (in_epoch, before) = (self.seen % self.examples, self.seen);
        let examples = self.batch.min(self.examples - in_epoch);
        for loss in losses.iter().take(1) {
            self.loss += f64::from(loss.to_scalar::<f32>()?) * examples as f64;
        }
        self.seen += examples;
        self.made += examples;
        self.counted += examples;
        if in_epoch + examples == self.examples {
            self.last_loss = std::mem::take(&mut self.loss) / std::mem::take(&mut self.counted) as f64;
        }
        match &self.view {
            View::Bar(bar) => {
                bar.inc(examples as u64);
                let loss = match self.counted {
                    some if self.last_loss.is_nan() && some > 0 => self.loss / some as f64,
                    _ => self.last_loss,
                };
                bar.set_message(format!("{:>9} examples/s, loss {loss:.4}", thousands(self.speed())));
            }
            View::Lines(every) => {
                let whole = in_epoch + examples == self.examples;
                if self.seen / every > before / every || self.seen == self.epochs * self.examples {
                    let (title, epochs, speed) = (&self.title, self.epochs, thousands(self.speed()));
                    let epoch = self.seen.div_ceil(self.examples);
                    let (part, loss) = if whole {
                        (String::new(), self.last_loss)
                    } else {
                        let part = 100 * (in_epoch + examples) / self.examples;
                        (format!(" ({part} %)"), self.loss / self.counted as f64)
                    };
                    say(&format!(
                        "{title}: epoch {epoch} of {epochs}{part}, {speed} examples/s, loss {loss:.4}"
                    ));
                }
            }
            View::Nothing => {}
        }
        Ok(())
    }

    /// Stops the clock: the seconds since the start, examples in a second, and the mean loss of the last epoch.
    pub fn finish(self) -> Pace {
        if let View::Bar(bar) = &self.view {
            bar.finish();
        }
        Pace { seconds: self.clock.seconds(), examples_per_s: self.speed(), loss: self.last_loss }
    }

    fn speed(&self) -> f64 {
        self.made as f64 / self.clock.seconds()
    }
}

/// How a training went.
pub struct Pace {
    pub seconds: f64,
    pub examples_per_s: f64,
    pub loss: f64,
}

fn bar(title: &str, length: u64, terminal: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:30.cyan/blue} {percent:>3} % {msg}");
    let bar = ProgressBar::with_draw_target(Some(length), terminal);
    bar.set_prefix(format!("{title:<10}"));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A number for people: 12,345.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
