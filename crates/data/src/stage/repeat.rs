//! The same pass again and again.

use super::Stage;
use crate::Result;
use crate::pipeline::Pipeline;
use crate::run::Run;
use std::sync::Arc;

pub(crate) struct RepeatStage {
    input: Arc<Pipeline>,
    times: Option<usize>,
    first_epoch: u64,
    started: usize,
    current: Option<Box<dyn Stage>>,
    empty: bool,
}

impl RepeatStage {
    /// Repetition `r` of pass `epoch` is epoch `epoch * times + r` of the input, so that going through `repeat(3)`
    /// once shuffles as going three times through the input does. Endless repetitions get 2³² epochs a pass.
    pub(crate) fn new(input: Arc<Pipeline>, times: Option<usize>, epoch: u64) -> Self {
        let first_epoch = epoch.wrapping_mul(times.map_or(1 << 32, |times| times as u64));
        Self { input, times, first_epoch, started: 0, current: None, empty: false }
    }
}

impl Stage for RepeatStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        loop {
            let stage = match &mut self.current {
                Some(stage) => stage,
                // A pass without elements ends an endless repetition, which would never give one.
                none if self.times.is_some_and(|times| self.started >= times) || self.empty => {
                    *none = None;
                    return None;
                }
                none => {
                    let epoch = self.first_epoch.wrapping_add(self.started as u64);
                    self.started = self.started.saturating_add(1);
                    self.empty = true;
                    none.insert(self.input.start(epoch))
                }
            };
            if let Some(run) = stage.next(max) {
                self.empty = false;
                return Some(run);
            }
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::values;

    #[test]
    fn repeats_and_ends() {
        assert_eq!(values(&Dataset::range(2).repeat(3)), [0, 1, 0, 1, 0, 1]);
        assert_eq!(values(&Dataset::range(2).repeat(0)), [0i64; 0]);
        assert_eq!(values(&Dataset::range(2).repeat_forever().take(5)), [0, 1, 0, 1, 0]);
        assert_eq!(values(&Dataset::range(0).repeat_forever()), [0i64; 0]);
        assert_eq!(values(&Dataset::range(3).filter(|_| false).repeat_forever()), [0i64; 0]);
    }

    #[test]
    fn repeating_shuffles_as_iterating_again_does() {
        let shuffled = Dataset::range(20).shuffle(20, 5);
        let epochs: Vec<i64> = (0..6).flat_map(|e| shuffled.epoch(e).map(Result::unwrap)).collect();
        let three = shuffled.repeat(3);
        let twice: Vec<i64> = (0..2).flat_map(|_| values(&three)).collect();
        assert_eq!(twice, epochs);
        assert_eq!(values(&shuffled.repeat_forever().take(120)), epochs);
    }
}
