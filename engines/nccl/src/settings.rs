//! The GPU and the timeout of the setup.

use std::time::Duration;

/// The GPU of a worker, and the time to wait for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The GPU, by CUDA's number. By default the workers of one host take its GPUs in turn: the third of them
    /// takes GPU 2. A worker in a container has its own host, and GPU 0.
    pub gpu: Option<usize>,
    /// The time to wait for the other workers while NCCL is set up. The default is a minute.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { gpu: None, timeout: Duration::from_secs(60) }
    }
}

impl Settings {
    /// Sets the GPU, by CUDA's number.
    pub fn gpu(mut self, gpu: usize) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Sets the time to wait for the other workers.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
