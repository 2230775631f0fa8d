//! Reasons why a kernel is not used.

/// The reason why a kernel is not used and candle's operations are used instead.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    /// The compiler returned an error, or is missing.
    #[error("CUDA's compiler, NVRTC, cannot compile it: {0}")]
    Compile(String),
    /// The device could not load or run the kernel.
    #[error("the GPU cannot run it: {0}")]
    Run(String),
    /// The kernel and the host computed different results.
    #[error(
        "in a trial with {inputs:?}, its result {result} is {found:?}, but on the host it is {expected:?}"
    )]
    Differs {
        /// The inputs: the variable, its gradient and its slots.
        inputs: Vec<f64>,
        /// The index of the result: 0 for the variable, higher for its slots.
        result: usize,
        /// The result that the kernel has computed.
        found: f64,
        /// The result that the host has computed.
        expected: f64,
    },
}
