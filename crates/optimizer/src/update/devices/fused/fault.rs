//! The reasons why a kernel is not used.

/// The reason why a kernel is not used, and candle's operations are.
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
        /// The name of the result: the variable, or a slot.
        result: usize,
        /// The result of the kernel.
        found: f64,
        /// The result on the host.
        expected: f64,
    },
}
