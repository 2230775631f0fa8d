//! Comparison of dynamic tables with a map of rows.

use super::{DynamicOptions, Eviction, PushResult};
use crate::{DynamicTable, HashPartition, Initializer, Push};
use distribute_optim::{
    Adagrad, Adam, Averaged, Ftrl, Momentum, RowAdagrad, Rule, RuleExt, Sgd, Step, StochasticRounding,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor};
use distribute_testing::SplitMix;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn rules() -> Vec<Arc<dyn Rule>> {
    vec![
        Arc::new(Sgd),
        Arc::new(Momentum::new(0.9)),
        Arc::new(Adam::lazy()),
        Arc::new(Adagrad::default()),
        Arc::new(RowAdagrad::default()),
        Arc::new(Averaged { rule: Arc::new(RowAdagrad::default()), momentum: 0.5 }),
        Arc::new(Ftrl { l1: 0.01, ..Ftrl::default() }),
    ]
}

fn normal(seed: u64) -> Initializer {
    Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, seed, "users")
}

fn table(width: usize, seed: u64, rule: &Arc<dyn Rule>, options: DynamicOptions) -> DynamicTable {
    let table = DynamicTable::new("users", &[width], DType::F32, normal(seed), options).unwrap();
    table.set_rule(rule.clone()).unwrap();
    table
}

fn rows(values: Vec<f32>, width: usize) -> HostTensor {
    HostTensor::new(values.clone(), [values.len() / width, width]).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// A row, its slots, the step of its last push, and the number of its pushes.
struct Row {
    values: Vec<f32>,
    slots: Vec<Vec<f32>>,
    used: u64,
    pushes: u64,
}

/// The simplest model of a dynamic table of one segment.
struct Model {
    rule: Arc<dyn Rule>,
    initializer: Initializer,
    options: DynamicOptions,
    width: usize,
    rows: BTreeMap<i64, Row>,
    came: BTreeMap<i64, u32>,
}

impl Model {
    fn first(&self, id: i64) -> Vec<f32> {
        let mut values = vec![0.; self.width];
        self.initializer.fill_row(id, &mut values);
        values
    }

    fn push(&mut self, step: Step, ids: &[i64], gradient: &[f32]) -> PushResult {
        let mut sums: BTreeMap<i64, Vec<f32>> = BTreeMap::new();
        for (id, gradient) in ids.iter().zip(gradient.chunks(self.width)) {
            let sum = sums.entry(*id).or_insert_with(|| vec![0.; self.width]);
            sum.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += x);
        }
        let mut pushed = PushResult::default();
        let mut new = Vec::new();
        for id in sums.keys() {
            if let Some(row) = self.rows.get_mut(id) {
                row.used = step.number();
                row.pushes += 1;
                continue;
            }
            if self.options.admit_after > 1 {
                let came = self.came.entry(*id).or_default();
                *came += 1;
                if *came < self.options.admit_after {
                    pushed.waiting += 1;
                    continue;
                }
            }
            new.push(*id);
        }
        if let Some(limit) = self.options.max_rows {
            let excess = (self.rows.len() + new.len()).saturating_sub(limit);
            let mut ages: Vec<_> = self
                .rows
                .iter()
                .filter(|(id, _)| !sums.contains_key(id))
                .map(|(id, row)| (row.saved(self.options), *id))
                .collect();
            ages.sort_unstable();
            ages.truncate(if excess > 0 { excess.max(limit / 16) } else { 0 });
            pushed.evicted = ages.len();
            ages.iter().for_each(|(_, id)| drop(self.rows.remove(id)));
        }
        for id in new {
            if self.options.max_rows.is_some_and(|limit| self.rows.len() >= limit) {
                pushed.full += 1;
                continue;
            }
            let slots = self.rule.slots();
            let slots = slots
                .iter()
                .map(|slot| vec![slot.initial as f32; slot.shape.elements(&[1, self.width])])
                .collect();
            self.rows.insert(id, Row { values: self.first(id), slots, used: step.number(), pushes: 1 });
            self.came.remove(&id);
            pushed.created += 1;
        }
        for (id, sum) in &sums {
            if let Some(row) = self.rows.get_mut(id) {
                let mut slots: Vec<&mut [f32]> = row.slots.iter_mut().map(Vec::as_mut_slice).collect();
                self.rule.update_shaped(step, &[1, self.width], &mut row.values, sum, &mut slots).unwrap();
                pushed.rows += 1;
            }
        }
        if let Some(age) = self.options.max_age
            && step.number().is_multiple_of((age / 8).max(1))
        {
            pushed.evicted += self.evict(step.number());
        }
        pushed
    }
}

impl Row {
    /// Returns the uses as they are saved, which is also the order of eviction.
    fn saved(&self, options: DynamicOptions) -> u64 {
        match options.eviction {
            Eviction::LeastRecent => self.used,
            Eviction::LeastFrequent => self.pushes << 32 | self.used,
        }
    }
}

impl Model {
    fn evict(&mut self, now: u64) -> usize {
        let before = self.rows.len();
        if let Some(oldest) = self.options.max_age.and_then(|age| now.checked_sub(age)) {
            self.rows.retain(|_, row| row.used >= oldest);
        }
        before - self.rows.len()
    }
}

/// Compares all observable state of a table with the model.
fn check(table: &DynamicTable, model: &Model) -> Result<(), TestCaseError> {
    let ids: Vec<i64> = (-3..40).collect();
    let found = table.read_rows(&ids).unwrap();
    for (id, found) in ids.iter().zip(found.as_slice::<f32>().unwrap().chunks(model.width)) {
        let expected = model.rows.get(id).map_or_else(|| model.first(*id), |row| row.values.clone());
        prop_assert_eq!(bits(found), bits(&expected), "{}", id);
    }
    prop_assert_eq!(table.len(), model.rows.len());
    let mut seen = 0;
    for part in 0..table.parts() {
        let state = table.state(part).unwrap();
        prop_assert!(state.ids.is_sorted_by(|a, b| a < b));
        for (i, id) in state.ids.iter().enumerate() {
            let row = &model.rows[id];
            prop_assert_eq!(state.used[i], row.saved(model.options));
            for ((_, slot), expected) in state.slots.iter().zip(&row.slots) {
                let slot = &slot.as_slice::<f32>().unwrap()[i * expected.len()..(i + 1) * expected.len()];
                prop_assert_eq!(bits(slot), bits(expected));
            }
        }
        seen += state.ids.len();
    }
    prop_assert_eq!(seen, model.rows.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    // INV-8
    #[test]
    fn rows_are_created_updated_and_removed(
        width in 1usize..5,
        rule in 0..rules().len(),
        admit_after in 1u32..4,
        // Up to 127 rows, there is one segment.
        max_rows in prop_oneof![Just(None), (1usize..40).prop_map(Some)],
        max_age in prop_oneof![Just(None), (1u64..6).prop_map(Some), Just(Some(17))],
        eviction in prop_oneof![Just(Eviction::LeastRecent), Just(Eviction::LeastFrequent)],
        seed: u64,
    ) {
        let mut random = SplitMix(seed);
        let rule = rules()[rule].clone();
        let options = DynamicOptions { admit_after, max_rows, max_age, eviction, ..DynamicOptions::default() };
        let mut table = table(width, seed, &rule, options);
        let (rows_of, came) = (BTreeMap::new(), BTreeMap::new());
        let mut model = Model { rule: rule.clone(), initializer: normal(seed), options, width, rows: rows_of, came };
        for step in 0..24 {
            let ids: Vec<i64> = (0..random.below(20)).map(|_| random.below(40) as i64 - 3).collect();
            let gradient: Vec<f32> = (0..ids.len() * width).map(|_| random.below(1000) as f32 / 300.).collect();
            let at = Step::after(step, 0.1);
            let pushed = table.push_rows(Push::at(at), &ids, &rows(gradient.clone(), width));
            prop_assert_eq!(pushed.unwrap(), model.push(at, &ids, &gradient));
            prop_assert_eq!(table.waiting(), model.came.len());
            if random.below(3) == 0 {
                prop_assert_eq!(table.evict(step + 1), model.evict(step + 1));
            }
            check(&table, &model)?;
            if admit_after == 1 && random.below(4) == 0 {
                // A saved and restored table continues like the original.
                let copy = self::table(width, seed, &rule, options);
                for part in 0..table.parts() {
                    prop_assert_eq!(copy.restore(&table.state(part).unwrap()).unwrap(), 0);
                }
                table = copy;
                check(&table, &model)?;
            }
        }
    }

    // INV-8
    #[test]
    fn shards_have_the_rows_that_one_table_has(
        from in prop_oneof![Just(1usize), Just(2), Just(3), Just(5), Just(8)],
        to in prop_oneof![Just(1usize), Just(2), Just(3), Just(5), Just(8)],
        rule in 0..rules().len(),
        seed: u64,
    ) {
        let mut random = SplitMix(seed);
        let (width, rule) = (3, rules()[rule].clone());
        let make = |shards: usize| -> Vec<DynamicTable> {
            (0..shards).map(|_| table(width, seed, &rule, DynamicOptions::default())).collect()
        };
        let (whole, mut tables) = (make(1).remove(0), make(from));
        let ids: Vec<i64> = (0..60).map(|_| random.bits().cast_signed()).collect();
        for step in 0..4 {
            if step == 2 {
                let (old, partition) = (std::mem::replace(&mut tables, make(to)), HashPartition::new(to));
                for old in &old {
                    for part in 0..old.parts() {
                        let state = old.state(part).unwrap();
                        let split = partition.split(&state.ids);
                        for (shard, table) in tables.iter().enumerate() {
                            table.restore(&state.take(split.positions(shard)).unwrap()).unwrap();
                        }
                    }
                }
            }
            let mine: Vec<i64> = (0..50).map(|_| random.of(&ids)).collect();
            let gradient: Vec<f32> = (0..mine.len() * width).map(|_| random.below(1000) as f32 / 300.).collect();
            let at = Push::at(Step::after(step, 0.1));
            whole.push_rows(at, &mine, &rows(gradient.clone(), width)).unwrap();
            let partition = HashPartition::new(tables.len());
            let split = partition.split(&mine);
            for (shard, table) in tables.iter().enumerate() {
                let gradient = split.take(shard, &gradient, width);
                let gradient = HostTensor::new(gradient, [split.of(shard).len(), width]).unwrap();
                table.push_rows(at, split.of(shard), &gradient).unwrap();
            }
            let split = partition.split(&ids);
            let mut found = vec![0f32; ids.len() * width];
            for (shard, table) in tables.iter().enumerate() {
                split.put(shard, table.read_rows(split.of(shard)).unwrap().as_slice().unwrap(), width, &mut found);
            }
            prop_assert_eq!(bits(&found), bits(whole.read_rows(&ids).unwrap().as_slice().unwrap()));
            prop_assert_eq!(tables.iter().map(DynamicTable::len).sum::<usize>(), whole.len());
        }
    }
}

#[test]
fn there_are_never_more_rows_than_there_may_be() {
    for max_rows in [1, 5, 64, 1000, 5000] {
        let options = DynamicOptions { max_rows: Some(max_rows), ..DynamicOptions::default() };
        let table = table(2, 1, &rules()[1], options);
        for step in 0..20 {
            let ids: Vec<i64> = (0..500).map(|i| step as i64 * 400 + i).collect();
            let gradient = rows(vec![1.; 1000], 2);
            let pushed = table.push_rows(Push::at(Step::after(step, 0.1)), &ids, &gradient).unwrap();
            assert!(table.len() <= max_rows, "{} of {max_rows}", table.len());
            assert_eq!(pushed.rows + pushed.full, 500, "{pushed:?}");
        }
        // Segments fill up a little unevenly.
        assert!(table.len() * 4 >= max_rows * 3 || max_rows > 1000, "{} of {max_rows}", table.len());
        let last = table.state(0).unwrap();
        assert!(last.used.iter().all(|used| *used > 1));
    }
}

#[test]
fn a_rule_that_comes_later_finds_the_rows_that_were_restored() {
    let source = table(2, 3, &rules()[0], DynamicOptions::default());
    let ids: Vec<i64> = (0..300).collect();
    source.push_rows(Push::at(Step::after(0, 0.5)), &ids, &rows(vec![1.; 600], 2)).unwrap();
    let target = DynamicTable::new("users", &[2], DType::F32, normal(3), DynamicOptions::default()).unwrap();
    for part in 0..source.parts() {
        target.restore(&source.state(part).unwrap()).unwrap();
    }
    target.set_rule(Arc::new(Momentum::new(0.5))).unwrap();
    assert_eq!(target.read_rows(&ids).unwrap(), source.read_rows(&ids).unwrap());
    let model = table(2, 3, &rules()[0], DynamicOptions::default());
    for (step, rate) in [(0, 0.5), (1, 0.5), (2, 0.75)] {
        model.push_rows(Push::at(Step::after(step, rate)), &ids, &rows(vec![1.; 600], 2)).unwrap();
    }
    for step in 1..3 {
        target.push_rows(Push::at(Step::after(step, 0.5)), &ids, &rows(vec![1.; 600], 2)).unwrap();
    }
    let found = target.read_rows(&ids).unwrap();
    let expected = model.read_rows(&ids).unwrap();
    let pairs = found.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap());
    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn frequent_rows_stay_and_a_restored_table_keeps_their_counts() {
    let options =
        DynamicOptions { max_rows: Some(3), eviction: Eviction::LeastFrequent, ..DynamicOptions::default() };
    let (mut step, rule) = (0, &rules()[0]);
    let mut push = |table: &DynamicTable, ids: &[i64]| {
        step += 1;
        let gradient = rows(vec![1.; 2 * ids.len()], 2);
        table.push_rows(Push::at(Step::after(step, 0.1)), ids, &gradient).unwrap()
    };
    let ids = |table: &DynamicTable| table.state(0).unwrap().ids;
    let table = self::table(2, 1, rule, options);
    // A push with two gradients for an id counts once.
    for some in [&[1, 2][..], &[1, 3], &[1], &[2, 2]] {
        push(&table, some);
    }
    assert_eq!(push(&table, &[4]).evicted, 1);
    assert_eq!(ids(&table), [1, 2, 4], "3 was pushed once");
    assert_eq!(push(&table, &[5]).evicted, 1);
    assert_eq!(ids(&table), [1, 2, 5], "4 was pushed once, and 5 is new");
    let copy = self::table(2, 1, rule, options);
    assert_eq!(copy.restore(&table.state(0).unwrap()).unwrap(), 0);
    for _ in 0..2 {
        push(&copy, &[5]);
    }
    push(&copy, &[6]);
    assert_eq!(ids(&copy), [1, 5, 6], "2 was pushed less often than 1 and 5");
    // A smaller table restores the most frequent rows.
    let small = self::table(2, 1, rule, DynamicOptions { max_rows: Some(1), ..options });
    assert_eq!(small.restore(&table.state(0).unwrap()).unwrap(), 2);
    assert_eq!(ids(&small), [1]);
}

/// A table in bf16 equals one in f32 whose rows are rounded after each push, also in the presence of evictions, and
/// when it is saved and restored.
// INV-95
#[test]
fn values_in_bf16_are_rounded_by_id_and_step() {
    const WIDTH: usize = 5;
    let rounding = StochasticRounding::new(11, 12);
    // The initial value is rounded to the nearest.
    let initial = |value| Initializer::new(Distribution::Constant(value), 1, "users");
    let nearest = {
        let mut value = [0.3f32];
        StochasticRounding::round_nearest(&mut value);
        f64::from(value[0])
    };
    let limited = DynamicOptions { max_rows: Some(12), ..DynamicOptions::default() };
    for (rule, options) in
        rules().into_iter().flat_map(|rule| [(rule.clone(), DynamicOptions::default()), (rule, limited)])
    {
        let halves = || {
            let rows = (&[WIDTH][..], DType::F32);
            let table = DynamicTable::stored("users".into(), rows, initial(0.3), options, Some(rounding));
            let table = table.unwrap();
            table.set_rule(rule.clone()).unwrap();
            table
        };
        let full = DynamicTable::new("users", &[WIDTH], DType::F32, initial(nearest), options).unwrap();
        full.set_rule(rule.clone()).unwrap();
        let (mut random, mut table) = (SplitMix(3), halves());
        for step in 0..12 {
            let step = Step::after(step, 0.1);
            let ids: Vec<i64> = (0..1 + random.below(8)).map(|_| random.below(30) as i64 - 15).collect();
            let gradient: Vec<f32> =
                (0..ids.len() * WIDTH).map(|_| random.below(100) as f32 / 99. - 0.5).collect();
            let gradient = rows(gradient, WIDTH);
            let pushed = table.push_rows(Push::at(step), &ids, &gradient).unwrap();
            assert_eq!(pushed, full.push_rows(Push::at(step), &ids, &gradient).unwrap());
            for part in 0..full.parts() {
                let mut state = full.state(part).unwrap();
                let values = state.values.as_mut_slice::<f32>().unwrap();
                for (id, row) in state.ids.iter().zip(values.chunks_exact_mut(WIDTH)) {
                    if ids.contains(id) {
                        rounding.of_step(step).round_row(id.cast_unsigned(), row);
                    }
                }
                full.restore(&state).unwrap();
            }
            let parts: Vec<_> = (0..table.parts()).map(|part| table.state(part).unwrap()).collect();
            assert_eq!(parts, (0..full.parts()).map(|part| full.state(part).unwrap()).collect::<Vec<_>>());
            let all: Vec<i64> = (-16..16).collect();
            assert_eq!(table.read_rows(&all).unwrap(), full.read_rows(&all).unwrap());
            if step.number().is_multiple_of(4) {
                table = halves();
                parts.iter().for_each(|part| assert_eq!(table.restore(part).unwrap(), 0));
            }
            if step.number().is_multiple_of(5) {
                for part in &parts {
                    let slots = &part.slots;
                    table.restore_slots(&part.ids, slots).unwrap();
                    table.restore_values(&part.ids, &part.used, &part.values).unwrap();
                }
            }
        }
        let bytes =
            2 * WIDTH + 4 * rule.slots().iter().map(|slot| slot.shape.per_row(WIDTH).unwrap()).sum::<usize>();
        let used: usize = table.bytes();
        assert!(used < full.bytes() && used >= table.len() * bytes);
    }
}
