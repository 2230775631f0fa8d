//! The parsing of records into columns, directly from their bytes.

use super::column::Column;
use super::features::Features;
use super::message;
use crate::{Error, Result};
use distribute_tensor::HostTensor;
use std::borrow::Cow;
use std::collections::BTreeMap;

impl Features {
    /// Parses a batch of records, and returns the columns by name. Each column has one row per record, regardless
    /// of the order of features in a record.
    ///
    /// If a record has a feature twice, the last one is used. Features that were not requested are skipped
    /// without parsing their values.
    ///
    /// # Errors
    ///
    /// - [`Error::Example`]: a record is broken, lacks a feature without a default, or has values of a different
    ///   kind or number, or a column exceeds the [limit](Self::element_limit).
    #[doc(alias = "tf.io.parse_example")]
    pub fn parse<'a, I>(&self, records: I) -> Result<BTreeMap<String, HostTensor>>
    where
        I: IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    {
        let records = records.into_iter();
        let (count, bytes) = records.clone().fold((0, 0), |(n, bytes), r| (n + 1, bytes + r.len()));
        let mut columns: Vec<_> =
            self.wanted.iter().map(|(_, wanted)| Column::new(wanted, self.limit)).collect();
        columns.iter_mut().for_each(|column| column.reserve(count, bytes));
        let mut finder = Finder { features: self, order: Vec::new(), found: Vec::new() };
        for (index, record) in records.enumerate() {
            let error = |feature, what| Error::example(index as u64, feature, what);
            let found = finder.find(record).map_err(|broken| error(None, broken.describe(record)))?;
            for ((column, feature), (name, _)) in columns.iter_mut().zip(found).zip(&self.wanted) {
                column.push(feature.as_deref(), record).map_err(|what| error(Some(name.as_str()), what))?;
            }
        }
        let mut tensors = BTreeMap::new();
        for (column, (name, wanted)) in columns.into_iter().zip(&self.wanted) {
            let last = count.saturating_sub(1) as u64;
            let (tensor, lengths) =
                column.finish(count).map_err(|what| Error::example(last, Some(name), what))?;
            tensors.insert(name.clone(), tensor);
            tensors.extend(wanted.lengths().map(str::to_string).zip(lengths));
        }
        Ok(tensors)
    }

    /// Parses a single record. The tensors have no axis of records.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`parse`](Features::parse).
    #[doc(alias = "tf.io.parse_single_example")]
    pub fn parse_one(&self, record: &[u8]) -> Result<BTreeMap<String, HostTensor>> {
        let columns = self.parse([record])?;
        columns.into_iter().map(|(name, column)| Ok((name, column.row(0)?))).collect()
    }
}

/// A finder of the requested features of a record.
struct Finder<'f, 'a> {
    features: &'f Features,
    /// The names of the features in the previous record, in its order, each with the index of the requested
    /// feature. Most records have the same order, so one comparison usually identifies a feature.
    order: Vec<(&'a [u8], Option<usize>)>,
    /// The last occurrence of each requested feature in this record.
    found: Vec<Option<Cow<'a, [u8]>>>,
}

impl<'a> Finder<'_, 'a> {
    #[inline]
    fn find(&mut self, record: &'a [u8]) -> Result<&[Option<Cow<'a, [u8]>>], super::wire::Broken<'a>> {
        self.found.clear();
        self.found.resize(self.features.wanted.len(), None);
        let mut place = 0;
        message::entries(record, |name, feature| {
            let wanted = match self.order.get(place) {
                Some((known, wanted)) if *known == name => *wanted,
                _ => self.look_up(place, name),
            };
            place += 1;
            if let Some(slot) = wanted.and_then(|wanted| self.found.get_mut(wanted)) {
                *slot = Some(feature);
            }
        })?;
        Ok(&self.found)
    }

    /// Returns the index of the requested feature named `name`; `None` if it was not requested. Also stores the name
    /// and the index, because the next record probably has the feature at the same position.
    fn look_up(&mut self, place: usize, name: &'a [u8]) -> Option<usize> {
        let wanted = self.features.wanted.binary_search_by(|(other, _)| other.as_bytes().cmp(name)).ok();
        match self.order.get_mut(place) {
            Some(known) => *known = (name, wanted),
            None => self.order.push((name, wanted)),
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Example, Feature, FixedLen, VarLen};
    use super::*;
    use distribute_tensor::{DType, Element};

    type Pairs<const N: usize> = [(&'static str, Feature); N];

    fn record<const N: usize>(features: Pairs<N>) -> Vec<u8> {
        Example::from(features).encode()
    }

    fn parse(features: &Features, records: &[Vec<u8>]) -> Result<BTreeMap<String, HostTensor>> {
        features.parse(records.iter().map(Vec::as_slice))
    }

    fn tensor<T: Element>(elements: Vec<T>, shape: impl Into<Vec<usize>>) -> HostTensor {
        HostTensor::new(elements, shape).unwrap()
    }

    #[test]
    fn columns_have_a_row_for_each_record_in_whatever_order_features_are() {
        let features = Features::new()
            .with("x", FixedLen::floats([2, 1]))
            .and_then(|f| f.with("label", FixedLen::ints([])))
            .and_then(|f| f.with("name", FixedLen::bytes([])))
            .unwrap();
        let [x, label, name] =
            [("x", [0.5, 1.5].into()), ("label", (-7).into()), ("name", "cat".into())].map(|f| record([f]));
        let other = record([("other", "?".into()), ("xx", 1.into()), ("", 2.into())]);
        let records = [
            [&x[..], &label, &name].concat(),
            [&name[..], &other, &x, &label].concat(),
            [&label[..], &name, &other, &other, &x].concat(),
        ];
        let columns = parse(&features, &records).unwrap();
        assert_eq!(columns["x"], tensor([0.5f32, 1.5].repeat(3), [3, 2, 1]));
        assert_eq!(columns["label"], tensor(vec![-7i64; 3], [3]));
        assert_eq!(columns["name"], tensor(vec![b"cat".to_vec(); 3], [3]));
        assert_eq!(columns.len(), 3);
        let one = features.parse_one(&records[1]).unwrap();
        assert_eq!(one["x"], tensor(vec![0.5f32, 1.5], [2, 1]));
        assert_eq!(one["label"], HostTensor::scalar(-7i64));
    }

    #[test]
    fn no_records_give_columns_without_rows() {
        let features = Features::new()
            .with("x", FixedLen::floats([3]))
            .and_then(|f| f.with("ids", VarLen::ints().rows([2]).lengths("n")))
            .unwrap();
        let columns = parse(&features, &[]).unwrap();
        assert_eq!(columns["x"], HostTensor::zeros(DType::F32, [0, 3]).unwrap());
        assert_eq!(columns["ids"], HostTensor::zeros(DType::I64, [0, 0, 2]).unwrap());
        assert_eq!(columns["n"], HostTensor::zeros(DType::I64, [0]).unwrap());
    }

    #[test]
    fn a_missing_feature_is_its_default() {
        let features = Features::new()
            .with("a", FixedLen::floats([2]).or([1.0, 2.0]))
            .and_then(|f| f.with("b", FixedLen::bytes([2]).or("?")))
            .and_then(|f| f.with("c", FixedLen::ints([0]).or(5)))
            .unwrap();
        // A feature of no kind is a missing one.
        let no_kind = [&[0x0a, 7, 0x0a, 5, 0x0a, 1, b'a', 0x12, 0][..]].concat();
        let full = record([("a", [3.0, 4.0].into()), ("b", ["x", "y"].into())]);
        let columns =
            parse(&features, &[vec![], full.clone(), no_kind.clone(), [full, no_kind].concat()]).unwrap();
        assert_eq!(columns["a"], tensor(vec![1.0f32, 2.0, 3.0, 4.0, 1.0, 2.0, 1.0, 2.0], [4, 2]));
        let b = ["?", "?", "x", "y", "?", "?", "x", "y"].map(|s| s.as_bytes().to_vec());
        assert_eq!(columns["b"], tensor(b.to_vec(), [4, 2]));
        assert_eq!(columns["c"].dims(), [4, 0]);
    }

    #[test]
    fn values_of_any_number_are_filled_up_to_the_longest() {
        let features = Features::new()
            .with("ids", VarLen::ints().pad(-1).lengths("n"))
            .and_then(|f| f.with("rows", VarLen::floats().rows([2])))
            .and_then(|f| f.with("words", VarLen::bytes().pad("-")))
            .unwrap();
        let records = [
            record([("ids", [1, 2, 3].into()), ("words", "a".into())]),
            record([("rows", [1.0, 2.0, 3.0, 4.0].into())]),
            record([("ids", 4.into()), ("rows", [5.0, 6.0].into()), ("words", ["b", "c"].into())]),
        ];
        let columns = parse(&features, &records).unwrap();
        assert_eq!(columns["ids"], tensor(vec![1i64, 2, 3, -1, -1, -1, 4, -1, -1], [3, 3]));
        assert_eq!(columns["n"], tensor(vec![3i64, 0, 1], [3]));
        let rows = vec![0.0f32, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0];
        assert_eq!(columns["rows"], tensor(rows, [3, 2, 2]));
        let words = ["a", "-", "-", "-", "b", "c"].map(|s| s.as_bytes().to_vec());
        assert_eq!(columns["words"], tensor(words.to_vec(), [3, 2]));
    }

    #[test]
    fn a_mismatch_names_record_and_feature() {
        let features = Features::new()
            .with("x", FixedLen::floats([2]))
            .and_then(|f| f.with("rows", VarLen::ints().rows([2])))
            .unwrap();
        let good = record([("x", [1.0, 2.0].into())]);
        let text = |bad: Vec<u8>| parse(&features, &[good.clone(), bad]).unwrap_err().to_string();
        assert_eq!(
            text(vec![]),
            "record 1, feature 'x': missing, expected floats of shape [2]: a default would replace it"
        );
        assert_eq!(
            text(record([("x", [1.0].into())])),
            "record 1, feature 'x': found 1 floats, expected 2 for shape [2]"
        );
        assert_eq!(
            text(record([("x", [1, 2].into())])),
            "record 1, feature 'x': found ints, expected floats"
        );
        let three = record([("x", [1.0, 2.0].into()), ("rows", [1, 2, 3].into())]);
        assert_eq!(
            text(three),
            "record 1, feature 'rows': found 3 ints, expected a multiple of 2 for rows of shape [2]"
        );
        assert_eq!(text(vec![0x0a, 5]), "record 1: broken at byte 1 of its 2: a length is beyond the end");
        let broken = [0x0a, 12, 0x0a, 10, 0x0a, 1, b'x', 0x12, 5, 0x12, 3, 0x0a, 1, 0];
        assert_eq!(
            text(broken.to_vec()),
            "record 1, feature 'x': broken at byte 13 of its 14: the bytes end within a float"
        );
    }
}
