//! The parsing of sequence examples into columns.

use super::column::padded;
use super::feature::{Feature, Kind};
use super::message;
use super::steps::{SequenceFeatures, Steps};
use crate::file::ElementLimit;
use crate::{Error, Result};
use distribute_tensor::HostTensor;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The columns of a batch, by name.
type Columns = BTreeMap<String, HostTensor>;

impl SequenceFeatures {
    /// Parses a batch of records, and returns the columns of the context and the columns of the lists, by name.
    /// Each column has one row per record.
    ///
    /// # Errors
    ///
    /// - [`Error::Example`]: a record is broken, lacks a feature without a default or a required list, or has
    ///   values of a different kind or number, or a column exceeds the [limit](Self::element_limit).
    #[doc(alias = "tf.io.parse_sequence_example")]
    pub fn parse<'a, I>(&self, records: I) -> Result<(Columns, Columns)>
    where
        I: IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    {
        let records = records.into_iter();
        let context = self.context.parse(records.clone())?;
        let mut columns: Vec<_> =
            self.lists.iter().map(|(name, steps)| (name, StepColumn::new(steps, self.limit))).collect();
        let mut count = 0;
        for (index, record) in records.enumerate() {
            let error = |feature, what| Error::example(index as u64, feature, what);
            let mut found: BTreeMap<&[u8], Cow<'_, [u8]>> = BTreeMap::new();
            message::lists(record, |name, list| drop(found.insert(name, list)))
                .map_err(|broken| error(None, broken.describe(record)))?;
            for (name, column) in &mut columns {
                let list = found.get(name.as_bytes()).map(Cow::as_ref);
                column.push(list, record).map_err(|what| error(Some(name.as_str()), what))?;
            }
            count = index + 1;
        }
        let mut lists = Columns::new();
        for (name, column) in columns {
            let steps = column.steps;
            let last = (count as u64).saturating_sub(1);
            let (values, lengths, step_lengths) =
                column.finish().map_err(|what| Error::example(last, Some(name), what))?;
            lists.insert(name.clone(), values);
            lists.extend(steps.lengths.clone().map(|name| (name, lengths)));
            lists.extend(steps.step_lengths.clone().zip(step_lengths));
        }
        Ok((context, lists))
    }

    /// Parses a single record. The tensors have no axis of records.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`parse`](Self::parse).
    #[doc(alias = "tf.io.parse_single_sequence_example")]
    pub fn parse_one(&self, record: &[u8]) -> Result<(Columns, Columns)> {
        let (context, lists) = self.parse([record])?;
        let row = |columns: Columns| {
            columns.into_iter().map(|(name, column)| Ok((name, column.row(0)?))).collect::<Result<_>>()
        };
        Ok((row(context)?, row(lists)?))
    }
}

/// A column that collects the steps of one list from all records so far.
struct StepColumn<'f> {
    steps: &'f Steps,
    values: Feature,
    /// The number of values up to the end of each step, over all records.
    ends: Vec<usize>,
    /// The number of steps up to the end of each record, over all records.
    records: Vec<usize>,
    limit: ElementLimit,
}

impl<'f> StepColumn<'f> {
    fn new(steps: &'f Steps, limit: ElementLimit) -> Self {
        Self { steps, values: steps.kind.empty(), ends: Vec::new(), records: Vec::new(), limit }
    }

    /// Adds the list of one record; `list` is `None` if the record does not have it. After an error, some of the steps
    /// may remain in the column.
    fn push(&mut self, list: Option<&[u8]>, record: &[u8]) -> Result<(), String> {
        let wanted = self.steps.kind;
        let Some(mut list) = list else {
            if !self.steps.optional {
                let kind = wanted.name();
                return Err(format!(
                    "missing, expected a list of {kind}: `Steps::or_empty` treats it as an empty one"
                ));
            }
            self.records.push(self.ends.len());
            return Ok(());
        };
        let first = self.ends.len();
        while let Some(feature) =
            message::next_feature(&mut list).map_err(|broken| broken.describe(record))?
        {
            let step = self.ends.len() - first;
            self.step(feature, record).map_err(|what| format!("step {step}: {what}"))?;
        }
        self.records.push(self.ends.len());
        Ok(())
    }

    fn step(&mut self, feature: &[u8], record: &[u8]) -> Result<(), String> {
        let wanted = self.steps.kind;
        let before = self.values.len();
        if let Some((kind, list)) = message::list(feature).map_err(|broken| broken.describe(record))? {
            if kind != wanted {
                return Err(format!("found {}, expected {}", kind.name(), wanted.name()));
            }
            let count = message::count(&list, wanted).map_err(|broken| broken.describe(record))?;
            let strings = if wanted == Kind::Bytes { list.len() as u64 } else { 0 };
            let taken = self.values.len().saturating_add(count).saturating_mul(wanted.bytes()) as u64;
            self.limit.check("the column", taken.saturating_add(strings))?;
            message::values(&list, &mut self.values).map_err(|broken| broken.describe(record))?;
        }
        let found = self.values.len() - before;
        if let (Some(size), Some(shape)) = (self.steps.size(), &self.steps.shape)
            && size != found
        {
            return Err(format!("found {found} {}, expected {size} for shape {shape:?}", wanted.name()));
        }
        let steps = (self.ends.len() as u64).saturating_add(1).saturating_mul(size_of::<usize>() as u64);
        self.limit.check("the list of steps", steps)?;
        self.ends.push(self.values.len());
        Ok(())
    }

    /// Returns the column of values, the number of steps of each record and, if requested, the number of values of each
    /// step.
    fn finish(self) -> Result<(HostTensor, HostTensor, Option<HostTensor>), String> {
        let records = self.records.len();
        let lens = differences(&self.records);
        let longest = lens.iter().max().copied().unwrap_or(0);
        let of_steps = differences(&self.ends);
        let most = self.steps.size().unwrap_or_else(|| of_steps.iter().max().copied().unwrap_or(0));
        let inner = self.steps.shape.clone().unwrap_or_else(|| vec![most]);
        let shape = [&[records, longest][..], &inner].concat();
        let cells =
            records.saturating_mul(longest).saturating_mul(most.saturating_mul(self.values.kind().bytes()));
        self.limit.check(&format!("a column of shape {shape:?}"), cells as u64)?;
        let too_large = || format!("a column of shape {shape:?} does not fit into memory");
        let ends: Vec<usize> = self.records.iter().map(|steps| steps * most).collect();
        let values = padded(self.values, &self.ends, most, &self.steps.padding)
            .and_then(|values| padded(values, &ends, longest * most, &self.steps.padding))
            .ok_or_else(too_large)?;
        let tensor = HostTensor::from_buffer(values.into_buffer(), shape.clone())
            .map_err(|error| error.to_string())?;
        let step_lengths = self.steps.step_lengths.as_ref().map(|name| {
            // Steps without values take no memory in the column, but their lengths do.
            let taken = records.saturating_mul(longest).saturating_mul(size_of::<i64>());
            self.limit.check(&format!("column '{name}' of shape [{records}, {longest}]"), taken as u64)?;
            let lens = Feature::Ints(of_steps.iter().map(|len| *len as i64).collect());
            let lens = padded(lens, &self.records, longest, &Feature::Ints(vec![0])).ok_or_else(too_large)?;
            HostTensor::from_buffer(lens.into_buffer(), [records, longest]).map_err(|error| error.to_string())
        });
        let lengths = HostTensor::vector(lens.iter().map(|len| *len as i64).collect::<Vec<_>>());
        Ok((tensor, lengths, step_lengths.transpose()?))
    }
}

/// Returns the lengths of consecutive parts that end at `ends`.
fn differences(ends: &[usize]) -> Vec<usize> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    ends.iter().zip(starts).map(|(end, start)| end - start).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{FixedLen, SequenceExample, VarLen};
    use super::*;

    fn features() -> SequenceFeatures {
        let frames = Steps::floats([2]).lengths("frames_len");
        let words = Steps::ragged_ints().pad(-1).lengths("words_len").step_lengths("word_len");
        SequenceFeatures::new()
            .context("label", FixedLen::ints([]))
            .and_then(|f| f.context("ids", VarLen::ints()))
            .and_then(|f| f.list("frames", frames))
            .and_then(|f| f.list("words", words))
            .unwrap()
    }

    fn parse(features: &SequenceFeatures, records: &[SequenceExample]) -> Result<(Columns, Columns)> {
        let records: Vec<Vec<u8>> = records.iter().map(SequenceExample::encode).collect();
        features.parse(records.iter().map(Vec::as_slice))
    }

    fn first() -> SequenceExample {
        SequenceExample::new()
            .with_context("label", 1)
            .with_list("frames", [[1.0, 2.0], [3.0, 4.0]])
            .with_list("words", [vec![7i64, 8, 9], vec![], vec![5]])
            .with_list("others", ["x"])
    }

    fn second() -> SequenceExample {
        SequenceExample::new()
            .with_context("label", 2)
            .with_context("ids", [4, 5])
            .with_list("frames", [[5.0, 6.0]])
    }

    #[test]
    fn lists_are_filled_up_to_the_longest_and_steps_to_the_one_with_most() {
        let (context, lists) = parse(&features(), &[first(), second()]).unwrap();
        assert_eq!(context["label"].to_vec::<i64>().unwrap(), [1, 2]);
        assert_eq!((context["ids"].dims(), context.len()), (&[2, 2][..], 2));
        assert_eq!(
            lists["frames"],
            HostTensor::new(vec![1f32, 2., 3., 4., 5., 6., 0., 0.], [2, 2, 2]).unwrap()
        );
        assert_eq!(lists["frames_len"].to_vec::<i64>().unwrap(), [2, 1]);
        let words = [7i64, 8, 9, -1, -1, -1, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1];
        assert_eq!(lists["words"], HostTensor::new(words.to_vec(), [2, 3, 3]).unwrap());
        assert_eq!(lists["words_len"].to_vec::<i64>().unwrap(), [3, 0]);
        assert_eq!(lists["word_len"], HostTensor::new(vec![3i64, 0, 1, 0, 0, 0], [2, 3]).unwrap());
        assert_eq!(lists.len(), 5);
        let (_, one) = features().parse_one(&first().encode()).unwrap();
        assert_eq!(
            (one["frames"].dims(), one["word_len"].to_vec::<i64>().unwrap()),
            (&[2, 2][..], vec![3, 0, 1])
        );
        let (_, none) = parse(&features(), &[]).unwrap();
        assert_eq!((none["frames"].dims(), none["words"].dims()), (&[0, 0, 2][..], &[0, 0, 0][..]));
    }

    #[test]
    fn a_mismatch_names_record_list_and_step() {
        let text = |second| parse(&features(), &[first(), second]).unwrap_err().to_string();
        let empty = SequenceExample::new().with_context("label", 3);
        let expected = "record 1, feature 'frames': missing, expected a list of floats: `Steps::or_empty` \
                        treats it as an empty one";
        assert_eq!(text(empty.clone()), expected);
        let short = empty.clone().with_list("frames", [vec![1.0, 2.0], vec![3.0]]);
        assert_eq!(
            text(short),
            "record 1, feature 'frames': step 1: found 1 floats, expected 2 for shape [2]"
        );
        let ints = empty.clone().with_list("frames", [[1, 2]]);
        assert_eq!(text(ints), "record 1, feature 'frames': step 0: found ints, expected floats");
        assert!(text(SequenceExample::new()).starts_with("record 1, feature 'label': missing"));
        let optional = SequenceFeatures::new().list("frames", Steps::floats([2]).or_empty()).unwrap();
        assert_eq!(parse(&optional, &[empty]).unwrap().1["frames"].dims(), [1, 0, 2]);
        let broken = optional.parse([&[0x12, 5][..]]).unwrap_err().to_string();
        assert!(broken.starts_with("record 0: broken at byte 1"), "{broken}");
    }

    #[test]
    fn columns_are_asked_for_once_and_keep_to_the_limit() {
        let again = features().list("frames_len", Steps::ints([])).unwrap_err().to_string();
        assert!(again.contains("'frames_len'"), "{again}");
        assert!(
            features().list("x", Steps::ints([]).pad(0.5)).unwrap_err().to_string().contains("the padding")
        );
        assert!(features().list("x", Steps::ints([usize::MAX, 3])).is_err());
        // One long list makes the others as long.
        let long = SequenceExample::new().with_list("x", vec![[1i64]; 1000]);
        let records: Vec<_> = std::iter::once(long).chain(vec![SequenceExample::new(); 999]).collect();
        let limited =
            SequenceFeatures::new().list("x", Steps::ints([1]).or_empty()).unwrap().element_limit(1 << 20);
        let error = parse(&limited, &records).unwrap_err().to_string();
        assert!(error.contains("a column of shape [1000, 1000, 1] takes more than 1048576 bytes"), "{error}");
        // Steps without values have lengths as well.
        let long = SequenceExample::new().with_list("x", vec![Vec::<i64>::new(); 1000]);
        let records: Vec<_> = std::iter::once(long).chain(vec![SequenceExample::new(); 999]).collect();
        let lengths = SequenceFeatures::new().list("x", Steps::ragged_ints().step_lengths("n")).unwrap();
        let error = parse(&lengths.element_limit(1 << 20), &records).unwrap_err().to_string();
        assert!(error.contains("column 'n' of shape [1000, 1000] takes more than 1048576 bytes"), "{error}");
    }

    /// A record written by Google's protobuf: a label, two frames, and steps of 2, 0 and 1 words.
    const BY_PROTOBUF: &[u8] =
        b"\x0a\x10\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07\x12\x45\x0a\x26\x0a\x06frames\
        \x12\x1c\x0a\x0c\x12\x0a\x0a\x08\0\0\0\x3f\0\0\x80\x3f\x0a\x0c\x12\x0a\x0a\x08\0\0\xc0\x3f\0\0\0\x40\
        \x0a\x1b\x0a\x05words\x12\x12\x0a\x07\x1a\x05\x0a\x03\xac\x02\x08\x0a\0\x0a\x05\x1a\x03\x0a\x01\x05";

    #[test]
    fn records_of_protobuf_are_read_and_written() {
        let (context, lists) = features().parse_one(BY_PROTOBUF).unwrap();
        assert_eq!(context["label"].item::<i64>().unwrap(), 7);
        assert_eq!(lists["frames"], HostTensor::new(vec![0.5f32, 1., 1.5, 2.], [2, 2]).unwrap());
        assert_eq!(lists["words"].to_vec::<i64>().unwrap(), [300, 8, -1, -1, 5, -1]);
        assert_eq!(lists["word_len"].to_vec::<i64>().unwrap(), [2, 0, 1]);
        let example = SequenceExample::decode(BY_PROTOBUF).unwrap();
        assert_eq!(example.lists["words"][1], Feature::Bytes(Vec::new()));
        let same = example.clone().with_list("words", [vec![300i64, 8], vec![5]]).encode();
        assert_eq!(same.len(), BY_PROTOBUF.len() - 2);
        let frames = BY_PROTOBUF.windows(8).position(|bytes| bytes == b"\x0a\x26\x0a\x06fram").unwrap();
        assert_eq!(same[..18], BY_PROTOBUF[..18]);
        assert_eq!(same[20..20 + 40], BY_PROTOBUF[frames..frames + 40]);
    }

    #[test]
    fn sequence_examples_round_trip_and_random_bytes_cause_no_panic() {
        for example in [first(), second(), SequenceExample::new()] {
            let bytes = example.encode();
            assert_eq!(SequenceExample::decode(&bytes).unwrap(), example);
            for cut in 0..bytes.len() {
                let _ = SequenceExample::decode(&bytes[..cut]);
                let _ = features().parse([&bytes[..cut]]);
            }
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0x55;
                let _ = features().parse([&changed[..]]);
            }
        }
    }
}
