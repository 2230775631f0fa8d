//! The first elements, and all but the first.

use super::Stage;
use crate::Result;
use crate::run::Run;

pub(crate) struct TakeStage {
    input: Box<dyn Stage>,
    left: usize,
}

impl TakeStage {
    pub(crate) fn new(input: Box<dyn Stage>, count: usize) -> Self {
        Self { input, left: count }
    }
}

impl Stage for TakeStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        if self.left == 0 {
            return None;
        }
        let run = self.input.next(max.min(self.left))?;
        if let Ok(run) = &run {
            self.left -= run.len();
        }
        Some(run)
    }
}

pub(crate) struct SkipStage {
    input: Box<dyn Stage>,
    left: usize,
}

/// How many elements are skipped at once: what is skipped is held in memory until it is dropped.
const SKIP_AT_ONCE: usize = 1024;

impl SkipStage {
    pub(crate) fn new(input: Box<dyn Stage>, count: usize) -> Self {
        Self { input, left: count }
    }
}

impl Stage for SkipStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        while self.left > 0 {
            match self.input.next(self.left.min(SKIP_AT_ONCE))? {
                Ok(run) => self.left -= run.len(),
                error => return Some(error),
            }
        }
        self.input.next(max)
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::{ids, values};

    #[test]
    fn take_and_skip() {
        let range = Dataset::range(5);
        assert_eq!(values(&range.take(2)), [0, 1]);
        assert_eq!(values(&range.take(9)), [0, 1, 2, 3, 4]);
        assert_eq!(values(&range.skip(3)), [3, 4]);
        assert_eq!(values(&range.skip(9)), [0i64; 0]);
        assert_eq!(values(&Dataset::range(5000).skip(4998)), [4998, 4999]);
        assert_eq!(ids(&range.batch(2).skip(1).take(1)), [[2, 3]]);
    }

    #[test]
    fn take_asks_for_no_more_than_it_gives() {
        let data = Dataset::range(5).map(|x| if x < 2 { x } else { panic!("asked for {x}") });
        assert_eq!(ids(&data.take(2).batch(10)), [[0, 1]]);
    }

    #[test]
    fn an_error_among_skipped_elements_is_not_skipped() {
        let data = Dataset::range(5).try_map(|x| if x == 1 { Err("one") } else { Ok(x) }).skip(3);
        assert!(data.iter().next().unwrap().is_err());
    }
}
