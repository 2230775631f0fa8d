//! Gradients of candle's operations that candle's own backward lacks or computes wrongly, for `backward`.

pub use crate::conv2d::{of_conv_transpose1d as conv_transpose1d, of_conv_transpose2d as conv_transpose2d};
pub use crate::conv2d::{of_conv1d as conv1d, of_conv2d as conv2d};
pub use crate::pool::{of_avg_pool2d as avg_pool2d, of_max_pool2d as max_pool2d};
pub use crate::scatter::{of_scattered, scattered_over};
pub use crate::upsample::{
    of_bilinear2d as upsample_bilinear2d, of_nearest1d as upsample_nearest1d,
    of_nearest2d as upsample_nearest2d,
};
