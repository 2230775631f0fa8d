//! [`Progress`]: the position of a training, a component of its backups and of the state transferred after a failure.

use super::STEP;
use super::history::{self, End, Epoch, History};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Value, Writer};
use distribute_core::{Checkpointed, Restore, Strategy};
use std::sync::Mutex;

/// The position of a training, which is the same on all workers between two steps.
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
    at: Point,
    /// The first position after an update: the number of updates, and the position itself.
    anchor: Option<(u64, Point)>,
}

/// A position in a training.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    /// The number of complete epochs.
    epochs: usize,
    /// The number of complete steps of the next epoch.
    steps: usize,
    /// The sum of the losses of these steps.
    sum: f64,
    /// The reason why the training ended before its last epoch.
    ended: Option<End>,
}

impl Progress {
    pub fn new(strategy: &Strategy, global_batch: usize) -> Self {
        Self { strategy: strategy.clone(), global_batch, state: Mutex::default() }
    }

    /// Returns the number of complete epochs, and of complete steps of the next one.
    pub fn place(&self) -> (usize, usize) {
        let at = lock(&self.state).at;
        (at.epochs, at.steps)
    }

    /// Returns the number of steps of all epochs.
    pub fn steps(&self) -> usize {
        let state = lock(&self.state);
        state.epochs.iter().map(|epoch| epoch.steps).sum::<usize>() + state.at.steps
    }

    /// Marks the position before a batch is taken, or after the steps of an epoch.
    ///
    /// Operations after this position are repeated if a worker fails before the next update.
    pub fn anchor(&self) {
        let updates = self.strategy.updates();
        let mut state = lock(&self.state);
        // Like positions in datasets: keep the first one since an update.
        if state.anchor.is_none_or(|(made, _)| made != updates) {
            state.anchor = Some((updates, state.at));
        }
    }

    /// Counts a step.
    pub fn stepped(&self, loss: f64) {
        let at = &mut lock(&self.state).at;
        at.steps += 1;
        at.sum += loss;
    }

    /// Returns the mean loss of the current epoch so far.
    pub fn loss(&self) -> f64 {
        let at = lock(&self.state).at;
        at.sum / at.steps as f64
    }

    /// Adds a complete epoch.
    pub fn push(&self, epoch: Epoch, ended: Option<End>) {
        let mut state = lock(&self.state);
        state.epochs.push(epoch);
        state.at = Point { epochs: state.epochs.len(), ended, ..Default::default() };
    }

    /// Returns the reason why the training ended before its last epoch, if it has.
    pub fn ended(&self) -> Option<End> {
        lock(&self.state).at.ended
    }

    /// Returns the name of the checkpoint with the best weights.
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
        let values: [(&str, Value); 6] = [
            ("global_batch", self.global_batch.into()),
            ("history", history::to_value(&epochs)),
            ("steps", at.steps.into()),
            ("sum", at.sum.to_bits().into()),
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
            let at = Point { epochs: epochs.len(), steps: count("steps")?, sum, ended };
            let best = get("best")?.as_str().map(String::from);
            Some((count("global_batch")?, State { epochs, best, at, anchor: None }))
        };
        let (global_batch, state) = read().ok_or_else(|| {
            Error::invalid("runner::run", format!("{path} is no backup of a runner; use another folder"))
        })?;
        if global_batch != self.global_batch {
            let reason = format!(
                "{path} is the backup of a training with a global batch of {global_batch}, and this one has {}: its places in the \
                 datasets are counted in batches; train with {global_batch}, or use another folder",
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
