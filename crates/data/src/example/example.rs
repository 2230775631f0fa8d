//! [`Example`]: a single example, for writing or inspecting records.

use super::feature::Feature;
use super::message;
use super::wire::{bytes_field_len, put_bytes_key, put_varint, varint_len};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// A set of named features: the contents of a record in most TFRecord files.
///
/// For training, use [`Features::parse`](super::Features::parse). It parses complete batches of records without
/// creating values of this type.
///
/// ```
/// use distribute_data::example::Example;
///
/// let example = Example::from([("label", 7.into()), ("pixels", [0.0, 0.5].into()), ("name", "a".into())]);
/// assert_eq!(Example::decode(&example.encode())?, example);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.train.Example")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The features by name.
    pub features: BTreeMap<String, Feature>,
}

impl<K: Into<String>, const N: usize> From<[(K, Feature); N]> for Example {
    fn from(features: [(K, Feature); N]) -> Self {
        features.into_iter().collect()
    }
}

impl<K: Into<String>> FromIterator<(K, Feature)> for Example {
    fn from_iter<I: IntoIterator<Item = (K, Feature)>>(features: I) -> Self {
        Self { features: features.into_iter().map(|(name, feature)| (name.into(), feature)).collect() }
    }
}

impl Example {
    /// Encodes the example as a record. Features are ordered by name, and numbers are packed.
    #[doc(alias = "SerializeToString")]
    pub fn encode(&self) -> Vec<u8> {
        encoded(&self.features)
    }

    /// Decodes a record. A feature without a list of values is skipped. If a name occurs more than once, its last
    /// feature counts.
    ///
    /// # Errors
    ///
    /// - [`Error::Example`]: the bytes are not a valid example. The index of the record in the error is 0.
    #[doc(alias = "FromString")]
    pub fn decode(record: &[u8]) -> Result<Self> {
        let error = |feature: Option<&str>, what| Error::example(0, feature, what);
        let mut found = Vec::new();
        message::entries(record, |key, feature| found.push((key, feature)))
            .map_err(|broken| error(None, broken.describe(record)))?;
        let mut features = BTreeMap::new();
        for (key, feature) in found {
            let name = decoded_name(key).map_err(|what| error(None, what))?;
            match decoded(&feature, record) {
                Ok(Some(feature)) => features.insert(name, feature),
                Ok(None) => features.remove(&name),
                Err(what) => return Err(error(Some(&name), what)),
            };
        }
        Ok(Self { features })
    }
}

/// Encodes features in the form that they have in a record.
pub(super) fn encoded(features: &BTreeMap<String, Feature>) -> Vec<u8> {
    let entries: Vec<_> = features.iter().map(|(name, feature)| Entry::of(name, feature)).collect();
    if entries.is_empty() {
        return Vec::new();
    }
    let len = entries.iter().map(|entry| bytes_field_len(entry.len)).sum();
    let mut out = Vec::with_capacity(bytes_field_len(len));
    put_bytes_key(1, len, &mut out);
    entries.iter().for_each(|entry| entry.put(&mut out));
    out
}

/// Encodes a feature in the form that it has in an entry or a list.
pub(super) fn encoded_feature(feature: &Feature) -> Vec<u8> {
    let mut out = Vec::new();
    Entry::of("", feature).put_feature(&mut out);
    out
}

/// Decodes the name of a feature or a list.
pub(super) fn decoded_name(key: &[u8]) -> Result<String, String> {
    let name = std::str::from_utf8(key).map(str::to_string);
    name.map_err(|_| format!("the name {:?} is not UTF-8", String::from_utf8_lossy(key)))
}

/// Decodes a feature of `record`; `None` if it has no list of values.
pub(super) fn decoded(feature: &[u8], record: &[u8]) -> Result<Option<Feature>, String> {
    let Some((kind, list)) = message::list(feature).map_err(|broken| broken.describe(record))? else {
        return Ok(None);
    };
    let mut values = kind.empty();
    message::values(&list, &mut values).map_err(|broken| broken.describe(record))?;
    Ok(Some(values))
}

/// An entry that is to be encoded. Its sizes are computed first, because each message is preceded by its length.
struct Entry<'a> {
    name: &'a str,
    feature: &'a Feature,
    /// The size of the packed numbers, in bytes.
    packed: usize,
    /// The size of the encoded list, in bytes.
    list: usize,
    len: usize,
}

impl<'a> Entry<'a> {
    fn of(name: &'a str, feature: &'a Feature) -> Self {
        let packed = match feature {
            Feature::Bytes(_) => 0,
            Feature::Floats(values) => 4 * values.len(),
            Feature::Ints(values) => values.iter().map(|value| varint_len(*value as u64)).sum(),
        };
        let list = match feature {
            Feature::Bytes(values) => values.iter().map(|value| bytes_field_len(value.len())).sum(),
            _ if packed == 0 => 0,
            _ => bytes_field_len(packed),
        };
        let len = bytes_field_len(name.len()) + bytes_field_len(bytes_field_len(list));
        Self { name, feature, packed, list, len }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_bytes_key(1, self.len, out);
        put_bytes_key(1, self.name.len(), out);
        out.extend_from_slice(self.name.as_bytes());
        put_bytes_key(2, bytes_field_len(self.list), out);
        self.put_feature(out);
    }

    fn put_feature(&self, out: &mut Vec<u8>) {
        let kind = match self.feature {
            Feature::Bytes(_) => 1,
            Feature::Floats(_) => 2,
            Feature::Ints(_) => 3,
        };
        put_bytes_key(kind, self.list, out);
        if self.packed > 0 {
            put_bytes_key(1, self.packed, out);
        }
        match self.feature {
            Feature::Bytes(values) => {
                for value in values {
                    put_bytes_key(1, value.len(), out);
                    out.extend_from_slice(value);
                }
            }
            Feature::Floats(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
            Feature::Ints(values) => values.iter().for_each(|value| put_varint(*value as u64, out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes a record with a single feature, named `a`, and returns that feature.
    fn decode(feature: &[u8]) -> Result<Option<Feature>> {
        let entry = [&[0x0a, 1, b'a', 0x12, feature.len() as u8][..], feature].concat();
        let features = [&[0x0a, entry.len() as u8][..], &entry].concat();
        let record = [&[0x0a, features.len() as u8][..], &features].concat();
        Example::decode(&record).map(|mut example| example.features.remove("a"))
    }

    #[test]
    fn no_features_are_no_bytes() {
        assert!(Example::default().encode().is_empty());
        assert_eq!(Example::decode(&[]).unwrap(), Example::default());
    }

    #[test]
    fn an_empty_list_has_a_kind_and_no_list_has_none() {
        for kind in [Feature::Bytes(vec![]), Feature::Floats(vec![]), Feature::Ints(vec![])] {
            let example = Example::from([("a", kind)]);
            assert_eq!(Example::decode(&example.encode()).unwrap(), example);
        }
        assert_eq!(decode(&[]).unwrap(), None);
    }

    #[test]
    fn numbers_are_read_side_by_side_and_one_by_one() {
        assert_eq!(decode(&[0x1a, 5, 0x0a, 3, 7, 0x96, 1]).unwrap(), Some([7, 150].into()));
        assert_eq!(decode(&[0x1a, 6, 0x08, 7, 0x0a, 2, 0x96, 1]).unwrap(), Some([7, 150].into()));
        let one = 1.0f32.to_le_bytes();
        let floats = [&[0x12, 11, 0x0d][..], &one, &[0x0a, 4], &one].concat();
        assert_eq!(decode(&floats).unwrap(), Some([1.0, 1.0].into()));
    }

    #[test]
    fn lists_of_one_kind_are_joined_and_another_kind_replaces_them() {
        let (seven, eight, text) = ([0x1a, 2, 0x08, 7], [0x1a, 2, 0x08, 8], [0x0a, 3, 0x0a, 1, b'x']);
        assert_eq!(decode(&[seven, eight].concat()).unwrap(), Some([7, 8].into()));
        assert_eq!(decode(&[&seven[..], &text, &eight].concat()).unwrap(), Some([8].into()));
        assert_eq!(decode(&[&seven[..], &eight, &text].concat()).unwrap(), Some("x".into()));
    }

    #[test]
    fn of_two_entries_with_one_name_the_last_is_meant() {
        let [first, second] = [Example::from([("a", 1.into())]), Example::from([("a", 2.into())])];
        assert_eq!(Example::decode(&[first.encode(), second.encode()].concat()).unwrap(), second);
    }

    #[test]
    fn broken_bytes_are_named() {
        let text = |error: Result<Option<Feature>>| error.unwrap_err().to_string();
        assert_eq!(
            text(decode(&[0x12, 3, 0x0a, 1, 0])),
            "record 0, feature 'a': broken at byte 13 of its 14: the bytes end within a float"
        );
        assert_eq!(
            text(Example::decode(&[0x0a, 9]).map(|_| None)),
            "record 0: broken at byte 1 of its 2: a length is beyond the end"
        );
        let name = Example::decode(&[0x0a, 5, 0x0a, 3, 0x0a, 1, 0xff]);
        assert_eq!(text(name.map(|_| None)), "record 0: the name \"\u{fffd}\" is not UTF-8");
    }

    fn features() -> impl Strategy<Value = Feature> {
        prop_oneof![
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..5).prop_map(Feature::Bytes),
            prop::collection::vec(prop::num::f32::NORMAL, 0..50).prop_map(Feature::Floats),
            prop::collection::vec(any::<(i64, u8)>().prop_map(|(n, b)| n >> (b % 64)), 0..50)
                .prop_map(Feature::Ints),
        ]
    }

    proptest! {
        #[test]
        fn examples_round_trip(features in prop::collection::btree_map(".*", features(), 0..6)) {
            let example = Example { features };
            let record = example.encode();
            prop_assert_eq!(record.len(), record.capacity(), "the size is known before");
            prop_assert_eq!(Example::decode(&record).unwrap(), example);
        }
    }
}
