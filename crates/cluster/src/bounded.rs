//! The decoding of received bytes, with a limit on the memory that the decoded values occupy.
//!
//! An element of a list may take one byte in a message and a hundred in memory. While a message is decoded, a
//! [`Budget`] counts the memory of all its lists and maps. Decoding fails if they exceed the limit.

// - INV-28: a decoded message takes at most twice its length plus 16 MiB. Tests: `cluster/src/bounded.rs`,
//   `net/src/wire/tests.rs`, `collective/src/group/frame.rs`, `coordinator/src/message.rs`,
//   `ps-server/src/codec/tests.rs`.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use std::cell::Cell;
use std::fmt;

/// The memory in bytes that a decoded message may take in addition to twice its length. It allows for short messages
/// with many small elements.
const CONSTANT: usize = 16 << 20;

/// The maximum length in bytes of a message that can be decoded without a budget. Decoded, such a message occupies at
/// most about 100 kB.
pub const SHORT: usize = 4 << 10;

/// A budget for the memory that the lists and maps of one decoded message may occupy.
///
/// ```
/// use distribute_cluster::bounded::Budget;
/// use serde::de::value::{Error, SeqDeserializer};
///
/// let zeros = |count| SeqDeserializer::<_, Error>::new(std::iter::repeat_n(0u8, count));
/// let count = 10_000; // numbers of one byte each, and eight in memory
/// assert_eq!(Budget::of(count).decode::<Vec<u64>, _>(zeros(count))?.len(), count);
/// let many = 10_000_000;
/// assert!(Budget::of(many).decode::<Vec<u64>, _>(zeros(many)).is_err());
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Budget {
    left: Cell<usize>,
    is_spent: Cell<bool>,
}

impl Budget {
    /// Creates the budget for a message of `bytes` bytes: twice that, plus 16 MiB.
    pub fn of(bytes: usize) -> Self {
        let left = Cell::new(bytes.saturating_mul(2).saturating_add(CONSTANT));
        Self { left, is_spent: Cell::new(false) }
    }

    /// Returns whether decoding failed because the budget was exceeded.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    /// Decodes a value from `from`, and charges the memory of its lists and maps to this budget.
    ///
    /// # Errors
    /// Returns the errors of `from`, and a custom error if lists and maps would exceed the budget.
    pub fn decode<'de, T: serde::Deserialize<'de>, D: Deserializer<'de>>(
        &self,
        from: D,
    ) -> Result<T, D::Error> {
        T::deserialize(Charged::new(from, self))
    }

    fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        // Elements without bytes count as well, because decoding them takes time.
        match self.left.get().checked_sub(bytes.max(1)) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.is_spent.set(true);
                Err(E::custom("it has more elements than a message of its length can have"))
            }
        }
    }
}

/// A wrapper around a deserializer or visitor that charges lists and maps to a budget.
struct Charged<'b, X> {
    inner: X,
    budget: &'b Budget,
    /// Whether the elements belong to a list or map, which may have any length, rather than to a tuple or struct.
    is_list: bool,
}

impl<'b, X> Charged<'b, X> {
    fn new(inner: X, budget: &'b Budget) -> Self {
        Self { inner, budget, is_list: false }
    }

    fn list(inner: X, budget: &'b Budget) -> Self {
        Self { inner, budget, is_list: true }
    }
}

/// Defines methods that call the same method of the inner deserializer, with a visitor that charges the budget.
macro_rules! passed_on {
    ($($method:ident($($argument:ident: $type:ty),*);)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Self::Error> {
            self.inner.$method($($argument,)* Charged::new(visitor, self.budget))
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Charged<'_, D> {
    type Error = D::Error;

    passed_on! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_seq(Charged::list(visitor, self.budget))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(Charged::list(visitor, self.budget))
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Defines methods that pass a value to the same method of the inner visitor.
macro_rules! visited {
    ($($method:ident($type:ty);)+) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )+};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Charged<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visited! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Charged::new(from, self.budget))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Charged::new(from, self.budget))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, all: A) -> Result<V::Value, A::Error> {
        let Self { inner, budget, is_list } = self;
        inner.visit_seq(Charged { inner: all, budget, is_list })
    }

    fn visit_map<A: MapAccess<'de>>(self, all: A) -> Result<V::Value, A::Error> {
        let Self { inner, budget, is_list } = self;
        inner.visit_map(Charged { inner: all, budget, is_list })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, one: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Charged::new(one, self.budget))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Charged<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Charged::new(from, self.budget))
    }
}

/// Returns the number of bytes that an element of a list occupies: twice its size, because lists grow by doubling.
fn size<T>() -> usize {
    2 * size_of::<T>()
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Charged<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let element = self.inner.next_element_seed(Charged::new(seed, self.budget))?;
        if self.is_list && element.is_some() {
            self.budget.take(size::<S::Value>())?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Charged<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let key = self.inner.next_key_seed(Charged::new(seed, self.budget))?;
        if self.is_list && key.is_some() {
            self.budget.take(size::<S::Value>())?;
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let value = self.inner.next_value_seed(Charged::new(seed, self.budget))?;
        if self.is_list {
            self.budget.take(size::<S::Value>())?;
        }
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Charged<'b, A> {
    type Error = A::Error;
    type Variant = Charged<'b, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(Charged::new(seed, self.budget))?;
        Ok((value, Charged::new(variant, self.budget)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Charged<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Charged::new(seed, self.budget))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, Charged::new(visitor, self.budget))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Charged::new(visitor, self.budget))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Part {
        Unit,
        Newtype(Option<Box<Part>>),
        Tuple(u8, String),
        Struct { all: Vec<Part>, by_name: BTreeMap<String, (i64, f32)>, nothing: Vec<()> },
    }

    fn decoded<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
        let mut from = serde_json::Deserializer::from_str(text);
        Budget::of(text.len()).decode(&mut from).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_decoded_as_without_a_budget() {
        let part = Part::Struct {
            all: vec![
                Part::Unit,
                Part::Newtype(Some(Box::new(Part::Tuple(7, "seven".into())))),
                Part::Newtype(None),
            ],
            by_name: [("a".to_owned(), (-1, 0.5)), ("b".to_owned(), (i64::MIN, 1e30))].into(),
            nothing: vec![(), ()],
        };
        let text = serde_json::to_string(&vec![part.clone(), part.clone()]).unwrap();
        assert_eq!(decoded::<Vec<Part>>(&text).unwrap(), [part.clone(), part]);
        assert!(decoded::<Part>("{\"Other\": 1}").unwrap_err().contains("unknown variant"));
    }

    // INV-28
    #[test]
    fn lists_of_small_parts_end_where_they_would_take_more_than_their_bytes_allow() {
        let many = |element: &str, count| format!("[{}]", vec![element; count].join(","));
        type Wide = Vec<Option<[u64; 32]>>;
        assert_eq!(decoded::<Wide>(&many("null", 1_000)).unwrap().len(), 1_000);
        let error = decoded::<Wide>(&many("null", 100_000)).unwrap_err();
        assert!(error.contains("more elements than a message of its length can have"), "{error}");
        // Lists of lists as well.
        let lists = many(&many("null", 1_000), 100);
        assert!(decoded::<Vec<Wide>>(&lists).is_err());
        let numbers = many("1", 1_000_000);
        assert_eq!(decoded::<Vec<u8>>(&numbers).unwrap().len(), 1_000_000);
    }
}
