//! [`Progress`]: the position of a training run. It is a component of backups, and of the state that is transferred
//! after a failure.

// - **INV-66** The progress of a training run in one call is stored only in its components (`Progress`, datasets,
//   optimizer). A training that resumes from a backup, also within an epoch, or after the loss of a worker, therefore
//   has the same history and weights as one without interruption, bit for bit. Tests: `computing/runner/backups.rs`,
//   `clusters/recovery/runner.rs`.

use super::STEP;
use super::history::{self, End, Epoch, History};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Value, Writer};
use distribute_core::{Checkpointed, Restore, Strategy};
use std::sync::Mutex;

/// The position of a training run. Between two steps it is equal on all workers.
pub(super) struct Progress {
    strategy: Strategy,
    global_batch: usize,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    epochs: Vec<Epoch>,
    /// The name of the checkpoint with the best weights.
    best: Option<String>,
    at: Position,
    /// The position to which a failure returns: the first one after the latest update, with the number of updates
    /// before it. `None` before the first call of [`anchor`](Progress::anchor).
    anchor: Option<(u64, Position)>,
}

/// A position in a training run.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// The number of complete epochs.
    epochs: usize,
    /// The number of complete steps in the current epoch.
    steps: usize,
    /// The sum of the losses of the complete steps in the current epoch.
    sum: f64,
    /// The learning rate of the last step, if it does not follow a schedule.
    rate: Option<f64>,
    /// The reason why training ended before its last epoch; `None` if it did not end early.
    ended: Option<End>,
}

impl Progress {
    pub fn new(strategy: &Strategy, global_batch: usize) -> Self {
        Self { strategy: strategy.clone(), global_batch, state: Mutex::default() }
    }

    /// Returns the number of complete epochs, and the number of complete steps in the current epoch.
    pub fn position(&self) -> (usize, usize) {
        let at = lock(&self.state).at;
        (at.epochs, at.steps)
    }

    /// Returns the total number of complete steps.
    pub fn steps(&self) -> usize {
        let state = lock(&self.state);
        state.epochs.iter().map(|epoch| epoch.steps).sum::<usize>() + state.at.steps
    }

    /// Marks a position to return to. Call this before a batch is taken, and after the last step of an epoch.
    ///
    /// If a worker fails before the next update, everything after this position is repeated. The mark therefore does
    /// not move until there has been an update.
    pub fn anchor(&self) {
        let updates = self.strategy.updates();
        let mut state = lock(&self.state);
        // Like positions in datasets: keep the first one since an update.
        if state.anchor.is_none_or(|(made, _)| made != updates) {
            state.anchor = Some((updates, state.at));
        }
    }

    /// Records a step, and adds its loss to the epoch. `rate` is the learning rate of the step, if it does not follow a
    /// schedule.
    pub fn record_step(&self, loss: f64, rate: Option<f64>) {
        let at = &mut lock(&self.state).at;
        at.steps += 1;
        at.sum += loss;
        at.rate = rate;
    }

    /// Returns the mean loss of the current epoch so far.
    pub fn loss(&self) -> f64 {
        let at = lock(&self.state).at;
        at.sum / at.steps as f64
    }

    /// Returns the learning rate of the last step of the current epoch, if it does not follow a schedule.
    ///
    /// The optimizer's rate may already be that of the next step, which callbacks can set.
    pub fn rate(&self) -> Option<f64> {
        lock(&self.state).at.rate
    }

    /// Adds the results of a complete epoch, and moves to the start of the next one. `ended` is the reason to end
    /// training after the epoch, if there is one.
    pub fn push(&self, epoch: Epoch, ended: Option<End>) {
        let mut state = lock(&self.state);
        state.epochs.push(epoch);
        state.at = Position { epochs: state.epochs.len(), ended, ..Default::default() };
    }

    /// Returns the reason why training ended before its last epoch; `None` if it did not end early.
    pub fn ended(&self) -> Option<End> {
        lock(&self.state).at.ended
    }

    /// Returns the name of the checkpoint with the best weights; `None` if no weights have been saved.
    pub fn best(&self) -> Option<String> {
        lock(&self.state).best.clone()
    }

    pub fn set_best(&self, name: String) {
        lock(&self.state).best = Some(name);
    }

    pub fn history(&self, end: End) -> History {
        History { epochs: lock(&self.state).epochs.clone(), end }
    }
}

impl Checkpointed for Progress {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let State { epochs, best, at, .. } = lock(&self.state).clone();
        let ended = at.ended.and_then(End::name).map_or(Value::Null, Value::from);
        let values: [(&str, Value); 7] = [
            ("global_batch", self.global_batch.into()),
            ("history", history::to_value(&epochs)),
            ("steps", at.steps.into()),
            ("sum", at.sum.to_bits().into()),
            ("rate", at.rate.map(f64::to_bits).map_or(Value::Null, Value::from)),
            ("ended", ended),
            ("best", best.map_or(Value::Null, Value::from)),
        ];
        values.into_iter().for_each(|(key, value)| writer.metadata(format!("{prefix}:{key}"), value));
        writer.metadata(STEP, self.steps());
        Ok(())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let path = from.path().display();
        let get = |key: &str| from.metadata(&format!("{prefix}:{key}"));
        let count = |key| get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let read = || {
            let epochs = history::from_value(get("history")?)?;
            let ended = match get("ended")? {
                Value::Null => None,
                name => Some(End::of_name(name.as_str()?)?),
            };
            let sum = f64::from_bits(get("sum")?.as_u64()?);
            let rate = get("rate")?.as_u64().map(f64::from_bits);
            let at = Position { epochs: epochs.len(), steps: count("steps")?, sum, rate, ended };
            let best = get("best")?.as_str().map(String::from);
            Some((count("global_batch")?, State { epochs, best, at, anchor: None }))
        };
        let (global_batch, state) = read().ok_or_else(|| {
            Error::invalid("runner::run", format!("{path} is not a backup of a runner; use another folder"))
        })?;
        if global_batch != self.global_batch {
            let reason = format!(
                "{path} is the backup of a training with a global batch of {global_batch}, but this one has {}: \
                 positions in datasets are counted in batches; train with {global_batch}, or use another folder",
                self.global_batch
            );
            return Err(Error::invalid("runner::run", reason));
        }
        Ok(Box::new(move || {
            *lock(&self.state) = state;
            Ok(())
        }))
    }

    fn rewind(&self) -> Result<()> {
        let updates = self.strategy.updates();
        let mut state = lock(&self.state);
        if let Some((made, point)) = state.anchor
            && made == updates
        {
            state.at = point;
            state.epochs.truncate(point.epochs);
        }
        Ok(())
    }
}
