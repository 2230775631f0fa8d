//! [`SequenceExample`]: a single sequence example, for writing or inspecting records.

use super::example::{decoded, decoded_name, encoded, encoded_feature};
use super::feature::Feature;
use super::message;
use super::wire::{bytes_field_len, put_bytes_key};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// A sequence example: named features of the complete record (the context), and named lists with one feature for each
/// step of a sequence.
///
/// For training, use [`SequenceFeatures::parse`](super::SequenceFeatures::parse). It parses complete batches of
/// records without creating values of this type.
///
/// ```
/// use distribute_data::example::SequenceExample;
///
/// let video = SequenceExample::new()
///     .with_context("label", 7)
///     .with_list("frames", [[0.0, 0.5], [1.0, 1.5]]);
/// assert_eq!(SequenceExample::decode(&video.encode())?, video);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.train.SequenceExample")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceExample {
    /// The features of the context, by name.
    pub context: BTreeMap<String, Feature>,
    /// The lists by name, each with one feature per step.
    #[doc(alias = "feature_lists")]
    pub lists: BTreeMap<String, Vec<Feature>>,
}

impl SequenceExample {
    /// Creates an example without features or lists.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a feature to the context. Replaces a feature with the same name.
    pub fn with_context(mut self, name: impl Into<String>, feature: impl Into<Feature>) -> Self {
        self.context.insert(name.into(), feature.into());
        self
    }

    /// Adds a list of features, one for each step. Replaces a list with the same name.
    pub fn with_list<F: Into<Feature>>(
        mut self,
        name: impl Into<String>,
        steps: impl IntoIterator<Item = F>,
    ) -> Self {
        self.lists.insert(name.into(), steps.into_iter().map(Into::into).collect());
        self
    }

    /// Encodes the example as a record. Features and lists are ordered by name.
    #[doc(alias = "SerializeToString")]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = encoded(&self.context);
        let mut lists = Vec::new();
        for (name, steps) in &self.lists {
            let steps: Vec<Vec<u8>> = steps.iter().map(encoded_feature).collect();
            let list = steps.iter().map(|step| bytes_field_len(step.len())).sum();
            put_bytes_key(1, bytes_field_len(name.len()) + bytes_field_len(list), &mut lists);
            put_bytes_key(1, name.len(), &mut lists);
            lists.extend_from_slice(name.as_bytes());
            put_bytes_key(2, list, &mut lists);
            for step in steps {
                put_bytes_key(1, step.len(), &mut lists);
                lists.extend(step);
            }
        }
        if !lists.is_empty() {
            put_bytes_key(2, lists.len(), &mut out);
            out.extend(lists);
        }
        out
    }

    /// Decodes a record. A feature of the context without a list of values is skipped. A step without a list of values
    /// is decoded as a feature with no byte strings.
    ///
    /// # Errors
    ///
    /// - [`Error::Example`]: the bytes are not a valid sequence example. The index of the record in the error is
    ///   0.
    #[doc(alias = "FromString")]
    pub fn decode(record: &[u8]) -> Result<Self> {
        let context = super::Example::decode(record)?.features;
        let error = |feature: Option<&str>, what| Error::example(0, feature, what);
        let mut found = Vec::new();
        message::lists(record, |key, list| found.push((key, list)))
            .map_err(|broken| error(None, broken.describe(record)))?;
        let mut lists = BTreeMap::new();
        for (key, list) in found {
            let name = decoded_name(key).map_err(|what| error(None, what))?;
            let in_list = |what| error(Some(&name), what);
            let (mut rest, mut steps) = (list.as_ref(), Vec::new());
            while let Some(step) =
                message::next_feature(&mut rest).map_err(|broken| in_list(broken.describe(record)))?
            {
                steps.push(decoded(step, record).map_err(in_list)?.unwrap_or(Feature::Bytes(Vec::new())));
            }
            lists.insert(name, steps);
        }
        Ok(Self { context, lists })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that two lists do not become one because their names are decoded to the same text.
    #[test]
    fn a_list_whose_name_is_not_utf_8_is_an_error_as_in_the_context() {
        let record = SequenceExample::new().with_list("<", [[1i64]]).with_list(">", [[2i64], [3]]).encode();
        let odd = |byte: u8| match byte {
            b'<' => 0xfe,
            b'>' => 0xff,
            other => other,
        };
        let record: Vec<u8> = record.into_iter().map(odd).collect();
        let error = SequenceExample::decode(&record).unwrap_err().to_string();
        assert_eq!(error, "record 0: the name \"\u{fffd}\" is not UTF-8");
    }
}
