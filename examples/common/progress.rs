//! The progress of a training, its speed and its loss: a bar on a terminal, lines in a pipe.

use super::fleet::Fleet;
use super::{Options, say};
use candle_core::Tensor;
use distribute::ClusterCoordinator;
use distribute::cluster::deadline::Stopwatch;
use distribute::data::Position;
use distribute::monitor::Monitor;
use distribute::prelude::*;
use distribute::summary::SummaryWriter;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// The progress of a training, which displays each step.
pub struct Progress {
    view: View,
    title: String,
    epochs: usize,
    /// The number of examples in an epoch, and in a step (the last step of an epoch may have fewer).
    examples: usize,
    batch: usize,
    /// The examples of the training so far, those processed here, and those in the sum of this epoch's
    /// losses.
    seen: usize,
    made: usize,
    counted: usize,
    loss: f64,
    /// The losses of the last steps, still on a GPU.
    unread: Vec<Tensor>,
    last_loss: f64,
    clock: Stopwatch,
    summaries: SummaryWriter,
    monitor: Option<Monitor>,
    /// The workers and servers of a coordinator.
    fleet: Option<Fleet>,
    /// The variables with histograms.
    variables: Option<Variables>,
    /// The start of the next speed measurement: its time, and the number of examples.
    lap: (Stopwatch, usize),
}

enum View {
    Bar(ProgressBar),
    /// A line after each multiple of this number of examples.
    Lines(usize),
    Nothing,
}

/// The maximum number of lines that a long training prints.
const LINES: usize = 20;
/// Trainings of fewer epochs print lines within epochs.
const LONG: usize = 3;
/// The minimum duration of a speed measurement.
const LAP: Duration = Duration::from_millis(500);
/// The number of losses that are read from a GPU at once.
const AT_ONCE: usize = 16;
/// The maximum number of elements of a variable with histograms.
const LARGE: usize = 1 << 20;

impl Progress {
    /// Starts the clock. If standard output is a terminal, it shows a bar. With `--log-dir`, each step's loss
    /// is written there. With `--live`, it is shown in browsers until this is dropped.
    pub fn start(
        options: &Options,
        strategy: &Strategy,
        epochs: usize,
        examples: usize,
        batch: usize,
    ) -> distribute::Result<Self> {
        let terminal = std::io::stdout().is_terminal().then(ProgressDrawTarget::stdout);
        let (summaries, monitor) =
            (options.summaries(strategy)?, options.monitor(Monitor::builder(strategy))?);
        Ok(Self {
            summaries,
            monitor,
            ..Self::on(terminal, options.quiet, strategy, epochs, examples, batch)
        })
    }

    /// Starts the clock of a training whose steps are scheduled on workers.
    pub fn of_coordinator(
        options: &Options,
        coordinator: &ClusterCoordinator,
        epochs: usize,
        examples: usize,
        batch: usize,
    ) -> distribute::Result<Self> {
        let terminal = std::io::stdout().is_terminal().then(ProgressDrawTarget::stdout);
        let (strategy, fleet) = (coordinator.strategy(), Fleet::new(coordinator)?);
        let monitor = options.monitor(Monitor::builder(strategy).coordinator(coordinator))?;
        let mut progress = Self {
            summaries: options.summaries(strategy)?,
            monitor,
            title: fleet.title(),
            fleet: Some(fleet),
            ..Self::on(terminal, options.quiet, strategy, epochs, examples, batch)
        };
        if let View::Bar(bar) = &mut progress.view {
            bar.set_prefix(progress.title.clone());
        }
        Ok(progress)
    }

    /// Writes histograms of small variables at the end of each epoch, with `--log-dir`.
    pub fn variables(self, variables: &Variables) -> Self {
        Self { variables: Some(variables.clone()), ..self }
    }

    /// Starts the clock with a bar on this terminal, or with lines if there is none.
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
            // With several workers, only the chief prints.
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
            unread: Vec::new(),
            last_loss: f64::NAN,
            clock,
            summaries: SummaryWriter::noop(),
            monitor: None,
            fleet: None,
            variables: None,
            lap: (clock, 0),
        }
    }

    /// Sets the position of the training, initially or after an interruption.
    pub fn at(&mut self, position: Position) {
        let (epoch, steps) = (position.epoch as usize, position.steps as usize);
        let seen = epoch * self.examples + (steps * self.batch).min(self.examples);
        (self.seen, self.counted, self.loss) = (seen, 0, 0.);
        self.unread.clear();
        if let View::Bar(bar) = &self.view {
            bar.set_position(seen as u64);
        }
    }

    /// Records a step. `losses` is the result of `minimize`: the mean over all examples on every replica.
    pub fn step(&mut self, losses: &PerReplica<Tensor>) -> distribute::Result<()> {
        let Some(loss) = losses.iter().next() else { return Ok(()) };
        self.unread.push(loss.clone());
        let steps = (self.seen % self.examples).div_ceil(self.batch) + self.unread.len();
        let is_last = steps >= self.examples.div_ceil(self.batch);
        if is_last || loss.device().is_cpu() || self.unread.len() >= AT_ONCE { self.read() } else { Ok(()) }
    }

    /// Adds the losses that have not been read yet. Reading one from a GPU waits for the step.
    fn read(&mut self) -> distribute::Result<()> {
        let losses = std::mem::take(&mut self.unread);
        if losses.is_empty() {
            return Ok(());
        }
        let losses = Tensor::stack(&losses, 0)?.to_vec1::<f32>()?;
        losses.into_iter().try_for_each(|loss| self.add(loss.into()))
    }

    /// Records a step with this loss.
    pub fn add(&mut self, loss: f64) -> distribute::Result<()> {
        let (in_epoch, before) = (self.seen % self.examples, self.seen);
        let examples = self.batch.min(self.examples - in_epoch);
        let step = self.steps_of(in_epoch + examples);
        self.loss += loss * examples as f64;
        self.summaries.scalar("loss", loss, step)?;
        if let (Some(monitor), Some(_)) = (&self.monitor, &self.fleet) {
            monitor.record(examples, loss);
        }
        self.seen += examples;
        self.made += examples;
        self.counted += examples;
        if in_epoch + examples == self.examples {
            self.last_loss = std::mem::take(&mut self.loss) / std::mem::take(&mut self.counted) as f64;
        }
        self.summarize(step, in_epoch + examples == self.examples)?;
        let fleet = self.fleet.as_mut().map_or(Ok(""), Fleet::text)?;
        match &self.view {
            View::Bar(bar) => {
                bar.inc(examples as u64);
                let loss = match self.counted {
                    some if self.last_loss.is_nan() && some > 0 => self.loss / some as f64,
                    _ => self.last_loss,
                };
                let speed = thousands(self.made as f64 / self.clock.seconds());
                bar.set_message(format!("{speed:>9} examples/s, loss {loss:.4}{fleet}"));
            }
            View::Lines(every) => {
                let whole = in_epoch + examples == self.examples;
                if self.seen / every > before / every || self.seen == self.epochs * self.examples {
                    let speed = thousands(self.made as f64 / self.clock.seconds());
                    let (title, epochs) = (&self.title, self.epochs);
                    // If workers do not wait for each other, one may make more steps than its share.
                    let epoch = self.seen.div_ceil(self.examples).min(epochs);
                    let (part, loss) = if whole {
                        (String::new(), self.last_loss)
                    } else {
                        let part = 100 * (in_epoch + examples) / self.examples;
                        (format!(" ({part} %)"), self.loss / self.counted as f64)
                    };
                    say(&format!(
                        "{title}: epoch {epoch} of {epochs}{part}, {speed} examples/s, loss {loss:.4}{fleet}"
                    ));
                }
            }
            View::Nothing => {}
        }
        Ok(())
    }

    /// Returns the number of steps at this number of examples in the current epoch.
    fn steps_of(&self, in_epoch: usize) -> u64 {
        let epoch = self.seen / self.examples;
        (epoch * self.examples.div_ceil(self.batch) + in_epoch.div_ceil(self.batch)) as u64
    }

    /// Writes summaries that are not written at each step.
    fn summarize(&mut self, step: u64, whole: bool) -> distribute::Result<()> {
        let (since, from) = self.lap;
        if since.elapsed() >= LAP {
            self.summaries.scalar("examples_per_s", (self.made - from) as f64 / since.seconds(), step)?;
            self.lap = (Stopwatch::start(), self.made);
        }
        if let (true, Some(_), Some(variables)) = (whole, self.summaries.path(), &self.variables) {
            for name in variables.names() {
                let value = variables.get(&name)?;
                if value.elem_count() <= LARGE {
                    let values = value.flatten_all()?.to_vec1::<f32>()?;
                    self.summaries.histogram(&name.replace('.', "/"), values, step)?;
                }
            }
        }
        Ok(())
    }

    /// Stops the clock. Returns the seconds since the start, examples per second, and the mean loss of the
    /// last epoch.
    pub fn finish(mut self) -> distribute::Result<Pace> {
        self.read()?;
        if let View::Bar(bar) = &self.view {
            bar.finish();
        }
        Ok(Pace { seconds: self.clock.seconds(), examples_per_s: self.speed(), loss: self.last_loss })
    }

    fn speed(&self) -> f64 {
        self.made as f64 / self.clock.seconds()
    }
}

/// The speed and the loss of a training.
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

/// Formats a number for people: 12,345.
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
