//! The GPU and the timeout of the setup.

use std::time::Duration;

/// The settings of a worker: its GPU, and the time to wait for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// CUDA's number of the GPU. By default, the workers of a host use its GPUs in order: the third worker uses GPU 2.
    /// A worker in a container has its own host name, and uses GPU 0.
    pub gpu: Option<usize>,
    /// The maximum time to wait for the other workers while NCCL is set up. The default is one minute.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { gpu: None, timeout: Duration::from_secs(60) }
    }
}

impl Settings {
    /// Sets the GPU by CUDA's number.
    pub fn gpu(mut self, gpu: usize) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Sets the maximum time to wait for the other workers.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
