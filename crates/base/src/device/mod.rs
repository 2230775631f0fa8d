//! Devices: their names, GPUs, and the copies of variables on devices.
//!
//! Weights are variables in CPU memory. A replica on a device with separate memory computes with copies of them.
//! Embedding tables are an exception: unless every replica's device has enough memory for the table, it stays on the
//! host, and layers copy only the rows that they need.
//!
//! Each copy is fresh, stale or dirty ([`Coherent`](crate::coherent::Coherent)). A replica's thread refreshes
//! its copies when a run begins, after a merge call and after a step. If all replicas have a copy, an
//! optimizer writes the copies instead of the variable. The copies are then dirty, and their value is written
//! back before the variable is read or written.
//!
//! Layers use [`is_native`] to check whether this project's own loops can compute with a tensor. If not, they use
//! candle's operations. Replicas also reduce and gather on the host, except with NCCL, whose results stay on the GPUs.
//!
//! | module | contents |
//! |---|---|
//! | `name` | [`DeviceName`], which parses TensorFlow's form and the short form |
//! | `gpu` | the GPUs of this process, each opened once |
//! | `copies` | [`DeviceCopies`]: the copies of one variable |
//! | `candle_write` | writes into candle variables |

pub(crate) mod candle_write;
mod copies;
pub(crate) mod gpu;
mod name;

pub use candle_write::put;
pub use copies::{DeviceCopies, MarkWritten};
pub use name::{DeviceKind, DeviceName, is_native};
