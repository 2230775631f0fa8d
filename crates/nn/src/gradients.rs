//! Gradients of candle's operations for which candle's own backward pass has none or computes them incorrectly.

pub use crate::conv2d::{
    conv_transpose1d_gradients as conv_transpose1d, conv_transpose2d_gradients as conv_transpose2d,
};
pub use crate::conv2d::{conv1d_gradients as conv1d, conv2d_gradients as conv2d};
pub use crate::pool::{avg_pool2d_gradient as avg_pool2d, max_pool2d_gradient as max_pool2d};
pub use crate::scatter::{scatter_input_gradient, scatter_source_gradient};
pub use crate::upsample::{
    bilinear2d_gradient as upsample_bilinear2d, nearest1d_gradient as upsample_nearest1d,
    nearest2d_gradient as upsample_nearest2d,
};
