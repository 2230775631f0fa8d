//! [`Function`]: a user's function that makes datasets, one for each pipeline.

use super::InputContext;
use crate::guard::panic_message;
use crate::plan::layout::Layout;
use crate::{Cause, Dataset, Error, Result};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function and the datasets it has made. It is called once for each context.
pub(super) struct Function<T> {
    make: Box<dyn Fn(InputContext) -> Result<Dataset<T>, Cause> + Send + Sync>,
    made: Mutex<HashMap<InputContext, Dataset<T>>>,
    /// Whether there is a pipeline for each replica, instead of each worker.
    pub(super) per_replica: bool,
}

impl<T> Function<T> {
    pub(super) fn new(
        per_replica: bool,
        make: impl Fn(InputContext) -> Result<Dataset<T>, Cause> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Box::new(make), made: Mutex::default(), per_replica }
    }

    /// The datasets of a worker: one, or one for each of its replicas.
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
                .map(|r| self.dataset(context(num_replicas_in_sync, worker * replicas + r)))
                .collect()
        } else {
            Ok(vec![self.dataset(context(workers, worker))?])
        }
    }

    fn dataset(&self, context: InputContext) -> Result<Dataset<T>> {
        if let Some(dataset) = self.made().get(&context) {
            return Ok(dataset.clone());
        }
        // Without the lock, since the function may use the distribution itself.
        let dataset = catch_unwind(AssertUnwindSafe(|| (self.make)(context)))
            .unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(panic.as_ref())).into()))
            .map_err(|cause| Error::DatasetFunction { context, cause })?;
        Ok(self.made().entry(context).or_insert(dataset).clone())
    }

    fn made(&self) -> MutexGuard<'_, HashMap<InputContext, Dataset<T>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// FN-1, IN-2
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

    /// INV-13
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
