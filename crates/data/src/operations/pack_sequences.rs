//! The operation that packs several sequences into rows of one length.

use super::group_by_window::grouped;
use super::pad::{self, pad};
use super::repeat::EmptyPassCounter;
use crate::chunk::{Assembly, Chunk};
use crate::dataset::packed;
use crate::error::at_least_one;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::room::{fits, reserve};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Dataset, ElementSpec, Error, Packed, Packing, Result, TensorSpec};
use distribute_tensor::{DType, HostTensor, Leaf, Nest, Tree};
use std::collections::VecDeque;

impl<T: Nest> Dataset<T> {
    /// Packs sequences of different lengths into rows of one length, so that little of a batch is padding. Axis 0 of
    /// each tensor of an element is the sequence. Each row has the [numbers of its sequences](Packed::segments) and the
    /// [positions](Packed::positions) within them.
    ///
    /// Each sequence is added to the first row that has room for it. If none has, a new row begins. At most
    /// [`open_rows`](Packing::open_rows) rows are filled at the same time: if one more begins, the oldest is passed on.
    /// A full row is passed on immediately. At the end, the remaining rows follow, the oldest first. Sequences of
    /// length 0 are left out.
    ///
    /// A sequence longer than a row gives [`Error::Sequence`], unless long ones are [split](Packing::split_long). An
    /// element whose tensors have different sizes of axis 0 gives [`Error::UnequalRows`], one with a scalar gives
    /// [`Error::Scalar`], one without tensors gives [`Error::NoTensor`], and one with a tensor that is not dense and in
    /// host memory gives [`Error::Pad`]. Sequences of one row that differ in structure, dtype or the other axes give
    /// [`Error::Stack`].
    ///
    /// ```
    /// # use distribute_data::{Dataset, Packing};
    /// # use distribute_tensor::HostTensor;
    /// let sentences = Dataset::from_items([3, 1, 2].map(|n| HostTensor::vector(vec![n as i64; n])));
    /// let rows = sentences.pack_sequences(Packing::new(5)).iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(rows[0].values.to_vec::<i64>()?, [3, 3, 3, 1, 0]);
    /// assert_eq!(rows[0].segments.to_vec::<i64>()?, [1, 1, 1, 2, 0]);
    /// assert_eq!(rows[0].positions.to_vec::<i64>()?, [0, 1, 2, 0, 0]);
    /// assert_eq!(rows[1].values.to_vec::<i64>()?, [2, 2, 0, 0, 0]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "pack_dataset")]
    #[doc(alias = "trim_and_pack_dataset")]
    pub fn pack_sequences(&self, packing: Packing) -> Dataset<Packed<T>> {
        Dataset::of(PackSequences { input: self.pipeline().clone(), packing })
    }
}

const OPERATION: &str = "pack_sequences";

#[derive(Clone)]
struct PackSequences {
    input: Pipeline,
    packing: Packing,
}

impl Operation for PackSequences {
    one_input!();

    fn describe(&self) -> String {
        let Packing { length, open_rows, split_long, .. } = &self.packing;
        let long = if *split_long { ", long ones split" } else { "" };
        format!("{OPERATION}, rows of {length}, {open_rows} at a time{long}")
    }

    fn identity(&self) -> String {
        self.describe() + &pad::identity(&self.packing.padding)
    }

    fn cardinality(&self) -> Cardinality {
        grouped(self.input.cardinality())
    }

    /// Returns [`Batching::Elements`], because a row is one example.
    fn batching(&self) -> Batching {
        Batching::Elements
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let length = Some(self.packing.length);
        let values = self.input.spec(look)?;
        let sequences = values.leaves().iter().all(|leaf| !leaf.dims.is_empty());
        let numbers = || Tree::Leaf(TensorSpec { dtype: DType::I64, dims: vec![length] });
        sequences.then(|| packed(values.map(&mut |leaf| leaf.with_rows(length)), numbers(), numbers()))
    }

    fn check(&self) -> Result<()> {
        at_least_one(OPERATION, "the length", self.packing.length)?;
        at_least_one(OPERATION, "the number of open rows", self.packing.open_rows)?;
        let sequences = self.packing.open_rows.saturating_mul(self.packing.length);
        fits(OPERATION, "the length of all open rows", sequences, self.input.cardinality())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(PackStage {
            input: Counted::new(self.input.start(epoch)),
            packing: self.packing.clone(),
            rows: VecDeque::new(),
            full: VecDeque::new(),
            ended: false,
            empty_passes: EmptyPassCounter::default(),
            number: 0,
        })
    }
}

/// A row that is being filled.
#[derive(Default)]
struct Row {
    sequences: Vec<Tree<Leaf>>,
    lengths: Vec<usize>,
    /// The sum of `lengths`.
    filled: usize,
    /// The index of the element from which the first sequence was created.
    index: usize,
    /// The number of complete passes when the first sequence was read.
    passes: usize,
}

struct PackStage {
    input: Counted,
    packing: Packing,
    /// The rows that are being filled, the oldest first.
    rows: VecDeque<Row>,
    /// The rows to return before another sequence is read.
    full: VecDeque<Row>,
    ended: bool,
    empty_passes: EmptyPassCounter,
    /// The index of the next row.
    number: usize,
}

impl PackStage {
    /// Returns the next row; `None` at the end.
    fn row(&mut self) -> Result<Option<Row>> {
        while self.full.is_empty() && !self.ended {
            match self.input.next(1) {
                Some(chunk) => self.add(chunk?)?,
                None => {
                    self.ended = true;
                    self.full.append(&mut self.rows);
                }
            }
        }
        let row = self.full.pop_front();
        self.number += usize::from(row.is_some());
        Ok(row)
    }

    /// Adds the sequence of an element to a row, or to several if it is longer than a row and may be split.
    fn add(&mut self, chunk: Chunk) -> Result<()> {
        let (index, length) = (self.input.index, self.packing.length);
        self.input.index += 1;
        let Some(tree) = chunk.compact()?.into_values()?.pop() else { return Ok(()) };
        let rows = crate::split::rows(&tree, OPERATION)?;
        if rows == 0 {
            return self.empty_passes.nothing(OPERATION, self.input.input.passes());
        }
        self.empty_passes.found();
        if rows <= length {
            self.place(tree, rows, index);
            return Ok(());
        }
        if !self.packing.split_long {
            return Err(Error::Sequence { index, rows, length });
        }
        for start in (0..rows).step_by(length) {
            let len = length.min(rows - start);
            self.place(tree.narrow_rows(start, len)?, len, index);
        }
        Ok(())
    }

    /// Adds a sequence, of at most the length of a row, to the first row that has room for it.
    fn place(&mut self, sequence: Tree<Leaf>, len: usize, index: usize) {
        let length = self.packing.length;
        let room = self.rows.iter().position(|row| length - row.filled >= len);
        let place = room.unwrap_or_else(|| {
            if self.rows.len() >= self.packing.open_rows {
                self.full.extend(self.rows.pop_front());
            }
            self.rows.push_back(Row { index, passes: self.input.input.passes(), ..Row::default() });
            self.rows.len() - 1
        });
        let Some(row) = self.rows.get_mut(place) else { return };
        row.sequences.push(sequence);
        row.lengths.push(len);
        row.filled += len;
        if row.filled == length {
            self.full.extend(self.rows.remove(place));
        }
    }

    fn pack(&mut self) -> Result<Option<Chunk>> {
        let Some(row) = self.row()? else { return Ok(None) };
        let (length, number, elements) = (self.packing.length, self.number - 1, row.sequences.len());
        let (segments, positions) = numbers(&row.lengths, length)?;
        let joined = Tree::concat_rows(row.sequences);
        let joined = joined.map_err(|source| Error::Stack { batch: number, elements, source })?;
        let sizes = |leaf: &&Leaf| {
            let inner = leaf.dims().len().saturating_sub(1);
            std::iter::once(Some(length)).chain(std::iter::repeat_n(None, inner)).collect()
        };
        let padding = self.packing.padding.clone().sizes(joined.leaves().iter().map(sizes));
        let mut assembly = Assembly::new(number);
        assembly.push(Chunk::one(joined))?;
        let values = pad(OPERATION, &padding, assembly, |_| row.index)?.row(0)?;
        let [segments, positions] = [segments, positions].map(|all| HostTensor::vector(all).into_tree());
        Ok(Some(Chunk::one(packed(values, segments, positions))))
    }
}

/// Returns two vectors with a number for each position of a row: the number of its sequence, and its position in the
/// sequence.
fn numbers(lengths: &[usize], length: usize) -> Result<(Vec<i64>, Vec<i64>)> {
    let (mut segments, mut positions) = (Vec::new(), Vec::new());
    reserve(OPERATION, &mut segments, length)?;
    reserve(OPERATION, &mut positions, length)?;
    for (segment, len) in (1..).zip(lengths) {
        segments.extend(std::iter::repeat_n(segment, *len));
        positions.extend((0i64..).take(*len));
    }
    segments.resize(length, 0);
    positions.resize(length, 0);
    Ok((segments, positions))
}

impl Stage for PackStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.pack().transpose()
    }

    /// Skips rows without concatenating their sequences.
    fn skip(&mut self, count: usize) -> Result<usize> {
        for skipped in 0..count {
            if self.row()?.is_none() {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    /// Returns the number of completed passes over the input, except those from which a sequence is in a row that has
    /// not been returned yet.
    fn passes(&self) -> usize {
        let rows = self.rows.iter().chain(&self.full);
        rows.map(|row| row.passes).fold(self.input.input.passes(), usize::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ids;
    use distribute_testing::watched;
    use proptest::prelude::*;

    fn sequence(start: i64, len: usize) -> HostTensor {
        HostTensor::vector((start..).take(len).collect::<Vec<_>>())
    }

    fn sequences(lengths: &[usize]) -> Dataset<HostTensor> {
        Dataset::from_items((1..).zip(lengths).map(|(i, len)| sequence(100 * i, *len)).collect::<Vec<_>>())
    }

    fn ints(tensor: &HostTensor) -> Vec<i64> {
        tensor.to_vec::<i64>().unwrap()
    }

    fn rows(data: &Dataset<Packed<HostTensor>>) -> Vec<[Vec<i64>; 3]> {
        data.iter()
            .map(Result::unwrap)
            .map(|row| [&row.values, &row.segments, &row.positions].map(ints))
            .collect()
    }

    /// Checks that sequences are added in order, and that a row ends when the next sequence has no room in it.
    /// `trim_and_pack_dataset` of the library seqio does the same; TensorFlow has no such operation.
    #[test]
    fn sequences_follow_each_other_in_rows() {
        let data = sequences(&[3, 1, 2, 0, 5, 4]).pack_sequences(Packing::new(5));
        let expected = [
            [vec![100, 101, 102, 200, 0], vec![1, 1, 1, 2, 0], vec![0, 1, 2, 0, 0]],
            [vec![300, 301, 0, 0, 0], vec![1, 1, 0, 0, 0], vec![0, 1, 0, 0, 0]],
            [vec![500, 501, 502, 503, 504], vec![1; 5], vec![0, 1, 2, 3, 4]],
            [vec![600, 601, 602, 603, 0], vec![1, 1, 1, 1, 0], vec![0, 1, 2, 3, 0]],
        ];
        assert_eq!(rows(&data), expected);
        let batch = data.batch(2).iter().next().unwrap().unwrap();
        assert_eq!((batch.values.dims(), batch.segments.dims()), (&[2, 5][..], &[2, 5][..]));
        assert_eq!(
            data.batch_exact(2).element_spec().unwrap().describe(&|spec| spec.to_string()),
            r#"{"positions": int64 [2, 5], "segments": int64 [2, 5], "values": int64 [2, 5]}"#
        );
    }

    proptest! {
        #[test]
        fn each_row_of_each_sequence_is_in_one_packed_row(
            lengths in proptest::collection::vec(0usize..12, 0..20), length in 1usize..8, open in 1usize..4, skip in 0usize..6,
        ) {
            let packing = Packing::new(length).open_rows(open).split_long().values(-1i64);
            let data = sequences(&lengths).pack_sequences(packing);
            let packed = rows(&data);
            let mut seen = Vec::new();
            for [values, segments, positions] in &packed {
                prop_assert!(values.len() == length && segments[0] == 1);
                for i in 0..length {
                    if segments[i] == 0 {
                        prop_assert_eq!((values[i], positions[i]), (-1, 0));
                        prop_assert!(segments[i..].iter().all(|segment| *segment == 0));
                    } else {
                        let begins = i == 0 || segments[i] == segments[i - 1] + 1;
                        prop_assert_eq!(positions[i], if begins { 0 } else { positions[i - 1] + 1 });
                        prop_assert!(begins || values[i] == values[i - 1] + 1);
                        seen.push(values[i]);
                    }
                }
            }
            seen.sort_unstable();
            let all: Vec<i64> = (1..).zip(&lengths).flat_map(|(i, len)| (100 * i..).take(*len)).collect();
            prop_assert_eq!(seen, all);
            prop_assert_eq!(rows(&data.skip(skip)), &packed[skip.min(packed.len())..]);
        }
    }

    #[test]
    fn open_rows_leave_less_padding() {
        let lengths = [4, 3, 2, 3, 1, 2];
        let rows = |open| {
            ids(&sequences(&lengths).pack_sequences(Packing::new(5).open_rows(open)).map(|row| row.segments))
        };
        assert_eq!(rows(1).len(), 4);
        assert_eq!(rows(3), [vec![1, 1, 1, 2, 2], vec![1, 1, 1, 1, 2], vec![1, 1, 1, 2, 2]]);
        assert_eq!(sequences(&lengths).pack_sequences(Packing::new(5)).batching(), Batching::Elements);
    }

    #[test]
    fn endless_sequences_without_rows_are_an_error() {
        watched(|| {
            let mut rows = sequences(&[0]).repeat_forever().pack_sequences(Packing::new(5)).iter();
            let error = rows.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::EmptyPasses { operation: OPERATION, .. }), "{error}");
        });
    }

    #[test]
    fn all_tensors_of_an_element_are_packed_alike() {
        let pairs = Dataset::range(1..4).map(|n| {
            let len = n as usize;
            (sequence(10 * n, len), HostTensor::new(vec![n as f32; 2 * len], [len, 2]).unwrap())
        });
        let row =
            pairs.pack_sequences(Packing::new(4).values((9i64, 0.5f32))).iter().next().unwrap().unwrap();
        assert_eq!(ints(&row.values.0), [10, 20, 21, 9]);
        assert_eq!(row.values.1, HostTensor::new(vec![1f32, 1., 2., 2., 2., 2., 0.5, 0.5], [4, 2]).unwrap());
        assert_eq!(ints(&row.segments), [1, 2, 2, 0]);
    }

    // INV-13
    #[test]
    fn errors_name_the_element() {
        let fails = |data: Dataset<Packed<HostTensor>>| data.iter().find_map(Result::err).unwrap();
        let error = fails(sequences(&[2, 6]).pack_sequences(Packing::new(5)));
        assert_eq!(
            error.to_string(),
            "pack_sequences: element 1 has 6 rows, more than the 5 of a packed row: use Packing::split_long, or shorten \
             it with `map`"
        );
        let scalars = Dataset::from_items([HostTensor::scalar(1i64)]);
        assert!(matches!(fails(scalars.pack_sequences(Packing::new(5))), Error::Scalar { .. }));
        let mixed = Dataset::from_items([sequence(1, 2), HostTensor::vector(vec![1f32])]);
        assert!(matches!(fails(mixed.pack_sequences(Packing::new(5))), Error::Stack { batch: 0, .. }));
        let values = sequences(&[2]).pack_sequences(Packing::new(5).values(0.5f32));
        assert!(matches!(fails(values), Error::Pad { operation: OPERATION, index: 0, .. }));
        let uneven = Dataset::from_items([(sequence(1, 2), sequence(1, 3))]).pack_sequences(Packing::new(5));
        assert!(matches!(uneven.iter().next().unwrap(), Err(Error::UnequalRows { .. })));
        for packing in [Packing::new(0), Packing::new(5).open_rows(0)] {
            assert!(matches!(sequences(&[]).pack_sequences(packing).check(), Err(Error::Parameter { .. })));
        }
    }
}
