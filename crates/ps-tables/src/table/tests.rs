//! Comparison of tables with plain vectors, and of shards with whole tables; many threads at once.

use crate::{
    Error, Halves, Initializer, PartitionStrategy, Push, RowLocation, RowPartition, Table, TableState,
};
use distribute_optim::{
    Adagrad, Adam, AdamW, Averaged, Ftrl, Lion, Momentum, NAdam, RmsProp, RowAdagrad, Rule, RuleExt, Sgd,
    Step, StochasticRounding, merge_rows,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, IndexedSlices, Write};
use distribute_testing::SplitMix;
use proptest::prelude::*;
use std::sync::Arc;

fn rules() -> Vec<Arc<dyn Rule>> {
    vec![
        Arc::new(Sgd),
        Arc::new(Momentum::new(0.9)),
        Arc::new(Momentum::nesterov(0.5)),
        Arc::new(Adam::default()),
        Arc::new(Adam::lazy()),
        Arc::new(AdamW::default()),
        Arc::new(Adagrad::default()),
        Arc::new(RmsProp { momentum: 0.5, ..RmsProp::default() }),
        Arc::new(Ftrl { l1: 0.01, l2: 0.1, ..Ftrl::default() }),
        Arc::new(NAdam::default()),
        Arc::new(Lion { lazy: true, ..Lion::default() }),
        Arc::new(Averaged { rule: Arc::new(Adam::lazy()), momentum: 0.9 }),
        Arc::new(Averaged { rule: Arc::new(Adam::default()), momentum: 0.9 }),
        Arc::new(RowAdagrad::default()),
        Arc::new(Averaged { rule: Arc::new(RowAdagrad::default()), momentum: 0.9 }),
    ]
}

/// Generates a number of rows and their width: a scalar, a small table, a table of which two rows share a range,
/// and so a lock, or a table whose rows are larger than a range.
fn sizes() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        Just((1, 1)),
        (1usize..40, 1usize..6),
        (1usize..10, 690usize..720),
        (1usize..10, 2100usize..2110)
    ]
}

fn values(random: &mut SplitMix, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.below(4001) as f32 / 1000. - 2.).collect()
}

fn tensor(values: Vec<f32>, rows: usize, width: usize) -> HostTensor {
    HostTensor::new(values, [rows, width]).unwrap()
}

fn bits(tensor: &HostTensor) -> Vec<u32> {
    tensor.as_slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect()
}

/// A model of a variable and its slots in one process.
struct Model {
    rule: Arc<dyn Rule>,
    width: usize,
    values: Vec<f32>,
    slots: Vec<Vec<f32>>,
    /// The rounding of values that are stored in bf16.
    rounding: Option<StochasticRounding>,
}

impl Model {
    fn new(
        rule: Arc<dyn Rule>,
        width: usize,
        values: Vec<f32>,
        rounding: Option<StochasticRounding>,
    ) -> Self {
        let dims = [values.len() / width, width];
        let slots = rule.slots();
        let slots = slots.iter().map(|slot| vec![slot.initial as f32; slot.shape.elements(&dims)]).collect();
        let mut model = Self { rule, width, values, slots, rounding };
        model.round_nearest();
        model
    }

    fn round_nearest(&mut self) {
        self.rounding.iter().for_each(|_| StochasticRounding::round_nearest(&mut self.values));
    }

    fn round(&mut self, step: Step) {
        if let Some(rounding) = self.rounding {
            let rows = 0..self.values.len() / self.width;
            rounding.of_step(step).round_rows(&mut self.values, self.width, rows, |row| row as u64);
        }
    }

    fn push(&mut self, step: Step, gradient: &[f32]) {
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        let dims = [self.values.len() / self.width, self.width];
        self.rule.update_shaped(step, &dims, &mut self.values, gradient, &mut slots).unwrap();
        self.round(step);
    }

    fn push_rows(&mut self, step: Step, rows: &[usize], gradient: &[f32]) {
        let indices: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        let (rows, sums) = merge_rows(&indices, gradient, self.width).unwrap();
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        self.rule.update_rows(step, &mut self.values, self.width, &rows, &sums, &mut slots).unwrap();
        self.round(step);
    }

    fn is(&self, state: &TableState) -> bool {
        let same = |mine: &[f32], theirs: &HostTensor| {
            mine.iter().map(|x| x.to_bits()).eq(bits(theirs).iter().copied())
        };
        same(&self.values, &state.values)
            && self.slots.len() == state.slots.len()
            && self.slots.iter().zip(&state.slots).all(|(mine, (_, theirs))| same(mine, theirs))
    }
}

const WRITES: [Write; 7] =
    [Write::Assign, Write::Add, Write::Sub, Write::Mul, Write::Div, Write::Min, Write::Max];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    // INV-11, INV-95
    #[test]
    fn a_table_equals_one_process(
        (rows, width) in sizes(),
        rule in 0..rules().len(),
        in_halves: bool,
        seed: u64,
    ) {
        let mut random = SplitMix(seed);
        let start = values(&mut random, rows * width);
        let rule = rules()[rule].clone();
        let rounding = in_halves.then(|| StochasticRounding::new(seed, 5));
        let halves =
            rounding.map(|rounding| Halves { rounding, partition: RowPartition::div(rows, 1), shard: 0 });
        let table = Table::stored("t".into(), tensor(start.clone(), rows, width), halves).unwrap();
        table.set_rule(rule.clone()).unwrap();
        let mut model = Model::new(rule, width, start, rounding);
        for step in 0..6 {
            let at = Step::after(step, 0.1);
            let some: Vec<usize> = (0..random.below(12)).map(|_| random.below(rows)).collect();
            let of_some = values(&mut random, some.len() * width);
            let rows_of_some = tensor(of_some.clone(), some.len(), width);
            let of_all = values(&mut random, rows * width);
            let all = tensor(of_all.clone(), rows, width);
            match random.below(4) {
                0 => {
                    table.push(Push::at(at), &all).unwrap();
                    model.push(at, &of_all);
                }
                1 => {
                    table.push_rows(Push::at(at), &some, &rows_of_some).unwrap();
                    model.push_rows(at, &some, &of_some);
                }
                way => {
                    let how = random.of(&WRITES);
                    let mut written = tensor(model.values.clone(), rows, width);
                    if way == 2 {
                        table.write(how, &all).unwrap();
                        written.write(how, &all).unwrap();
                    } else {
                        table.write_rows(how, &some, &rows_of_some).unwrap();
                        let indices = HostTensor::vector(some.iter().map(|row| *row as i64).collect());
                        let slices = IndexedSlices::new(rows_of_some, indices, None).unwrap();
                        written.write_rows(how, &slices).unwrap();
                    }
                    model.values = written.into_vec().unwrap();
                    model.round_nearest();
                }
            }
            let state = table.state().unwrap();
            prop_assert!(model.is(&state), "step {}", step);
            prop_assert_eq!(bits(&table.read().unwrap().value), bits(&state.values));
            let read = table.read_rows(&some).unwrap();
            prop_assert_eq!(bits(&read), bits(&state.values.take_rows(&some).unwrap()));
            // The table can be saved and restored at any time.
            let zeros = HostTensor::zeros(DType::F32, [rows, width]).unwrap();
            let copy = Table::stored("copy".into(), zeros, halves).unwrap();
            copy.set_rule(model.rule.clone()).unwrap();
            copy.restore(&state.values, &state.slots).unwrap();
            prop_assert!(model.is(&copy.state().unwrap()));
            copy.write(Write::Add, &all).unwrap();
            let border = random.below(rows);
            for part in [border..rows, 0..border] {
                let state = table.state_rows(part.clone()).unwrap();
                copy.restore_rows(part.start, &state.values, &state.slots).unwrap();
            }
            prop_assert!(model.is(&copy.state().unwrap()));
        }
    }

    // INV-8, INV-95
    #[test]
    fn shards_equal_the_complete_table_and_can_be_moved(
        (rows, width) in sizes(),
        rule in 0..rules().len(),
        from in prop_oneof![Just(1usize), Just(2), Just(3), Just(5), Just(8)],
        to in prop_oneof![Just(1usize), Just(2), Just(3), Just(5), Just(8)],
        by_turns: (bool, bool),
        in_halves: bool,
        seed: u64,
    ) {
        let rounding = in_halves.then(|| StochasticRounding::new(seed, 5));
        let mut random = SplitMix(seed);
        let rule = rules()[rule].clone();
        let normal = Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, seed, "t");
        let cut = |shards, by_turns: bool| {
            let strategy = if by_turns { PartitionStrategy::Mod } else { PartitionStrategy::Div };
            RowPartition::new(strategy, rows, shards)
        };
        let make = |partition: RowPartition| -> Vec<Table> {
            let shard = |i| {
                let shape = (&[rows, width][..], DType::F32);
                let table =
                    Table::initialized_in("t".into(), shape, &normal, (partition, i), rounding).unwrap();
                table.set_rule(rule.clone()).unwrap();
                table
            };
            (0..partition.shards()).map(shard).collect()
        };
        let whole = make(cut(1, false)).remove(0);
        let (from, to) = (cut(from, by_turns.0), cut(to, by_turns.1));
        let mut tables = make(from);
        let mut partition = from;
        for step in 0..4 {
            let at = Push::at(Step::after(step, 0.1));
            if step == 2 {
                let states: Vec<_> = tables.iter().map(|table| table.state().unwrap()).collect();
                tables = make(to);
                partition = to;
                restored(&states, &tables, from, to);
            }
            let ids: Vec<i64> = (0..random.below(12)).map(|_| random.below(rows) as i64).collect();
            let gradient = values(&mut random, ids.len() * width);
            let global: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
            whole.push_rows(at, &global, &tensor(gradient.clone(), ids.len(), width)).unwrap();
            let split = partition.split("push", &ids).unwrap();
            for (i, table) in tables.iter().enumerate() {
                let mine = split.take(i, &gradient, width);
                table.push_rows(at, split.of(i), &tensor(mine, split.of(i).len(), width)).unwrap();
            }
            let expected = whole.state().unwrap();
            for (i, table) in tables.iter().enumerate() {
                let state = table.state().unwrap();
                let rows: Vec<usize> =
                    (0..partition.len(i)).map(|row| partition.row(RowLocation { shard: i, row })).collect();
                prop_assert_eq!(bits(&state.values), bits(&expected.values.take_rows(&rows).unwrap()));
                for ((_, mine), (_, whole)) in state.slots.iter().zip(&expected.slots) {
                    prop_assert_eq!(bits(mine), bits(&whole.take_rows(&rows).unwrap()));
                }
            }
        }
    }
}

/// Copies all rows and slots from the shards of one partition to the tables of another.
fn restored(states: &[TableState], tables: &[Table], from: RowPartition, to: RowPartition) {
    let mut new: Vec<TableState> = tables.iter().map(|table| table.state().unwrap()).collect();
    for moved in from.moves(to).unwrap() {
        let (source, target) = (&states[moved.from.shard], &mut new[moved.to.shard]);
        let place = |from: &HostTensor, to: &mut HostTensor| {
            let width = from.dims().get(1).copied().unwrap_or(1);
            let (from, to) = (from.as_slice::<f32>().unwrap(), to.as_mut_slice::<f32>().unwrap());
            to[moved.to.row * width..][..moved.rows * width]
                .copy_from_slice(&from[moved.from.row * width..][..moved.rows * width]);
        };
        place(&source.values, &mut target.values);
        for ((_, from), (_, to)) in source.slots.iter().zip(&mut target.slots) {
            place(from, to);
        }
    }
    for (table, state) in tables.iter().zip(&new) {
        table.restore(&state.values, &state.slots).unwrap();
    }
}

#[test]
fn all_dtypes_are_kept_and_numbers_are_calculated_with() {
    for dtype in DType::ALL {
        let table = Table::new("t", HostTensor::zeros(dtype, [3, 2]).unwrap()).unwrap();
        assert_eq!((table.dtype(), table.dims(), table.rows()), (dtype, &[3, 2][..], 3));
        let row = HostTensor::zeros(dtype, [1, 2]).unwrap();
        table.write_rows(Write::Assign, &[2], &row).unwrap();
        let sum = table.write_rows(Write::Add, &[2], &row);
        match dtype {
            DType::Bool | DType::String => assert!(matches!(sum, Err(Error::UnsupportedDType { .. }))),
            _ => sum.unwrap(),
        }
        let rule = table.set_rule(Arc::new(Sgd));
        match dtype {
            DType::F32 | DType::F64 => rule.unwrap(),
            _ => assert!(matches!(rule, Err(Error::UnsupportedDType { .. })), "{dtype}"),
        }
        assert_eq!(table.read().unwrap().value, HostTensor::zeros(dtype, [3, 2]).unwrap());
    }
    let words = HostTensor::vector(vec![b"a".to_vec(), b"bc".to_vec()]);
    let table = Table::new("words", words).unwrap();
    assert_eq!(table.read_rows(&[1]).unwrap(), HostTensor::vector(vec![b"bc".to_vec()]));
}

/// Values take half of the memory, and slots do not. Other dtypes are refused.
// INV-95
#[test]
fn values_in_bf16_take_half_of_the_memory() {
    let halves = |rows| {
        let rounding = StochasticRounding::new(7, 8);
        Some(Halves { rounding, partition: RowPartition::div(rows, 1), shard: 0 })
    };
    let zeros = HostTensor::zeros(DType::F32, [1000, 4]).unwrap();
    let table = Table::stored("t".into(), zeros.clone(), halves(1000)).unwrap();
    table.set_rule(Arc::new(Momentum::new(0.5))).unwrap();
    assert_eq!((table.bytes(), table.taken(), table.dtype()), (8_000, 8_000 + 16_000, DType::F32));
    table.push(Push::at(Step::after(0, 0.1)), &zeros).unwrap();
    assert_eq!((table.bytes(), table.taken()), (24_000, 24_000));
    let wide = HostTensor::zeros(DType::F64, [1000, 4]).unwrap();
    let refused = Table::stored("t".into(), wide, halves(1000));
    assert!(matches!(refused, Err(Error::UnsupportedDType { dtype: DType::F64, .. })));
}

#[test]
fn a_scalar_is_one_row_of_shape_nothing() {
    let table = Table::new("steps", HostTensor::scalar(5i64)).unwrap();
    table.write(Write::Add, &HostTensor::scalar(2i64)).unwrap();
    assert_eq!(table.read().unwrap().value, HostTensor::scalar(7i64));
    assert_eq!(table.read_rows(&[0, 0]).unwrap(), HostTensor::vector(vec![7i64, 7]));
    let empty = Table::new("empty", HostTensor::zeros(DType::F32, [0, 3]).unwrap()).unwrap();
    assert_eq!(empty.read().unwrap().value.dims(), [0, 3]);
    assert_eq!(empty.read_rows(&[]).unwrap().dims(), [0, 3]);
}

// INV-51
#[test]
fn a_variable_that_did_not_change_is_not_read_again() {
    let table = Table::new("t", tensor(vec![1.; 6], 3, 2)).unwrap();
    table.set_rule(Arc::new(Sgd)).unwrap();
    let first = table.read().unwrap();
    assert_eq!(table.read_if_changed(first.version).unwrap(), None);
    let nothing = tensor(vec![], 0, 2);
    table.push_rows(Push::at(Step::after(0, 1.)), &[], &nothing).unwrap();
    table.write_rows(Write::Add, &[], &nothing).unwrap();
    assert_eq!(table.read_if_changed(first.version).unwrap(), None);
    let changes: [&dyn Fn() -> crate::Result<()>; 5] = [
        &|| table.push(Push::at(Step::after(0, 1.)), &tensor(vec![1.; 6], 3, 2)),
        &|| table.push_rows(Push::at(Step::after(0, 1.)), &[1], &tensor(vec![1.; 2], 1, 2)),
        &|| table.write(Write::Add, &tensor(vec![1.; 6], 3, 2)),
        &|| table.write_rows(Write::Add, &[1], &tensor(vec![1.; 2], 1, 2)),
        &|| table.restore(&tensor(vec![1.; 6], 3, 2), &[]),
    ];
    for (i, change) in changes.iter().enumerate() {
        let known = table.version();
        change().unwrap();
        let read = table.read_if_changed(known).unwrap();
        assert_eq!(read.map(|read| read.version), Some(table.version()), "{i}");
    }
}
