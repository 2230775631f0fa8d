//! Metadata values: JSON values, and numbers that JSON does not support.

use crate::Value;
use serde_json::{Map, Number};
use std::borrow::Cow;

/// A value that can be stored as metadata of a checkpoint.
///
/// NaN and infinities, which JSON does not support, are stored as text: `"NaN"`, `"inf"`, `"-inf"`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be metadata of a checkpoint",
    note = "numbers, bool, text, lists of them and `distribute_checkpoint::Value` can; make a `Value` of others with serde_json"
)]
pub trait Metadata {
    /// Converts the value to the JSON value that is stored.
    fn into_value(self) -> Value;
}

macro_rules! as_json_has_it {
    ($($type:ty),*) => {
        $(impl Metadata for $type {
            fn into_value(self) -> Value {
                Value::from(self)
            }
        })*
    };
}
as_json_has_it!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize, bool, String, &str, Cow<'_, str>);
as_json_has_it!(Value, Number, Map<String, Value>);

impl Metadata for f64 {
    fn into_value(self) -> Value {
        if self.is_finite() { Value::from(self) } else { Value::from(self.to_string()) }
    }
}

impl Metadata for f32 {
    fn into_value(self) -> Value {
        f64::from(self).into_value()
    }
}

impl<T: Metadata> Metadata for Option<T> {
    fn into_value(self) -> Value {
        self.map_or(Value::Null, T::into_value)
    }
}

impl<T: Metadata> Metadata for Vec<T> {
    fn into_value(self) -> Value {
        self.into_iter().map(T::into_value).collect()
    }
}

impl<T: Metadata + Clone> Metadata for &[T] {
    fn into_value(self) -> Value {
        self.to_vec().into_value()
    }
}

impl<T: Metadata, const N: usize> Metadata for [T; N] {
    fn into_value(self) -> Value {
        self.into_iter().map(T::into_value).collect()
    }
}

/// Returns the number that a stored value represents, including NaN and infinities; `None` if it is not a number.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.parse().ok().filter(|number: &f64| !number.is_finite()),
        value => value.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_json_does_not_have_are_kept_as_text() {
        for (number, kept) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
            assert_eq!(number.into_value(), json!(kept));
            assert_eq!((number as f32).into_value(), json!(kept));
            let read = super::number(&number.into_value()).unwrap();
            assert!(read == number || read.is_nan() && number.is_nan());
        }
        assert_eq!(vec![Some(1.5), None, Some(f64::NAN)].into_value(), json!([1.5, null, "NaN"]));
        assert_eq!([[f32::INFINITY]].into_value(), json!([["inf"]]));
    }

    #[test]
    fn all_else_is_as_json_has_it() {
        assert_eq!((-1i64).into_value(), json!(-1));
        assert_eq!(0.1f64.into_value(), json!(0.1));
        assert_eq!("NaN-free".into_value(), json!("NaN-free"));
        assert_eq!([1u8, 2].as_slice().into_value(), json!([1, 2]));
        assert_eq!(number(&json!("7")), None, "text that was saved as text");
        assert_eq!((number(&json!(7)), number(&json!(null))), (Some(7.), None));
    }
}
