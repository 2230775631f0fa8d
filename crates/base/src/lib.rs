//! The base of `distribute`: errors, devices, transfers between them, and buckets of gradients.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate.
//!
//! | module | contents |
//! |---|---|
//! | `error` | [`Error`], [`Result`]: all errors of `distribute`; finding the cause under the layers that `run` adds |
//! | `device` | [`DeviceName`]; GPUs; the copies of variables on devices |
//! | `coherent` | the state of each copy of a value: fresh, stale or dirty |
//! | `transfer` | copies tensors between the host and devices, without waiting if possible |
//! | `gradients` | the bucket that layers write gradients into |
//! | `precision` | [`MixedPrecision`]: the dtype in which layers compute |
//! | `number`, `scalars`, `precomputed` | f32 and f64; operations on scalars; operations with precomputed results |
//! | `random` | random numbers that depend on a name and a position |
//! | `context_kind`, `variable_kinds` | kinds of contexts and variables, as named in errors |
//! | `lock` | locking a mutex even after a panic |
//!
//! This crate does not depend on strategies.

mod coherent;
mod context_kind;
mod device;
mod error;
mod gradients;
mod lock;
mod number;
mod precision;
mod precomputed;
mod random;
mod scalars;
mod transfer;
mod variable_kinds;

pub use context_kind::ContextKind;
pub use device::{DeviceKind, DeviceName};
pub use error::{Error, ErrorKind, Ok, Result};
pub use precision::MixedPrecision;
pub use variable_kinds::{VariableAggregation, VariableSynchronization};

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    /// The name of the tracing span for a `run`.
    pub const STEP: &str = "step";
    pub use crate::coherent::Coherent;
    pub use crate::device::{DeviceCopies, MarkWritten, is_native, put};
    pub use crate::error::panicked;
    pub use crate::gradients::{
        Bucket, BucketPool, Dense, Layout, Pack, PackCoding, PackWriter, PackedGradients, ReplicaGradient,
        RowValues, Rows,
    };
    pub use crate::lock::lock;
    pub use crate::number::{EitherFloat, Elements, Number, accumulation_dtype, operand, with_elements};
    pub use crate::precomputed::{PrecomputedOp, attach};
    pub use crate::scalars::{choose, sum};
    #[cfg(feature = "cuda")]
    pub use crate::transfer::hold_gpu;
    pub use crate::transfer::{
        DeviceCopier, HostCopies, WAITS, from_vec, host_value, through_pinned_memory, to_device, to_host,
    };
    pub mod gradients {
        pub use crate::gradients::{collect, device_row_gradient, gradient, is_used, row_gradient};
    }
    pub mod gpu {
        pub use crate::device::gpu::open;
    }
    pub mod candle_write {
        pub use crate::device::candle_write::{change_f32, write};
    }
    pub mod random {
        pub use crate::random::draws;
    }
    pub mod scalars {
        pub use crate::scalars::sum;
    }
}
