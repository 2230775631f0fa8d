//! Tensors in host memory, and nests of tensors.

#[doc(alias = "slice")]
#[doc(inline)]
pub use distribute_tensor::Index;
#[doc(alias = "tf.IndexedSlices")]
#[doc(inline)]
pub use distribute_tensor::IndexedSlices;
#[doc(alias = "tf.nest")]
#[doc(inline)]
pub use distribute_tensor::Nest;
#[doc(alias = "tf.distribute.ReduceOp")]
#[doc(inline)]
pub use distribute_tensor::ReduceOp;
#[doc(alias = "tf.nest")]
#[doc(alias = "nest")]
#[doc(inline)]
pub use distribute_tensor::Tree;
#[doc(inline)]
pub use distribute_tensor::*;
