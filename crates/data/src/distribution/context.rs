//! [`InputContext`]: the argument of a function that creates a dataset.

use crate::{Error, Result};
use std::fmt;

/// The argument of a function that creates the dataset of one input pipeline.
#[doc(alias = "tf.distribute.InputContext")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputContext {
    /// The number of input pipelines: one for each worker, or one for each replica.
    pub num_input_pipelines: usize,
    /// The index of the pipeline for which the dataset is created, from 0.
    pub input_pipeline_id: usize,
    /// The total number of replicas of all workers.
    pub num_replicas_in_sync: usize,
}

impl Default for InputContext {
    fn default() -> Self {
        Self { num_input_pipelines: 1, input_pipeline_id: 0, num_replicas_in_sync: 1 }
    }
}

impl InputContext {
    /// Returns the batch size of one replica, if the global batch size is `global_batch_size`.
    ///
    /// # Errors
    /// - [`Error::NotDivisible`]: the global batch size is not a multiple of the number of replicas, or that number is
    ///   0.
    ///
    /// ```
    /// # use distribute_data::InputContext;
    /// let context = InputContext { num_replicas_in_sync: 4, ..Default::default() };
    /// assert_eq!(context.get_per_replica_batch_size(256)?, 64);
    /// assert!(context.get_per_replica_batch_size(255).is_err());
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.InputContext.get_per_replica_batch_size")]
    pub fn get_per_replica_batch_size(&self, global_batch_size: usize) -> Result<usize> {
        match self.num_replicas_in_sync {
            replicas if replicas > 0 && global_batch_size.is_multiple_of(replicas) => {
                Ok(global_batch_size / replicas)
            }
            replicas => Err(Error::NotDivisible { global: global_batch_size, replicas }),
        }
    }
}

impl fmt::Display for InputContext {
    /// Formats the context, as in `input pipeline id 0, total: 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input pipeline id {}, total: {}", self.input_pipeline_id, self.num_input_pipelines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks IN-1: a global batch size is divided by the number of replicas, or refused if it is not divisible.
    #[test]
    fn a_global_batch_is_divided_or_refused() {
        let context = InputContext { num_replicas_in_sync: 8, ..Default::default() };
        assert_eq!(context.get_per_replica_batch_size(0).unwrap(), 0);
        let error = context.get_per_replica_batch_size(39).unwrap_err().to_string();
        assert!(error.starts_with("the global batch size 39 is not divisible by the 8 replicas"), "{error}");
        assert_eq!(InputContext::default().to_string(), "input pipeline id 0, total: 1");
    }
}
