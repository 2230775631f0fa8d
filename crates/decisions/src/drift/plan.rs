//! The selection of the elements that are compared in a step, based on the sizes of the variables.

use std::ops::Range;

/// A plan that splits the elements of all variables into parts of about the same number of bytes.
#[derive(Debug)]
pub struct ComparisonPlan {
    variables: Vec<Extent>,
    bytes: u64,
}

/// The range that a variable occupies in the concatenated bytes of all variables.
#[derive(Debug)]
struct Extent {
    start: u64,
    elements: u64,
    /// The size of one element in bytes.
    bytes: u64,
}

impl ComparisonPlan {
    /// Creates a plan. For each variable, `variables` contains the number of elements and the size of an element in
    /// bytes.
    pub fn new(variables: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut start = 0u64;
        let extent = |(elements, bytes): (usize, usize)| {
            let extent = Extent { start, elements: elements as u64, bytes: bytes.max(1) as u64 };
            start = extent.end();
            extent
        };
        let variables = variables.map(extent).collect();
        Self { variables, bytes: start }
    }

    /// Returns the element ranges in part `number` of `parts`, each with the index of its variable. Every element is in
    /// exactly one part.
    pub fn part(&self, number: u64, parts: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (from, to) = (self.cut(number, parts), self.cut(number + 1, parts));
        let first = self.variables.partition_point(|extent| extent.end() <= from);
        let variables = self.variables.iter().enumerate().skip(first);
        let elements = variables.take_while(move |(_, extent)| extent.start < to);
        elements.map(move |(variable, extent)| (variable, extent.before(from)..extent.before(to)))
    }

    /// Returns the byte offset at which part `number` begins.
    fn cut(&self, number: u64, parts: u64) -> u64 {
        let cut = u128::from(self.bytes) * u128::from(number) / u128::from(parts.max(1));
        u64::try_from(cut).unwrap_or(self.bytes).min(self.bytes)
    }
}

impl Extent {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.elements.saturating_mul(self.bytes))
    }

    /// Returns the number of elements that begin before byte offset `cut`.
    fn before(&self, cut: u64) -> usize {
        cut.saturating_sub(self.start).div_ceil(self.bytes).min(self.elements) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // INV-37
        #[test]
        fn each_element_is_in_one_part(
            sizes in prop::collection::vec((0usize..50, prop::sample::select(vec![1usize, 2, 4, 8, 16])), 0..20),
            parts in 1u64..120,
        ) {
            let plan = ComparisonPlan::new(sizes.iter().copied());
            let mut next = vec![0; sizes.len()];
            for number in 0..parts {
                for (variable, elements) in plan.part(number, parts) {
                    prop_assert_eq!(elements.start, next[variable]);
                    next[variable] = elements.end;
                }
            }
            let elements: Vec<_> = sizes.iter().map(|(elements, _)| *elements).collect();
            prop_assert_eq!(next, elements);
        }

        #[test]
        fn parts_are_of_one_size_but_for_an_element_at_each_end(
            sizes in prop::collection::vec((0usize..5000, prop::sample::select(vec![1usize, 4, 16])), 1..20),
            parts in 1u64..120,
        ) {
            let plan = ComparisonPlan::new(sizes.iter().copied());
            let all: usize = sizes.iter().map(|(elements, bytes)| elements * bytes).sum();
            for number in 0..parts {
                let part: usize = plan.part(number, parts).map(|(variable, e)| e.len() * sizes[variable].1).sum();
                prop_assert!(part <= all.div_ceil(parts as usize) + 2 * 16, "{} of {}", part, all);
            }
        }
    }

    #[test]
    fn sizes_that_cannot_be_overflow_nothing() {
        let plan = ComparisonPlan::new([(usize::MAX, 16), (usize::MAX, 16), (3, 0)].into_iter());
        assert!(plan.part(99, 100).count() <= 3);
        assert_eq!(ComparisonPlan::new(std::iter::empty()).part(0, 100).count(), 0);
    }
}
