//! A function applied to every element.

use super::Stage;
use crate::Result;
use crate::pipeline::MapFn;
use crate::run::Run;

pub(crate) struct MapStage {
    input: Box<dyn Stage>,
    function: MapFn,
    index: usize,
}

impl MapStage {
    pub(crate) fn new(input: Box<dyn Stage>, function: MapFn) -> Self {
        Self { input, function, index: 0 }
    }

    fn apply(&mut self, run: Run) -> Result<Run> {
        let mut mapped = Vec::with_capacity(run.len());
        for tree in run.into_values()? {
            mapped.push((self.function)(tree, self.index)?);
            self.index += 1;
        }
        Ok(Run::Values(mapped))
    }
}

impl Stage for MapStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        let run = self.input.next(max)?;
        Some(run.and_then(|run| self.apply(run)))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::values;
    use crate::{Dataset, Error};
    use distribute_tensor::HostTensor;

    #[test]
    fn map_applies_the_function_in_order() {
        assert_eq!(values(&Dataset::range(4).map(|x| x * x)), [0, 1, 4, 9]);
        let pairs = Dataset::range(2).map(|x| (x, x as f32 / 2.));
        assert_eq!(pairs.iter().map(Result::unwrap).collect::<Vec<_>>(), [(0, 0.), (1, 0.5)]);
        let batch = pairs.batch(2).iter().next().unwrap().unwrap();
        assert_eq!(batch.1.as_slice::<f32>().unwrap(), [0., 0.5]);
    }

    // INV-13
    #[test]
    fn an_error_or_panic_names_the_element_and_ends_the_pass() {
        let data = Dataset::range(10).skip(1).try_map(|x| if x == 3 { Err("three") } else { Ok(x) });
        let mut iter = data.iter().skip(2);
        let error = iter.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Map { index: 2, .. }), "{error:?}");
        assert_eq!(error.to_string(), "map failed at element 2: three");
        assert!(iter.next().is_none());

        let data = Dataset::range(10).map(|x| 10 / (3 - x)).batch(2);
        let error = data.iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: "map", index: 3, .. }), "{error:?}");
        assert_eq!(data.iter().filter(Result::is_ok).count(), 1);
    }

    #[test]
    fn another_type_than_the_dataset_says_is_an_error() {
        let error = Dataset::range(2).typed::<f32>().map(|x| x).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Type { operation: "map", index: 0, .. }), "{error:?}");
        let error = Dataset::range(2).typed::<(HostTensor, i64)>().iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Type { operation: "iterate", index: 0, .. }), "{error:?}");
    }
}
