//! The operation that collects consecutive elements in windows, which may overlap.

use super::group_by_window::grouped;
use super::kept::{GroupFn, Groups, InnerStage, first_spec, on_groups};
use super::window_stage::{WindowStage, windows};
use crate::error::at_least_one;
use crate::pipeline::{self, Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::room::fits;
use crate::stage::Stage;
use crate::{Cardinality, Cause, Dataset, ElementSpec, Result};
use distribute_tensor::Nest;
use std::marker::PhantomData;

impl<T: Nest> Dataset<T> {
    /// Collects consecutive elements in windows of `size` elements. By default windows do not overlap, and the last one
    /// contains the remaining elements. The methods of [`Windows`] change this, and create a dataset from the windows.
    /// A size, shift or stride of 0 gives [`Error::Parameter`](crate::Error::Parameter) in the pass.
    ///
    /// Up to `(size - 1) * stride + 1` elements are in memory at the same time. The elements of windows that overlap
    /// are read once, and their tensors are shared.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let steps = Dataset::range(6).window(3).shift(1).drop_remainder().batch();
    /// let steps: Vec<_> = steps.iter().map(|step| step.unwrap().to_vec::<i64>().unwrap()).collect();
    /// assert_eq!(steps, [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]);
    /// ```
    #[doc(alias = "tf.data.Dataset.window")]
    pub fn window(&self, size: usize) -> Windows<T> {
        let window = Window { input: self.pipeline().clone(), size, shift: None, stride: 1, exact: false };
        Windows { window, elements: PhantomData }
    }
}

/// The windows of a dataset, returned by [`Dataset::window`].
///
/// A window is a dataset, so windows become elements by [`batch`](Windows::batch), or by a function that creates a
/// dataset from each.
#[must_use = "windows are not elements: call `batch` or `flat_map`"]
pub struct Windows<T> {
    window: Window,
    elements: PhantomData<fn() -> T>,
}

impl<T> std::fmt::Debug for Windows<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Windows<{}> of\n{}{}",
            std::any::type_name::<T>(),
            pipeline::explain(&self.window.input),
            self.window.describe()
        )
    }
}

impl<T: Nest> Windows<T> {
    /// Begins each window `shift` elements after the one before. The default is the size of a window. `shift` must be
    /// at least 1.
    pub fn shift(mut self, shift: usize) -> Self {
        self.window.shift = Some(shift);
        self
    }

    /// Takes every `stride`-th element into a window, which then extends over `(size - 1) * stride + 1` elements.
    /// `stride` must be at least 1, which is the default.
    pub fn stride(mut self, stride: usize) -> Self {
        self.window.stride = stride;
        self
    }

    /// Drops windows with fewer than `size` elements. With a shift of less than the size, several windows at the end of
    /// the dataset may have fewer.
    pub fn drop_remainder(mut self) -> Self {
        self.window.exact = true;
        self
    }

    /// Stacks the elements of each window, along a new axis 0. Each window becomes one element, which is usually one
    /// example: batch these elements for training.
    ///
    /// Elements of a window that differ in structure, dtype or shape give [`Error::Stack`](crate::Error::Stack) in
    /// the pass.
    pub fn batch(self) -> Dataset<T::Batch> {
        Dataset::of(self.window)
    }

    /// Maps each window to a dataset, and concatenates these datasets. The argument of `function` is a dataset of
    /// the elements of the window. Passes over these datasets are numbered as in
    /// [`interleave`](Dataset::interleave).
    ///
    /// A panic gives [`Error::Panicked`](crate::Error::Panicked), and an error in one of the datasets gives
    /// [`Error::Inner`](crate::Error::Inner). Both contain the index of the window's first element, and end the
    /// pass. Empty datasets of a repeated dataset are handled as in [`interleave`](Dataset::interleave).
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// // Each number, and the two after it.
    /// let pairs = Dataset::range(4).window(3).shift(1).drop_remainder().flat_map(|window| window.skip(1));
    /// assert_eq!(pairs.iter().collect::<Result<Vec<_>, _>>()?, [1, 2, 2, 3]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    pub fn flat_map<U, F>(self, function: F) -> Dataset<U>
    where
        U: Nest,
        F: Fn(Dataset<T>) -> Dataset<U> + Send + Sync + 'static,
    {
        self.try_flat_map(move |window| Ok::<_, Cause>(function(window)))
    }

    /// Maps windows like [`flat_map`](Windows::flat_map), but `function` may fail. An error of `function` ends the pass
    /// with [`Error::Inner`](crate::Error::Inner).
    pub fn try_flat_map<U, E, F>(self, function: F) -> Dataset<U>
    where
        U: Nest,
        E: Into<Cause>,
        F: Fn(Dataset<T>) -> Result<Dataset<U>, E> + Send + Sync + 'static,
    {
        let function = on_groups("window", move |_key, window| function(window));
        Dataset::of(WindowDatasets { window: self.window, function })
    }
}

/// The operation that yields windows, each as a batch of its elements.
#[derive(Clone)]
struct Window {
    input: Pipeline,
    size: usize,
    /// The number of elements between the beginnings of windows; `None` means the size.
    shift: Option<usize>,
    stride: usize,
    /// Whether windows with fewer elements are dropped.
    exact: bool,
}

impl Window {
    fn shift(&self) -> usize {
        self.shift.unwrap_or(self.size)
    }

    /// Returns the number of elements from the first to the last of a window.
    fn span(&self) -> usize {
        self.size.saturating_sub(1).saturating_mul(self.stride).saturating_add(1)
    }

    fn stage(&self, epoch: u64) -> WindowStage {
        WindowStage::new(self.input.start(epoch), self.shift(), self.stride, self.span(), self.exact)
    }
}

impl Operation for Window {
    one_input!();

    fn describe(&self) -> String {
        let remainder = if self.exact { ", remainder dropped" } else { "" };
        format!("window {}, shift {}, stride {}{remainder}", self.size, self.shift(), self.stride)
    }

    fn cardinality(&self) -> Cardinality {
        let (shift, span) = (self.shift().max(1), self.span());
        self.input.cardinality().map(|n| windows(n, shift, span, self.exact))
    }

    /// Returns [`Batching::Elements`], because a window is usually one example.
    fn batching(&self) -> Batching {
        Batching::Elements
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let full = self.exact || self.input.cardinality() == Cardinality::Infinite;
        Some(self.input.spec(look)?.map(&mut |spec| spec.batched(full.then_some(self.size))))
    }

    fn check(&self) -> Result<()> {
        at_least_one("window", "the size", self.size)?;
        at_least_one("window", "the shift", self.shift())?;
        at_least_one("window", "the stride", self.stride)?;
        fits(
            "window",
            "the number of elements from the first to the last",
            self.span(),
            self.input.cardinality(),
        )
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(self.stage(epoch))
    }
}

/// The operation that concatenates the datasets that a user function creates from windows.
#[derive(Clone)]
struct WindowDatasets {
    window: Window,
    function: GroupFn,
}

impl Operation for WindowDatasets {
    one_input!(window.input);

    fn describe(&self) -> String {
        format!("{}, flat_map", self.window.describe())
    }

    fn cardinality(&self) -> Cardinality {
        grouped(self.window.cardinality())
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let first = || {
            let window = Window { input: pipeline::lean(&self.window.input), ..self.window.clone() };
            Box::new(window.stage(0)) as Box<dyn Groups>
        };
        first_spec(look, &self.function, first, self.window.input.spec(Look::Never))
    }

    fn check(&self) -> Result<()> {
        self.window.check()
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let (windows, known) = (Box::new(self.window.stage(epoch)), self.window.input.spec(Look::Never));
        Box::new(InnerStage::new("window", windows, self.function.clone(), known, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;
    use proptest::prelude::*;

    fn window(n: i64, size: usize, shift: usize, stride: usize, exact: bool) -> Windows<i64> {
        let windows = Dataset::range(n).window(size).shift(shift).stride(stride);
        if exact { windows.drop_remainder() } else { windows }
    }

    /// Checks that window i begins at element `i * shift` and contains every `stride`-th element from there, up to
    /// `size` of them. There is a window for each beginning within the dataset, unless `drop_remainder` drops those
    /// with fewer elements. TensorFlow 2.21 computed the expected values.
    #[test]
    fn windows_begin_after_each_shift_and_take_one_element_of_each_stride() {
        let of_7 = |size, shift, stride, exact| ids(&window(7, size, shift, stride, exact).batch());
        assert_eq!(ids(&Dataset::range(7).window(3).batch()), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        let overlapping = of_7(3, 1, 1, false);
        assert_eq!(overlapping[..5], [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]);
        assert_eq!(overlapping[5..], [vec![5, 6], vec![6]]);
        assert_eq!(of_7(3, 1, 1, true), overlapping[..5]);
        assert_eq!(of_7(3, 2, 2, false), [vec![0, 2, 4], vec![2, 4, 6], vec![4, 6], vec![6]]);
        assert_eq!(of_7(3, 2, 2, true), [[0, 2, 4], [2, 4, 6]]);
        assert_eq!(of_7(3, 1, 2, true), [[0, 2, 4], [1, 3, 5], [2, 4, 6]]);
        assert_eq!(of_7(2, 4, 1, false), [[0, 1], [4, 5]]);
        assert_eq!(of_7(2, 4, 3, false), [vec![0, 3], vec![4]]);
        assert_eq!(of_7(2, 7, 1, false), [[0, 1]]);
        assert_eq!(of_7(2, 1, 5, false)[..3], [vec![0, 5], vec![1, 6], vec![2]]);
        assert_eq!(of_7(2, 1, 5, false).len(), 7);
        assert_eq!(of_7(10, 10, 1, false), [[0, 1, 2, 3, 4, 5, 6]]);
        assert!(of_7(10, 10, 1, true).is_empty());
    }

    proptest! {
        #[test]
        fn windows_are_slices_of_the_elements(
            n in 0i64..30, size in 1usize..6, shift in 1usize..8, stride in 1usize..4, exact: bool, kind in 0usize..3,
            ways in proptest::collection::vec((any::<bool>(), 0usize..5), 1..8), batch in 1usize..4,
        ) {
            let data = match kind {
                0 => Dataset::range(n),
                1 => Dataset::range(n).map(|x| x),
                _ => Dataset::range(n).batch(4).unbatch(),
            };
            let windows = data.window(size).shift(shift).stride(stride);
            let windows = if exact { windows.drop_remainder() } else { windows };
            let all: Vec<i64> = (0..n).collect();
            let expected: Vec<Vec<i64>> = (0..n as usize).step_by(shift)
                .map(|start| all[start..].iter().step_by(stride).take(size).copied().collect())
                .filter(|window: &Vec<i64>| !exact || window.len() == size)
                .collect();
            let data = windows.batch();
            prop_assert_eq!(&ids(&data), &expected);
            if kind < 2 {
                prop_assert_eq!(data.cardinality(), Cardinality::Finite(expected.len()));
            }
            // Windows that are skipped are those that would be read.
            let (mut stage, mut at) = (data.pipeline().start(0), 0);
            for (read, count) in ways {
                if !read {
                    let skipped = stage.skip(count).unwrap();
                    prop_assert_eq!(skipped, count.min(expected.len() - at));
                    at += skipped;
                    if skipped < count {
                        break;
                    }
                } else if let Some(chunk) = stage.next(3) {
                    let value = HostTensor::from_tree(chunk.unwrap().into_values().unwrap().remove(0)).unwrap();
                    prop_assert_eq!(&value.to_vec::<i64>().unwrap(), &expected[at]);
                    at += 1;
                } else {
                    prop_assert_eq!(at, expected.len());
                    break;
                }
            }
            let each = data.map(|window| window.as_slice::<i64>().unwrap().iter().sum::<i64>());
            let windows = Dataset::range(n).window(size).shift(shift).stride(stride);
            let windows = if exact { windows.drop_remainder() } else { windows };
            let inner = windows.flat_map(move |window| window.batch(batch));
            let pieces: Vec<_> = expected.iter().flat_map(|window| window.chunks(batch).map(<[i64]>::to_vec)).collect();
            prop_assert_eq!(ids(&inner), pieces);
            prop_assert_eq!(values(&each), expected.iter().map(|window| window.iter().sum()).collect::<Vec<i64>>());
        }
    }

    #[test]
    fn a_window_of_all_rows_is_the_source() {
        let x = HostTensor::vector(vec![1i64, 2, 3]);
        let windows = Dataset::from_slices(x.clone()).unwrap().window(3);
        for data in [
            windows.shift(1).batch(),
            Dataset::from_slices(x.clone()).unwrap().window(3).flat_map(|w| w.batch(3)),
        ] {
            let window = data.iter().next().unwrap().unwrap();
            assert!(std::ptr::eq(window.as_slice::<i64>().unwrap(), x.as_slice::<i64>().unwrap()), "copied");
        }
    }

    #[test]
    fn specs_are_static_if_all_windows_are_full() {
        let text =
            |data: Dataset<HostTensor>| data.element_spec().unwrap().describe(&|spec| spec.to_string());
        assert_eq!(text(window(7, 3, 1, 1, true).batch()), "int64 [3]");
        assert_eq!(text(window(7, 3, 1, 1, false).batch()), "int64 [?]");
        assert_eq!(text(window(7, 3, 1, 1, true).flat_map(|window| window.batch_exact(3))), "int64 [3]");
        let rows = Dataset::range(9).map(|x| HostTensor::vector(vec![x as f32; 2]));
        assert_eq!(text(rows.window(3).drop_remainder().batch()), "float32 [3, 2]");
        assert_eq!(text(rows.window(3).flat_map(|window| window.map(|x| x).batch(2))), "float32 [?, 2]");
        assert_eq!(window(7, 3, 1, 1, true).batch().batching(), Batching::Elements);
        let endless = Dataset::range(7).repeat_forever().window(3).shift(5);
        assert_eq!(endless.batch().cardinality(), Cardinality::Infinite);
        assert_eq!(window(7, 3, 1, 1, true).flat_map(|window| window).cardinality(), Cardinality::Unknown);
        assert!(
            format!("{:?}", window(7, 3, 1, 2, true))
                .ends_with("window 3, shift 1, stride 2, remainder dropped")
        );
    }

    // INV-13
    #[test]
    fn errors_name_the_windows_first_element() {
        for (size, shift, stride) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
            let data = window(7, size, shift, stride, false).batch();
            assert!(matches!(data.iter().next().unwrap(), Err(Error::Parameter { operation: "window", .. })));
            let data = window(7, size, shift, stride, false).flat_map(|window| window);
            assert!(matches!(data.check(), Err(Error::Parameter { operation: "window", .. })));
        }
        let fails = |window: Dataset<i64>| {
            if window.iter().next().unwrap().unwrap() == 4 { Err("four") } else { Ok(window) }
        };
        let data = window(9, 2, 2, 1, false).try_flat_map(fails);
        let mut pass = data.iter();
        assert_eq!(pass.by_ref().take(4).map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(
            pass.next().unwrap().unwrap_err().to_string(),
            "window: the dataset of element 4 failed: four"
        );
        let panics = window(9, 2, 2, 1, false).flat_map(|window| window.map(|x| 6 / (3 - x)));
        let error = panics.iter().find_map(Result::err).unwrap().to_string();
        assert!(
            error.starts_with("window: the dataset of element 2 failed: the function given to map"),
            "{error}"
        );
        let zero = window(9, 2, 2, 1, false).flat_map(|window| window.batch(0));
        assert!(matches!(zero.iter().next().unwrap(), Err(Error::Inner { index: 0, .. })));
        let ragged =
            Dataset::range(4).map(|n| HostTensor::vector(vec![n; n as usize])).window(2).shift(1).batch();
        assert!(matches!(ragged.iter().next().unwrap(), Err(Error::Stack { batch: 0, elements: 2, .. })));
    }
}
