//! Which GPU, and how long to wait.

use std::time::Duration;

/// Which GPU a worker uses, and how long it waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The GPU, by CUDA's number. By default workers of one host take its GPUs in turn: the third of them takes GPU 2. Workers in
    /// containers have hosts of their own, and GPU 0 each.
    pub gpu: Option<usize>,
    /// How long to wait for the other workers while NCCL is set up; a minute by default.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { gpu: None, timeout: Duration::from_secs(60) }
    }
}

impl Settings {
    /// This GPU, by CUDA's number.
    pub fn gpu(mut self, gpu: usize) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// So long a wait for the other workers.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
