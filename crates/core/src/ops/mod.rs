//! The operations of a strategy, called outside replicas.
//!
//! | module | contents |
//! |---|---|
//! | `run` | begins a step on all workers, and runs a closure once per replica |
//! | `merge` | the call in which all replicas pause while one function runs for all of them |
//! | `reduce` | combines the replicas' values: `reduce` and `gather` |
//! | `reduce_to`, `destinations` | combines values and copies the result to chosen devices |
//! | `update` | updates variables, once per copy |
//! | `values` | values that a strategy creates or takes apart |

mod destinations;
mod merge;
mod reduce;
mod reduce_to;
mod run;
mod update;
mod values;

pub use destinations::Destinations;
pub use update::Contained;
pub use values::ValueContext;
