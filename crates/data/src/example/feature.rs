//! [`Feature`]: the values of one feature.

use distribute_tensor::DType;
use distribute_tensor::dtype::Buffer;

/// The values of one feature of an example. There may be any number of values, and all are of the same kind.
///
/// ```
/// use distribute_data::example::Feature;
///
/// assert_eq!(Feature::from(7), Feature::Ints(vec![7]));
/// assert_eq!(Feature::from([0.5, 1.5]), Feature::Floats(vec![0.5, 1.5]));
/// assert_eq!(Feature::from("cat"), Feature::Bytes(vec![b"cat".to_vec()]));
/// ```
#[doc(alias = "tf.train.Feature")]
#[derive(Clone, Debug, PartialEq)]
pub enum Feature {
    /// Byte strings.
    #[doc(alias = "tf.train.BytesList")]
    #[doc(alias = "BytesList")]
    Bytes(Vec<Vec<u8>>),
    /// Numbers of `float32`.
    #[doc(alias = "tf.train.FloatList")]
    #[doc(alias = "FloatList")]
    Floats(Vec<f32>),
    /// Numbers of `int64`.
    #[doc(alias = "tf.train.Int64List")]
    #[doc(alias = "Int64List")]
    Ints(Vec<i64>),
}

/// The kind of the values of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Floats,
    Ints,
}

impl Kind {
    /// Returns the name of the kind in the plural, for error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Bytes => "bytes",
            Kind::Floats => "floats",
            Kind::Ints => "ints",
        }
    }

    /// Returns the dtype of a column with values of this kind.
    pub(super) fn dtype(self) -> DType {
        match self {
            Kind::Bytes => DType::String,
            Kind::Floats => DType::F32,
            Kind::Ints => DType::I64,
        }
    }

    /// Returns the number of bytes that a value occupies, not including the bytes of a string.
    pub(super) fn bytes(self) -> usize {
        match self {
            Kind::Bytes => size_of::<Vec<u8>>(),
            Kind::Floats => size_of::<f32>(),
            Kind::Ints => size_of::<i64>(),
        }
    }

    pub(super) fn empty(self) -> Feature {
        match self {
            Kind::Bytes => Feature::Bytes(Vec::new()),
            Kind::Floats => Feature::Floats(Vec::new()),
            Kind::Ints => Feature::Ints(Vec::new()),
        }
    }

    /// Returns a feature with a single value: zero or an empty string.
    pub(super) fn zero(self) -> Feature {
        match self {
            Kind::Bytes => Feature::Bytes(vec![Vec::new()]),
            Kind::Floats => Feature::Floats(vec![0.0]),
            Kind::Ints => Feature::Ints(vec![0]),
        }
    }
}

impl Feature {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Feature::Bytes(values) => values.len(),
            Feature::Floats(values) => values.len(),
            Feature::Ints(values) => values.len(),
        }
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between features with
    /// different kinds or values.
    pub(super) fn identity(&self) -> String {
        match self {
            Feature::Bytes(values) => format!("bytes {values:?}"),
            Feature::Floats(values) => format!("floats {values:?}"),
            Feature::Ints(values) => format!("ints {values:?}"),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Feature::Bytes(_) => Kind::Bytes,
            Feature::Floats(_) => Kind::Floats,
            Feature::Ints(_) => Kind::Ints,
        }
    }

    pub(super) fn into_buffer(self) -> Buffer {
        match self {
            Feature::Bytes(values) => Buffer::String(values),
            Feature::Floats(values) => Buffer::F32(values),
            Feature::Ints(values) => Buffer::I64(values),
        }
    }

    /// Appends the values of another feature, repeated `times` times. Both features must be of the same kind.
    pub(super) fn append(&mut self, other: &Feature, times: usize) {
        fn repeat<T: Clone>(values: &mut Vec<T>, others: &[T], times: usize) {
            match others {
                [one] => values.extend(std::iter::repeat_n(one.clone(), times)),
                others => (0..times).for_each(|_| values.extend_from_slice(others)),
            }
        }
        match (self, other) {
            (Feature::Bytes(values), Feature::Bytes(others)) => repeat(values, others, times),
            (Feature::Floats(values), Feature::Floats(others)) => repeat(values, others, times),
            (Feature::Ints(values), Feature::Ints(others)) => repeat(values, others, times),
            _ => {}
        }
    }
}

macro_rules! from {
    ($($one:ty, $many:ident, $convert:expr;)*) => {
        $(
            impl From<$one> for Feature {
                fn from(value: $one) -> Self { Feature::$many(vec![$convert(value)]) }
            }
            impl From<Vec<$one>> for Feature {
                fn from(values: Vec<$one>) -> Self {
                    Feature::$many(values.into_iter().map($convert).collect())
                }
            }
            impl<const N: usize> From<[$one; N]> for Feature {
                fn from(values: [$one; N]) -> Self {
                    Feature::$many(values.into_iter().map($convert).collect())
                }
            }
        )*
    };
}
from! {
    f32, Floats, std::convert::identity;
    i64, Ints, std::convert::identity;
    &str, Bytes, |text: &str| text.as_bytes().to_vec();
    &[u8], Bytes, <[u8]>::to_vec;
    Vec<u8>, Bytes, std::convert::identity;
}
