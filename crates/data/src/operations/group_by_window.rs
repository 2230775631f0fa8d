//! The operation that collects elements with the same key, and creates a dataset from each group.

use super::filter::{ElementFn, on_trees};
use super::kept::{Group, GroupFn, Groups, InnerStage, first_spec, on_groups};
use crate::chunk::{Assembly, Chunk};
use crate::guard::catch_panics;
use crate::pipeline::{self, Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Result};
use distribute_tensor::Nest;
use std::collections::BTreeMap;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Collects elements with the same `key` in groups of `size(key)` elements. `reduce` creates a dataset from each
    /// group, and these datasets are concatenated. The arguments of `reduce` are the key, and a dataset of the
    /// elements of the group. Passes over these datasets are numbered as in [`interleave`](Dataset::interleave).
    ///
    /// A group is passed on when it is full. At the end of this dataset, the remaining groups follow in the order of
    /// their keys, with fewer elements. `size` is called once for each group, at its first element.
    ///
    /// Up to `size(key)` elements of each key are in memory at the same time. So memory is bounded only if the
    /// number of different keys is.
    ///
    /// A panic gives [`Error::Panicked`], an error in one of the datasets gives [`Error::Inner`], and a size of 0
    /// gives [`Error::Parameter`]. All of them end the pass. Empty datasets of a repeated dataset are handled as in
    /// [`interleave`](Dataset::interleave).
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let batches = Dataset::range(7).group_by_window(|x| x % 2, |_key| 3, |_key, group| group.batch(3));
    /// let batches: Vec<_> = batches.iter().map(|batch| batch.unwrap().to_vec::<i64>().unwrap()).collect();
    /// assert_eq!(batches, [vec![0, 2, 4], vec![1, 3, 5], vec![6]]);
    /// ```
    #[doc(alias = "tf.data.Dataset.group_by_window")]
    #[doc(alias = "window_size_func")]
    pub fn group_by_window<U, K, N, F>(&self, key: K, size: N, reduce: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        K: Fn(&T) -> i64 + Send + Sync + 'static,
        N: Fn(i64) -> usize + Send + Sync + 'static,
        F: Fn(i64, Dataset<T>) -> Dataset<U> + Send + Sync + 'static,
    {
        let reduce = move |key, group| Ok::<_, Cause>(reduce(key, group));
        self.try_group_by_window(move |value| Ok::<_, Cause>(key(value)), size, reduce)
    }

    /// Groups elements like [`group_by_window`](Dataset::group_by_window), but `key` and `reduce` may fail. An error of
    /// `key` ends the pass with [`Error::Function`], and one of `reduce` with [`Error::Inner`].
    #[doc(alias = "tf.data.Dataset.group_by_window")]
    pub fn try_group_by_window<U, K, N, F, D, E>(&self, key: K, size: N, reduce: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        D: Into<Cause>,
        E: Into<Cause>,
        K: Fn(&T) -> Result<i64, D> + Send + Sync + 'static,
        N: Fn(i64) -> usize + Send + Sync + 'static,
        F: Fn(i64, Dataset<T>) -> Result<Dataset<U>, E> + Send + Sync + 'static,
    {
        Dataset::of(GroupByWindow {
            input: self.pipeline().clone(),
            grouping: Grouping {
                key: on_trees(OPERATION, key),
                size: Arc::new(move |key, index| catch_panics(OPERATION, index, || size(key))),
            },
            reduce: on_groups(OPERATION, reduce),
        })
    }
}

const OPERATION: &str = "group_by_window";

/// The functions that assign elements to groups.
#[derive(Clone)]
pub(super) struct Grouping {
    pub(super) key: ElementFn<i64>,
    /// The function that returns the number of elements of a full group. Its arguments are the key and the index of the
    /// group's first element.
    pub(super) size: SizeFn,
}

type SizeFn = Arc<dyn Fn(i64, usize) -> Result<usize> + Send + Sync>;

#[derive(Clone)]
struct GroupByWindow {
    input: Pipeline,
    grouping: Grouping,
    reduce: GroupFn,
}

impl Operation for GroupByWindow {
    one_input!();

    fn describe(&self) -> String {
        OPERATION.into()
    }

    fn cardinality(&self) -> Cardinality {
        grouped(self.input.cardinality())
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let first = || {
            let input = pipeline::lean(&self.input).start(0);
            Box::new(GroupStage::new(input, self.grouping.clone())) as Box<dyn Groups>
        };
        first_spec(look, &self.reduce, first, self.input.spec(Look::Never))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let groups = Box::new(GroupStage::new(self.input.start(epoch), self.grouping.clone()));
        let known = self.input.spec(Look::Never);
        Box::new(InnerStage::new(OPERATION, groups, self.reduce.clone(), known, epoch))
    }
}

/// Returns the number of groups of these elements, as far as it is known.
pub(super) fn grouped(elements: Cardinality) -> Cardinality {
    match elements {
        Cardinality::Finite(n) if n > 0 => Cardinality::Unknown,
        other => other,
    }
}

/// A stage that collects elements with the same key.
pub(super) struct GroupStage {
    input: Counted,
    grouping: Grouping,
    /// The groups that are not full, by key.
    open: BTreeMap<i64, Open>,
    ended: bool,
}

/// A group that is not full.
struct Open {
    group: Group,
    size: usize,
    /// The number of complete passes when the first element was read.
    passes: usize,
}

impl GroupStage {
    pub(super) fn new(input: Box<dyn Stage>, grouping: Grouping) -> Self {
        Self { input: Counted::new(input), grouping, open: BTreeMap::new(), ended: false }
    }

    /// Adds an element to its group. Returns the group if it is full now.
    fn add(&mut self, chunk: Chunk) -> Result<Option<Group>> {
        let (chunk, index) = (chunk.assembled()?, self.input.index);
        self.input.index += 1;
        let Some(tree) = chunk.slice(0..1).into_values()?.pop() else { return Ok(None) };
        let key = (self.grouping.key)(tree, index)?;
        let mut open = match self.open.remove(&key) {
            Some(open) => open,
            None => Open {
                group: Group { key, index, elements: Assembly::new(0), indices: Vec::new() },
                size: self.size(key, index)?,
                passes: self.input.input.passes(),
            },
        };
        open.group.indices.push(index);
        open.group.elements.push(chunk.compact()?)?;
        if open.group.elements.len() >= open.size {
            return Ok(Some(open.group));
        }
        self.open.insert(key, open);
        Ok(None)
    }

    fn size(&self, key: i64, index: usize) -> Result<usize> {
        match (self.grouping.size)(key, index)? {
            0 => Err(Error::Parameter {
                operation: OPERATION,
                parameter: "the size of a group",
                found: format!("0 for the key {key}"),
                expected: "at least 1",
            }),
            size => Ok(size),
        }
    }
}

impl Groups for GroupStage {
    fn group(&mut self) -> Result<Option<Group>> {
        while !self.ended {
            match self.input.next(1) {
                Some(chunk) => {
                    if let Some(full) = self.add(chunk?)? {
                        return Ok(Some(full));
                    }
                }
                None => self.ended = true,
            }
        }
        Ok(self.open.pop_first().map(|(_, open)| open.group))
    }

    /// Returns the number of completed passes over the input, except those from which an element is in a group that
    /// is not full.
    fn passes(&self) -> usize {
        self.open.values().map(|open| open.passes).fold(self.input.input.passes(), usize::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;

    fn groups(n: i64, keys: i64, size: usize) -> Vec<Vec<i64>> {
        ids(&Dataset::range(n).group_by_window(move |x| x % keys, move |_| size, |_, group| group.batch(10)))
    }

    /// Checks that a group is reduced when it is full, and that the groups that are not full at the end are reduced in
    /// the order of their keys. TensorFlow 2.21 computed the expected values.
    #[test]
    fn full_groups_come_first_and_the_rest_by_key() {
        assert_eq!(groups(10, 2, 5), [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]);
        assert_eq!(groups(10, 2, 3), [vec![0, 2, 4], vec![1, 3, 5], vec![6, 8], vec![7, 9]]);
        assert_eq!(groups(10, 3, 2), [vec![0, 3], vec![1, 4], vec![2, 5], vec![6, 9], vec![7], vec![8]]);
        assert!(groups(0, 2, 2).is_empty());
        let items = Dataset::from_items([5, 1, 9, 1, 5, 3, -2]);
        let data = items.group_by_window(|x| *x, |_| 3, |_, group| group.batch(5));
        assert_eq!(ids(&data), [vec![-2], vec![1, 1], vec![3], vec![5, 5], vec![9]]);
        let data = Dataset::range(6).group_by_window(|x| -(x % 2), |_| 2, |_, group| group.batch(2));
        assert_eq!(ids(&data), [vec![0, 2], vec![1, 3], vec![5], vec![4]]);
        // The datasets of groups may be shorter, empty or endless.
        let data = Dataset::range(6).group_by_window(|x| x % 2, |_| 2, |key, group| group.take(key as usize));
        assert_eq!(values(&data), [1, 5]);
        let data = Dataset::range(6).group_by_window(|x| x % 2, |_| 2, |_, group| group.repeat_forever());
        assert_eq!(values(&data.take(7)), [0, 2, 0, 2, 0, 2, 0]);
        assert_eq!(data.element_spec(), Dataset::range(6).element_spec());
    }

    /// Checks that the functions receive the key, as `window_size_func` and `reduce_func` do in TensorFlow.
    #[test]
    fn sizes_and_datasets_may_depend_on_the_key() {
        let reduce = |key, group: Dataset<i64>| group.map(move |x| 100 * x + key).batch(2);
        let data = Dataset::range(12).group_by_window(|x| x % 3, |key| 1 + key as usize, reduce);
        let expected = [
            vec![0],
            vec![300],
            vec![101, 401],
            vec![600],
            vec![202, 502],
            vec![802],
            vec![900],
            vec![701, 1001],
            vec![1102],
        ];
        assert_eq!(ids(&data), expected);
        assert_eq!(ids(&data.skip(3).repeat(2)), [&expected[3..], &expected[3..]].concat());
        assert_eq!(data.cardinality(), Cardinality::Unknown);
        assert_eq!(data.element_spec().unwrap().describe(&|spec| spec.to_string()), "int64 [?]");
    }

    /// Checks the batches of groups of rows that are not contiguous in their source.
    #[test]
    fn groups_of_rows_stay_rows() {
        let x = HostTensor::new((0..12).map(|x| x as f32).collect::<Vec<_>>(), [6, 2]).unwrap();
        let odd = |row: &HostTensor| i64::from(row.as_slice::<f32>().unwrap()[0] % 4. == 2.);
        let data = Dataset::from_slices(x).unwrap().group_by_window(odd, |_| 3, |_, group| group.batch(3));
        let batches: Vec<_> = data.iter().map(|batch| batch.unwrap().to_vec::<f32>().unwrap()).collect();
        assert_eq!(batches, [[0., 1., 4., 5., 8., 9.], [2., 3., 6., 7., 10., 11.]]);
    }

    // INV-13
    #[test]
    fn errors_name_the_element() {
        let (size, same) = (|_| 2, |_, group| Ok::<_, &str>(group));
        let data = Dataset::range(9);
        let keys = data.try_group_by_window(|x| if *x == 3 { Err("three") } else { Ok(x % 2) }, size, same);
        let mut pass = keys.iter();
        assert_eq!(pass.by_ref().take(2).map(Result::unwrap).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(
            pass.next().unwrap().unwrap_err().to_string(),
            "group_by_window failed at element 3: three"
        );
        let reduce = |key, group: Dataset<i64>| if key == 1 { Err("odd") } else { Ok(group) };
        let error =
            data.try_group_by_window(|x| Ok::<_, &str>(x % 2), size, reduce).iter().find_map(Result::err);
        assert_eq!(error.unwrap().to_string(), "group_by_window: the dataset of element 1 failed: odd");
        let zero = data.group_by_window(|x| x % 2, |key| 1 - key as usize, |_, group| group);
        let error = zero.iter().find_map(Result::err).unwrap();
        assert_eq!(
            error.to_string(),
            "group_by_window: the size of a group is 0 for the key 1, but must be at least 1"
        );
        let panics = data.group_by_window(|x| 6 / (2 - x), |_| 1, |_, group| group);
        let error = panics.iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: "group_by_window", index: 2, .. }), "{error}");
        let panics = data.group_by_window(|x| x % 2, |key| (1 / (1 - key)) as usize, |_, group| group);
        let error = panics.iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: "group_by_window", index: 1, .. }), "{error}");
    }
}
