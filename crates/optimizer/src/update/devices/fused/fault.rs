//! Why a kernel is not used.

/// Why a kernel is not used: candle's operations are made in its place.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    /// The compiler refuses it, or is not there.
    #[error("CUDA's compiler, NVRTC, cannot compile it: {0}")]
    Compile(String),
    /// The device cannot load or run it.
    #[error("the GPU cannot run it: {0}")]
    Run(String),
    /// It gives other numbers than the host.
    #[error("tried with {inputs:?}, its result {result} is {found:?}, and on the host {expected:?}")]
    Differs {
        /// The variable, its gradient and its slots.
        inputs: Vec<f64>,
        /// Which result: the variable, or a slot.
        result: usize,
        /// What the kernel gives.
        found: f64,
        /// What the host gives.
        expected: f64,
    },
}
