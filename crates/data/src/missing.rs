//! The values that replace missing ones.

use distribute_tensor::Element;

/// A value that replaces the missing values of a column: an integer, a float, a boolean or text.
///
/// ```
/// use distribute_data::DefaultValue;
///
/// assert_eq!(DefaultValue::from(-1), DefaultValue::Int(-1));
/// assert_eq!(DefaultValue::from("none"), DefaultValue::Text(b"none".to_vec()));
/// ```
#[doc(alias = "record_defaults")]
#[doc(alias = "column_defaults")]
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultValue {
    /// An integer, for columns of integers and of floats.
    Int(i64),
    /// A number, for columns of floats.
    Float(f64),
    /// A boolean, for columns of booleans.
    Bool(bool),
    /// Text or bytes, for columns of text.
    Text(Vec<u8>),
}

impl DefaultValue {
    /// Converts the value to an integer type.
    ///
    /// # Errors
    /// Returns a message if the value cannot be converted.
    pub(crate) fn int<T: Element + TryFrom<i64>>(&self) -> Result<T, String> {
        match self {
            DefaultValue::Int(value) => T::try_from(*value).map_err(|_| self.refused(T::DTYPE.name())),
            _ => Err(self.refused(T::DTYPE.name())),
        }
    }

    /// Converts the value to a float. Returns a message if it is neither an integer nor a float.
    pub(crate) fn float(&self) -> Result<f64, String> {
        match self {
            DefaultValue::Int(value) => Ok(*value as f64),
            DefaultValue::Float(value) => Ok(*value),
            _ => Err(self.refused("float")),
        }
    }

    /// Converts the value to a boolean. Returns a message if it is not a boolean. Only Parquet files have columns of
    /// booleans.
    #[cfg(any(feature = "parquet", test))]
    pub(crate) fn bool(&self) -> Result<bool, String> {
        match self {
            DefaultValue::Bool(value) => Ok(*value),
            _ => Err(self.refused("bool")),
        }
    }

    /// Converts the value to text. Returns a message if it is not text.
    pub(crate) fn text(&self) -> Result<&[u8], String> {
        match self {
            DefaultValue::Text(value) => Ok(value),
            _ => Err(self.refused("string")),
        }
    }

    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between values. Includes
    /// the kind of the value, for sources whose types are unknown before they are read.
    #[cfg(feature = "parquet")]
    pub(crate) fn identity(&self) -> String {
        match self {
            DefaultValue::Int(value) => format!("int {value}"),
            DefaultValue::Float(value) => format!("float {value:?}"),
            DefaultValue::Bool(value) => format!("bool {value}"),
            DefaultValue::Text(value) => format!("text {value:?}"),
        }
    }

    fn refused(&self, dtype: &str) -> String {
        format!("its default, {self}, is not a value of {dtype}")
    }
}

impl std::fmt::Display for DefaultValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DefaultValue::Int(value) => write!(f, "{value}"),
            DefaultValue::Float(value) => write!(f, "{value:?}"),
            DefaultValue::Bool(value) => write!(f, "{value}"),
            DefaultValue::Text(value) => write!(f, "{:?}", String::from_utf8_lossy(value)),
        }
    }
}

macro_rules! from {
    ($($type:ty, $kind:ident, $convert:expr;)*) => {
        $(impl From<$type> for DefaultValue {
            fn from(value: $type) -> Self { DefaultValue::$kind($convert(value)) }
        })*
    };
}
from! {
    i32, Int, i64::from;
    i64, Int, std::convert::identity;
    f32, Float, f64::from;
    f64, Float, std::convert::identity;
    bool, Bool, std::convert::identity;
    &str, Text, |text: &str| text.as_bytes().to_vec();
    String, Text, String::into_bytes;
    &[u8], Text, <[u8]>::to_vec;
    Vec<u8>, Text, std::convert::identity;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_of_the_type_of_its_column_or_refused() {
        assert_eq!(DefaultValue::from(7).int::<u8>(), Ok(7));
        assert_eq!(DefaultValue::from(7).float(), Ok(7.0));
        let negative = DefaultValue::from(-1).int::<u8>().unwrap_err();
        assert_eq!(negative, "its default, -1, is not a value of uint8");
        assert!(DefaultValue::from(0.5).int::<i64>().is_err() && DefaultValue::from(0).bool().is_err());
        assert_eq!(DefaultValue::from("x").text(), Ok(&b"x"[..]));
        assert!(DefaultValue::from("x").float().unwrap_err().contains("\"x\""));
    }
}
