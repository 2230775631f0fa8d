//! The display of a training run: a status line on a terminal, and a line for each epoch.

use super::super::{Epoch, Step};
use super::{Callback, CallbackContext};
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_cluster::Stopwatch;
use distribute_log::{StatusLine, info_or_stderr};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::Mutex;

/// The minimum interval between two updates of the status line, in seconds.
const INTERVAL: f64 = 0.1;
/// The number of columns of the bar.
const WIDTH: usize = 24;

/// The callback that shows the progress on the chief.
pub(in super::super) struct ProgressBar {
    line: Option<StatusLine>,
    shown: Mutex<Timing>,
}

/// The times from which the display of the current epoch is computed.
struct Timing {
    epoch: Option<usize>,
    /// The time since the results of the previous epoch, or since the run began.
    began: Stopwatch,
    /// The number of steps of the epoch that were complete before this process made its first one.
    resumed_at: usize,
    since: Stopwatch,
    drawn: Option<Stopwatch>,
}

impl ProgressBar {
    pub fn new(is_chief: bool) -> Option<Self> {
        let now = Stopwatch::start;
        let timing = Timing { epoch: None, began: now(), resumed_at: 0, since: now(), drawn: None };
        is_chief.then(|| Self { line: StatusLine::on_terminal(), shown: Mutex::new(timing) })
    }

    /// Removes the status line before user code runs, because that code may print.
    pub fn hide(&self) {
        if let Some(line) = &self.line {
            line.hide();
            lock(&self.shown).drawn = None;
        }
    }

    /// Shows that the validation of an epoch is running.
    pub fn show_validation(&self, epoch: usize, epochs: usize) {
        if let Some(line) = &self.line {
            line.show(&format!("epoch {}/{epochs}  validation", epoch + 1));
        }
    }
}

impl Callback for ProgressBar {
    fn on_begin(&self, context: &CallbackContext<'_>) -> Result<()> {
        let done = context.history().epochs.len();
        if done > 0 {
            info_or_stderr(|| {
                tracing::info!("the training resumes after epoch {done} of {}", context.epochs())
            });
        }
        Ok(())
    }

    fn on_step(&self, context: &CallbackContext<'_>, step: &Step) -> Result<()> {
        let mut timing = lock(&self.shown);
        if timing.epoch != Some(step.epoch) {
            timing.epoch = Some(step.epoch);
            timing.resumed_at = step.step;
            // For the rate: after the first step, which is often slower.
            timing.since = Stopwatch::start();
            timing.drawn = None;
        }
        let Some(line) = &self.line else { return Ok(()) };
        if timing.drawn.as_ref().is_some_and(|drawn| drawn.seconds() < INTERVAL) {
            return Ok(());
        }
        let (made, seconds) = (step.step.saturating_sub(timing.resumed_at), timing.since.seconds());
        let rate = if made > 0 && seconds > 0. { Some(made as f64 / seconds) } else { None };
        line.show(&status(step, context.epochs(), context.steps_per_epoch(), rate));
        timing.drawn = Some(Stopwatch::start());
        Ok(())
    }

    fn on_epoch(&self, context: &CallbackContext<'_>, epoch: &Epoch) -> Result<ControlFlow<()>> {
        let mut timing = lock(&self.shown);
        let seconds = (timing.epoch == Some(epoch.epoch)).then(|| timing.began.seconds());
        timing.began = Stopwatch::start();
        drop(timing);
        let text = summary(epoch, context.epochs(), seconds);
        info_or_stderr(|| tracing::info!("{text}"));
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the text of the status line after a step. `rate` is the number of steps per second.
fn status(step: &Step, epochs: usize, steps: Option<usize>, rate: Option<f64>) -> String {
    let done = step.step + 1;
    let mut text = format!("epoch {}/{epochs}  ", step.epoch + 1);
    // Writing to a string does not fail.
    let _ = match steps {
        Some(steps) => {
            let filled = (WIDTH * done / steps.max(1)).min(WIDTH);
            let head = if filled < WIDTH { ">" } else { "" };
            let rest = " ".repeat(WIDTH - filled - head.len());
            write!(text, "[{}{head}{rest}] {done}/{steps}", "=".repeat(filled))
        }
        None => write!(text, "step {done}"),
    };
    let _ = write!(text, "  loss {}", number(step.loss));
    if let Some(rate) = rate {
        let _ = write!(text, "  {} steps/s", number(rate));
        if let Some(steps) = steps.filter(|steps| *steps >= done) {
            let _ = write!(text, "  {} left", duration((steps - done) as f64 / rate));
        }
    }
    text
}

/// Returns the line that is printed after an epoch.
fn summary(epoch: &Epoch, epochs: usize, seconds: Option<f64>) -> String {
    let steps = if epoch.steps == 1 { "step" } else { "steps" };
    let mut text =
        format!("epoch {}/{epochs}: {} {steps}, loss {}", epoch.epoch + 1, epoch.steps, number(epoch.loss));
    if let Some(loss) = epoch.validation_loss {
        let _ = write!(text, ", validation loss {}", number(loss));
    }
    if let Some(seconds) = seconds {
        let _ = write!(text, ", {}", duration(seconds));
    }
    text
}

/// Formats a number with about four significant digits.
fn number(number: f64) -> String {
    let size = number.abs();
    match size {
        _ if !number.is_finite() || number == 0. => number.to_string(),
        1e-3..1e5 => format!("{number:.*}", (3 - size.log10().floor() as i32).max(0) as usize),
        _ => format!("{number:.3e}"),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        ..10. => format!("{seconds:.1} s"),
        ..60. => format!("{seconds:.0} s"),
        ..3600. => format!("{}:{:02} min", seconds as u64 / 60, seconds as u64 % 60),
        _ => format!("{}:{:02} h", seconds as u64 / 3600, seconds as u64 / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_shows_what_is_known() {
        let step = |step, loss| Step { epoch: 1, step, loss };
        for (text, expected) in [
            (status(&step(0, 0.5), 20, None, None), "epoch 2/20  step 1  loss 0.5000"),
            (
                status(&step(11, 12.345), 20, Some(48), Some(8.)),
                "epoch 2/20  [======>                 ] 12/48  loss 12.35  8.000 steps/s  4.5 s left",
            ),
            (
                status(&step(47, f64::NAN), 2, Some(48), Some(0.25)),
                "epoch 2/2  [========================] 48/48  loss NaN  0.2500 steps/s  0.0 s left",
            ),
            // More steps than were expected.
            (
                status(&step(48, 1e-9), 2, Some(48), Some(1e6)),
                "epoch 2/2  [========================] 49/48  loss 1.000e-9  1.000e6 steps/s",
            ),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn an_epoch_is_one_line() {
        let epoch =
            Epoch { epoch: 2, steps: 8, loss: 0.25, validation_loss: Some(-1234.), learning_rate: 0.1 };
        assert_eq!(
            summary(&epoch, 3, Some(75.)),
            "epoch 3/3: 8 steps, loss 0.2500, validation loss -1234, 1:15 min"
        );
        let epoch = Epoch { epoch: 0, steps: 1, validation_loss: None, ..epoch };
        assert_eq!(summary(&epoch, 3, None), "epoch 1/3: 1 step, loss 0.2500");
        assert_eq!([9.96, 12., 7300.].map(duration), ["10.0 s", "12 s", "2:01 h"]);
    }
}
