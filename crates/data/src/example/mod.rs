//! Records that are encoded as `tf.train.Example`: named features, and their conversion to columns of tensors.
//!
//! ```
//! use distribute_data::example::{Example, Features, FixedLen, VarLen};
//!
//! let records = [
//!     Example::from([("x", [1.0, 2.0].into()), ("ids", [7].into()), ("label", 1.into())]).encode(),
//!     Example::from([("x", [3.0, 4.0].into()), ("ids", [8, 9].into())]).encode(),
//! ];
//! let features = Features::new()
//!     .with("x", FixedLen::floats([2]))?
//!     .with("label", FixedLen::ints([]).or(-1))?
//!     .with("ids", VarLen::ints().lengths("ids_len"))?;
//!
//! let columns = features.parse(records.iter().map(Vec::as_slice))?;
//! assert_eq!(columns["x"].dims(), [2, 2]);
//! assert_eq!(columns["label"].as_slice(), Some(&[1i64, -1][..]));
//! assert_eq!(columns["ids"].as_slice(), Some(&[7i64, 0, 8, 9][..])); // [2, 2]
//! assert_eq!(columns["ids_len"].as_slice(), Some(&[1i64, 2][..]));
//! # Ok::<(), distribute_data::Error>(())
//! ```

mod column;
mod error;
#[expect(clippy::module_inception)]
mod example;
mod feature;
mod features;
mod message;
mod parse;
mod sequence;
mod step_column;
mod steps;
mod wire;

#[doc(alias = "tf.train.Example")]
pub use example::Example;
#[doc(alias = "tf.train.Feature")]
pub use feature::Feature;
#[doc(alias = "tf.io.FixedLenFeature")]
#[doc(alias = "FixedLenFeature")]
pub use features::FixedLen;
#[doc(alias = "tf.io.VarLenFeature")]
#[doc(alias = "VarLenFeature")]
#[doc(alias = "tf.io.FixedLenSequenceFeature")]
#[doc(alias = "FixedLenSequenceFeature")]
pub use features::VarLen;
pub use features::{Features, Wanted};
#[doc(alias = "tf.train.SequenceExample")]
pub use sequence::SequenceExample;
pub use steps::SequenceFeatures;
#[doc(alias = "tf.io.FixedLenSequenceFeature")]
#[doc(alias = "tf.io.RaggedFeature")]
pub use steps::Steps;
