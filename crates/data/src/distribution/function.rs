//! [`Function`]: a user's function that creates datasets, one for each input pipeline.

use super::InputContext;
use crate::guard::panic_message;
use crate::plan::layout::Layout;
use crate::{Cause, Dataset, Error, Result};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A user's function, and the datasets that it has created. The function is called once for each context of a layout,
/// unless it fails or two threads request the same dataset at the same time.
pub(super) struct Function<T> {
    make: Box<dyn Fn(InputContext) -> Result<Dataset<T>, Cause> + Send + Sync>,
    made: Mutex<MadeDatasets<T>>,
    /// Whether there is an input pipeline for each replica, rather than for each worker.
    pub(super) per_replica: bool,
}

/// The datasets that were created for one layout. In an elastic job, the datasets for an earlier layout are dropped,
/// because they may keep their data in memory.
struct MadeDatasets<T> {
    layout: Layout,
    all: HashMap<InputContext, Dataset<T>>,
}

impl<T> Function<T> {
    pub(super) fn new(
        per_replica: bool,
        make: impl Fn(InputContext) -> Result<Dataset<T>, Cause> + Send + Sync + 'static,
    ) -> Self {
        let made = MadeDatasets { layout: Layout::one_worker(1), all: HashMap::new() };
        Self { make: Box::new(make), made: Mutex::new(made), per_replica }
    }

    /// Returns the datasets of a worker: one, or one for each of its replicas. Calls the function for those that
    /// have not been created yet.
    pub(super) fn datasets(&self, layout: Layout, worker: usize) -> Result<Vec<Dataset<T>>> {
        let Layout { workers, replicas } = layout;
        let num_replicas_in_sync = layout.total();
        let context = |num_input_pipelines, input_pipeline_id| InputContext {
            num_input_pipelines,
            input_pipeline_id,
            num_replicas_in_sync,
        };
        if self.per_replica {
            (0..replicas)
                .map(|r| self.dataset(layout, context(num_replicas_in_sync, worker * replicas + r)))
                .collect()
        } else {
            Ok(vec![self.dataset(layout, context(workers, worker))?])
        }
    }

    fn dataset(&self, layout: Layout, context: InputContext) -> Result<Dataset<T>> {
        if let Some(dataset) = self.made(layout).all.get(&context) {
            return Ok(dataset.clone());
        }
        // Called without the lock, because the function may use the distribution itself.
        let dataset = catch_unwind(AssertUnwindSafe(|| (self.make)(context)))
            .unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(panic.as_ref())).into()))
            .map_err(|cause| Error::DatasetFunction { context, cause })?;
        Ok(self.made(layout).all.entry(context).or_insert(dataset).clone())
    }

    /// Returns the datasets created so far for a layout. Drops those of any other layout.
    fn made(&self, layout: Layout) -> MutexGuard<'_, MadeDatasets<T>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.layout != layout {
            *made = MadeDatasets { layout, all: HashMap::new() };
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Checks FN-1 and IN-2: for a layout, the function is called once for each input pipeline, and later passes use
    /// the same datasets.
    #[test]
    fn it_is_called_once_for_each_pipeline() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let function = Function::new(true, move |context| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Dataset::range(context.input_pipeline_id as i64))
        });
        let layout = Layout { workers: 2, replicas: 2 };
        for _ in 0..2 {
            let sizes: Vec<_> =
                function.datasets(layout, 1).unwrap().iter().map(|d| d.cardinality().finite()).collect();
            assert_eq!(sizes, [Some(2), Some(3)]);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    // INV-43
    #[test]
    fn a_dataset_of_a_layout_is_dropped_if_the_layout_changes() {
        let data = Arc::new(());
        let kept = data.clone();
        let function = Function::new(false, move |_| {
            let kept = kept.clone();
            Ok(Dataset::range(1).map(move |n| (n, kept.clone()).0))
        });
        let datasets = |workers| function.datasets(Layout { workers, replicas: 1 }, 0).unwrap();
        let used = |_: &[Dataset<i64>]| Arc::strong_count(&data);
        let one = used(&datasets(2));
        assert_eq!((3..9).map(|workers| used(&datasets(workers))).max(), Some(one));
        let first = datasets(2);
        assert_eq!(used(&datasets(3)), one + 1, "who has one keeps it");
        drop(first);
    }

    /// Checks INV-13: an error of the function names the input pipeline and contains the cause, also after a panic.
    #[test]
    fn an_error_or_a_panic_names_the_pipeline() {
        let failing = Function::<i64>::new(false, |context| match context.input_pipeline_id {
            0 => Err("no file".into()),
            _ => panic!("no luck"),
        });
        let layout = Layout { workers: 2, replicas: 1 };
        let text = |worker| failing.datasets(layout, worker).err().map(|error| error.to_string());
        let expected = "the function that makes datasets failed for input pipeline id 0, total: 2: no file";
        assert_eq!(text(0).as_deref(), Some(expected));
        assert!(text(1).unwrap().ends_with("total: 2: it panicked: no luck"));
    }
}
