//! Devices: names, GPUs, and the copies that variables have on devices.

mod copies;
pub(crate) mod gpu;
pub(crate) mod in_candle;
mod name;

pub use copies::{DeviceCopies, Writing};
pub use in_candle::put;
pub use name::{DeviceKind, DeviceName, is_native};
