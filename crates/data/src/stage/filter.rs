//! Some of the elements.

use super::Stage;
use crate::Result;
use crate::pipeline::FilterFn;
use crate::run::{Picks, Run};

pub(crate) struct FilterStage {
    input: Box<dyn Stage>,
    predicate: FilterFn,
    index: usize,
}

impl FilterStage {
    pub(crate) fn new(input: Box<dyn Stage>, predicate: FilterFn) -> Self {
        Self { input, predicate, index: 0 }
    }

    fn keep(&mut self, tree: distribute_tensor::Tree<distribute_tensor::Leaf>) -> Result<bool> {
        let index = self.index;
        self.index += 1;
        (self.predicate)(tree, index)
    }

    /// Rows that are kept stay rows of their source, so that a batch of them is still one gather.
    fn apply(&mut self, run: Run) -> Result<Run> {
        Ok(match run {
            Run::Rows(source, picks) => {
                let mut kept = Vec::new();
                for row in picks.into_list() {
                    if self.keep(source.row(row)?)? {
                        kept.push(row);
                    }
                }
                Run::Rows(source, Picks::List(kept))
            }
            Run::Values(values) => {
                let mut kept = Vec::new();
                for value in values {
                    if self.keep(value.clone())? {
                        kept.push(value);
                    }
                }
                Run::Values(kept)
            }
        })
    }
}

impl Stage for FilterStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        loop {
            let run = self.input.next(max)?;
            match run.and_then(|run| self.apply(run)) {
                Ok(run) if run.len() == 0 => continue,
                result => return Some(result),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Dataset, Error};

    #[test]
    fn filter_keeps_what_the_function_says_and_nothing_is_an_end() {
        let odd = Dataset::range(10).filter(|x| x % 2 == 1);
        assert_eq!(values(&odd), [1, 3, 5, 7, 9]);
        assert_eq!(ids(&odd.batch(3)), [vec![1, 3, 5], vec![7, 9]]);
        assert_eq!(values(&Dataset::range(10).map(|x| x + 1).filter(|x| *x > 8)), [9, 10]);
        assert_eq!(values(&Dataset::range(10).filter(|_| false)), [0i64; 0]);
    }

    #[test]
    fn a_panic_names_the_element() {
        let error = Dataset::range(5).filter(|x| 8 / (2 - x) > 0).iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: "filter", index: 2, .. }), "{error:?}");
    }
}
