//! The ground of `distribute`: errors, devices and copies between them, the buckets of gradients.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | what it is |
//! |---|---|
//! | `error` | what went wrong, who did it, what to do; the cause under the layers of a run |
//! | `device` | names of devices, GPUs, the copies that replicas on them compute with |
//! | `coherent` | which copies of a value are fresh, stale or dirty |
//! | `transfer` | tensors between the host and devices, without a wait |
//! | `deposit` | the bucket in which the layers of a replica leave their gradients |
//! | `number`, `scalars`, `known` | f32 and f64; operations of scalars; operations whose result is there |
//! | `random` | numbers drawn by name and position |
//! | `context_kind`, `variable_kinds` | names that errors use |
//! | `lock` | mutexes after a panic |

mod coherent;
mod context_kind;
mod deposit;
mod device;
mod error;
mod known;
mod lock;
mod number;
mod random;
mod scalars;
mod transfer;
mod variable_kinds;

pub use context_kind::ContextKind;
pub use device::{DeviceKind, DeviceName};
pub use error::{Error, Ok, Result};
pub use variable_kinds::{VariableAggregation, VariableSynchronization};

/// The interface for the other crates of `distribute`. It is not public: anything in it may change.
#[doc(hidden)]
pub mod internal {
    pub use crate::coherent::Coherent;
    pub use crate::deposit::{
        Bucket, Dense, Filling, Flat, Layout, Pack, Pool, ReplicaGradient, RowValues, Rows,
    };
    pub use crate::device::{DeviceCopies, Writing, is_native, put};
    pub use crate::error::panicked;
    pub use crate::known::{Known, attach};
    pub use crate::lock::lock;
    pub use crate::number::{Any, Elements, Number, computed_in, operand, with_elements};
    pub use crate::scalars::{choose, sum};
    #[cfg(feature = "cuda")]
    pub use crate::transfer::held;
    pub use crate::transfer::{
        HostTwins, WAITS, by_pinned_memory, from_vec, known_on_host, to_device, to_host,
    };
    pub mod deposit {
        pub use crate::deposit::{collect, device_row_gradient, gradient, is_used, row_gradient};
    }
    pub mod gpu {
        pub use crate::device::gpu::open;
    }
    pub mod in_candle {
        pub use crate::device::in_candle::write;
    }
    pub mod random {
        pub use crate::random::draws;
    }
    pub mod scalars {
        pub use crate::scalars::sum;
    }
}
