//! A replica's gradients of one step, in memory that is kept for the next.

use super::deposits::Deposits;
use super::overlap::OverlapSender;
use super::{Dense, Filling, Flat, Layout, Ranges, ReplicaGradient, Rows};
use crate::lock::lock;
use crate::number::{Elements, Number, with_elements};
use candle_core::{DType, Result, Tensor, TensorId, Var};
use distribute_collective::group::{Buffers, EarlySend};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// The buckets of one optimizer, which serve again in each step.
#[derive(Debug)]
pub struct Pool {
    /// The number of the variable of each tensor.
    numbers: HashMap<TensorId, usize>,
    /// Frozen variables, whose gradients are not computed.
    frozen: HashSet<TensorId>,
    /// The dtype and the number of elements of each variable.
    sizes: Vec<(DType, usize)>,
    /// The idle buckets of each replica: the memory is near to its core.
    idle: Mutex<Vec<Vec<Loose>>>,
    /// The buffers of packs for other workers, if a replica's gradients are sent without being summed first.
    packs: Option<Buffers>,
    /// The elements of variables that each worker gets, if not all or an equal range of each pack.
    ranges: Option<Ranges>,
    /// The layout of the packs, as all workers of a generation have agreed in the last step.
    layout: Mutex<(u64, Option<Arc<Layout>>)>,
    /// The order in which the first replica of this process completed its gradients in the last step.
    order: Mutex<Vec<u32>>,
}

impl Pool {
    /// Creates the buckets of an optimizer's variables, and of the copies that replicas compute with on devices.
    pub fn new<'v>(
        variables: impl Iterator<Item = &'v Var>,
        copies: impl Iterator<Item = (usize, &'v Var)>,
        frozen: impl Iterator<Item = &'v Var>,
        packs: Option<Buffers>,
        ranges: Option<Ranges>,
    ) -> Arc<Self> {
        let (mut numbers, mut sizes) = (HashMap::new(), Vec::new());
        for (number, variable) in variables.enumerate() {
            numbers.insert(variable.as_tensor().id(), number);
            sizes.push((variable.dtype(), variable.elem_count()));
        }
        numbers.extend(copies.map(|(number, copy)| (copy.as_tensor().id(), number)));
        let frozen = frozen.map(|variable| variable.as_tensor().id()).collect();
        let (idle, layout, order) = Default::default();
        Arc::new(Self { numbers, frozen, sizes, idle, packs, ranges, layout, order })
    }

    /// Returns the number of idle buckets of each replica.
    pub fn counts(&self) -> Vec<usize> {
        lock(&self.idle).iter().map(Vec::len).collect()
    }

    /// Returns an empty bucket of a replica of this process. Its packs are sent by `early`, before their call. The
    /// layout and the order of another generation are forgotten, because its workers agreed on them.
    pub fn take(self: &Arc<Self>, replica: usize, generation: u64, early: Option<EarlySend>) -> Bucket {
        let mut known = lock(&self.layout);
        if known.0 != generation {
            *known = (generation, None);
            lock(&self.order).clear();
        }
        let layout = known.1.clone();
        drop(known);
        let idle = lock(&self.idle).get_mut(replica).and_then(Vec::pop);
        let mut loose = idle.unwrap_or_default();
        if loose.places.is_empty() {
            loose.places = self.sizes.iter().map(|(dtype, _)| Elements::none(*dtype)).collect();
        }
        loose.filled.clear();
        loose.filled.resize_with(self.sizes.len(), Slot::default);
        if self.packs.is_some() {
            loose.deposits.begin(self.sizes.len());
        }
        let packs = self.packs.as_ref().zip(layout);
        let packs = packs.map(|(buffers, layout)| Filling::new(layout, buffers));
        let overlap = early.zip(packs.as_ref());
        let overlap = overlap.map(|(early, packs)| packs.overlap_sender(early, replica));
        Bucket { pool: self.clone(), replica, loose, packs, overlap, on_device: Vec::new() }
    }

    /// Returns the layout of packs with the gradients of these variables, which the next buckets use. A new `order`
    /// replaces the one before.
    pub fn layout(&self, dense: &[bool], order: Option<&[u32]>) -> Arc<Layout> {
        let layout = &mut lock(&self.layout).1;
        match &*layout {
            Some(layout) if layout.is_of(dense) && order.is_none() => layout.clone(),
            before => {
                let new = Layout::new(&self.sizes, dense, order.unwrap_or_default(), self.ranges.as_ref());
                let same = before.clone().filter(|before| **before == new);
                layout.insert(same.unwrap_or_else(|| Arc::new(new))).clone()
            }
        }
    }

    /// Returns whether gradients are put into packs for other workers.
    pub fn has_packs(&self) -> bool {
        self.packs.is_some()
    }

    /// Returns the order in which the first replica of this process completed its gradients in the last step, if
    /// there were any.
    pub fn order(&self) -> Option<Vec<u32>> {
        Some(lock(&self.order).clone()).filter(|order| !order.is_empty())
    }
}

/// The memory that is kept from step to step.
#[derive(Debug, Default)]
struct Loose {
    /// The elements of the gradient of each variable. Empty before it has had a dense one that is in no pack, for
    /// example for a table of which only rows have gradients.
    places: Vec<Elements>,
    /// The slot of each variable.
    filled: Vec<Slot>,
    deposits: Deposits,
}

/// The gradient that a bucket has of a variable.
#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    /// Elements of the whole variable, in the bucket's memory.
    Dense,
    Rows(Rows),
}

/// The gradients that a replica's layers have put here, for an optimizer's variables.
#[derive(Debug)]
pub struct Bucket {
    pool: Arc<Pool>,
    replica: usize,
    loose: Loose,
    /// The packs for other workers, with places for variables that had a dense gradient in the last step.
    packs: Option<Filling>,
    /// The sender of packs that are sent before the others are complete.
    overlap: Option<OverlapSender>,
    /// Rows of tables on the replica's device, by variable, in the order in which they came.
    on_device: Vec<(usize, Rows)>,
}

impl Bucket {
    /// Returns the number of the optimizer's variable, if this is one.
    pub(super) fn number(&self, variable: &Tensor) -> Option<usize> {
        self.pool.numbers.get(&variable.id()).copied()
    }

    /// Returns whether a variable is frozen.
    pub(super) fn is_frozen(&self, variable: &Tensor) -> bool {
        self.pool.frozen.contains(&variable.id())
    }

    /// Returns whether the bucket has a gradient of a variable.
    fn has(&self, number: usize) -> bool {
        !matches!(self.loose.filled[number], Slot::Empty)
    }

    /// Returns whether a dense gradient of a variable goes into the packs for other workers.
    fn is_in_packs(&self, number: usize) -> bool {
        self.packs.as_ref().is_some_and(|packs| packs.layout().has(number))
    }

    /// Takes the packs for other workers, if there are any. Variables that are not `filled`, which are in ascending
    /// order, are set to zero. The gradients of the `joined` variables contain parts that no layer deposits.
    fn take_packs(&mut self, filled: &[usize], joined: Vec<usize>) -> Option<Arc<Flat>> {
        self.pool.packs.as_ref()?;
        self.loose.deposits.end(joined);
        if self.replica == 0 {
            *lock(&self.pool.order) = self.loose.deposits.order();
        }
        let mut packs = self.packs.take()?;
        let all = 0..self.loose.filled.len();
        all.filter(|number| filled.binary_search(number).is_err()).for_each(|number| packs.clear(number));
        let overlap = self.overlap.take().filter(|_| !packs.was_reopened());
        let flat = packs.freeze();
        Some(Arc::new(match overlap.map(|overlap| overlap.finish(flat.packs())) {
            Some(call) => flat.sent_early(call),
            None => flat,
        }))
    }

    /// Marks the gradient of a variable as written to its [place](Self::place), or added to it.
    pub(super) fn deposited(&mut self, number: usize) {
        if self.pool.packs.is_none() || !self.loose.deposits.made(number) {
            return;
        }
        if let Some((overlap, packs)) = self.overlap.as_mut().zip(self.packs.as_mut())
            && let Some(pack) = packs.layout().pack(number)
            && overlap.complete(pack)
        {
            overlap.send(pack, &packs.close(pack));
        }
    }

    /// Returns the place of the dense gradient of a variable, and whether there is something to add to. `None` for
    /// another dtype.
    pub(super) fn place<T: Number>(&mut self, number: usize) -> Option<(&mut [T], bool)> {
        let Self { pool, loose: Loose { places, filled, .. }, packs, .. } = self;
        let place: &mut [T] = match packs.as_mut().and_then(|packs| packs.place(number)) {
            Some(place) => place,
            None => {
                let place = T::in_vector_mut(&mut places[number])?;
                if place.is_empty() {
                    *place = vec![T::of(0.); pool.sizes[number].1];
                }
                place
            }
        };
        let add = match std::mem::replace(&mut filled[number], Slot::Dense) {
            Slot::Empty => false,
            Slot::Dense => true,
            Slot::Rows(rows) => {
                place.fill(T::of(0.));
                rows.add_to(place);
                true
            }
        };
        Some((place, add))
    }

    /// Adds rows of a table.
    pub fn add_rows(&mut self, number: usize, rows: Rows) {
        match self.pool.sizes[number].0 {
            DType::F32 => self.add_rows_of::<f32>(number, rows),
            _ => self.add_rows_of::<f64>(number, rows),
        }
    }

    /// Adds rows of a table on the replica's device.
    pub(super) fn add_device_rows(&mut self, number: usize, rows: Rows) {
        self.on_device.push((number, rows));
    }

    /// Takes the rows on the replica's device out of the bucket.
    pub fn take_device_rows(&mut self) -> Vec<(usize, Rows)> {
        std::mem::take(&mut self.on_device)
    }

    fn add_rows_of<T: Number>(&mut self, number: usize, rows: Rows) {
        let filled = &mut self.loose.filled[number];
        match std::mem::take(filled) {
            Slot::Empty => *filled = Slot::Rows(rows),
            Slot::Rows(before) => *filled = Slot::Rows(before.plus::<T>(rows)),
            Slot::Dense => {
                *filled = Slot::Dense;
                if let Some((place, _)) = self.place::<T>(number) {
                    rows.add_to(place);
                    self.deposited(number);
                }
            }
        }
    }

    /// Adds a variable's dense gradient.
    fn add(&mut self, number: usize, gradient: &Tensor) -> Result<()> {
        match gradient.dtype() {
            DType::F32 => self.add_of::<f32>(number, gradient),
            _ => self.add_of::<f64>(number, gradient),
        }
    }

    fn add_of<T: Number>(&mut self, number: usize, gradient: &Tensor) -> Result<()> {
        with_elements(gradient, |gradient: &[T]| {
            let Some((place, add)) = self.place::<T>(number) else { return };
            if add {
                place.iter_mut().zip(gradient).for_each(|(sum, x)| *sum = sum.plus(*x))
            } else {
                place.copy_from_slice(gradient)
            }
        })
    }

    /// Returns the gradients of all variables: those that layers have written into the bucket, and those that candle
    /// has `found`, which are on the host. The gradient of a variable that layers and other operations use is their
    /// sum.
    ///
    /// # Errors
    /// candle's.
    pub fn into_gradients(
        mut self,
        found: Vec<Option<ReplicaGradient>>,
    ) -> Result<Vec<Option<ReplicaGradient>>> {
        let (mut all, mut dense, mut joined) = (found, Vec::new(), Vec::new());
        for (number, gradient) in all.iter_mut().enumerate() {
            if gradient.is_some() {
                joined.push(number);
            }
            let joins = self.is_in_packs(number) && matches!(gradient, Some(ReplicaGradient::Dense(_)));
            if joins || self.has(number) {
                match gradient.take() {
                    Some(ReplicaGradient::Dense(Dense::Host(tensor))) => self.add(number, &tensor)?,
                    Some(ReplicaGradient::Rows(rows)) => self.add_rows(number, rows),
                    Some(ReplicaGradient::Dense(_)) | None => {}
                }
            }
            match std::mem::take(&mut self.loose.filled[number]) {
                Slot::Empty => {}
                Slot::Rows(rows) => *gradient = Some(ReplicaGradient::Rows(rows)),
                Slot::Dense => dense.push(number),
            }
        }
        let packs = self.take_packs(&dense, joined);
        let bucket = Arc::new(self);
        for number in dense {
            all[number] = Some(ReplicaGradient::Dense(match &packs {
                Some(packs) if packs.layout().has(number) => {
                    Dense::Packed { packs: packs.clone(), number, range: None }
                }
                _ => Dense::Bucket(bucket.clone(), number),
            }));
        }
        Ok(all)
    }

    /// Returns the elements of a dense gradient that is in the bucket and in no pack.
    pub(super) fn dense<T: Number>(&self, number: usize) -> Option<&[T]> {
        T::in_vector(self.loose.places.get(number)?)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let mut idle = lock(&self.pool.idle);
        if idle.len() <= self.replica {
            idle.resize_with(self.replica + 1, Vec::new);
        }
        idle[self.replica].push(std::mem::take(&mut self.loose));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use distribute_collective::group::local;

    fn variable(shape: (usize, usize), dtype: DType) -> Var {
        Var::zeros(shape, dtype, &Device::Cpu).unwrap()
    }

    fn rows(rows: &[usize], values: &[f64]) -> Rows {
        Rows::new(rows.to_vec(), f64::vector(values.to_vec()))
    }

    fn dense(values: &[f64]) -> Tensor {
        Tensor::from_slice(values, (3, 2), &Device::Cpu).unwrap()
    }

    fn take(bucket: &mut Bucket) -> Slot {
        std::mem::take(&mut bucket.loose.filled[0])
    }

    #[test]
    fn of_rows_and_dense_gradients_of_one_table_the_sum_is_there_in_any_order() {
        let table = variable((3, 2), DType::F64);
        let pool = Pool::new([&table].into_iter(), [].into_iter(), [].into_iter(), None, None);
        let one = |bucket: &mut Bucket| bucket.add_rows(0, rows(&[0, 2], &[1., 2., 3., 4.]));
        let other = |bucket: &mut Bucket| bucket.add_rows(0, rows(&[1, 2], &[10., 20., 30., 40.]));
        let all = |bucket: &mut Bucket| bucket.add(0, &dense(&[100.; 6])).unwrap();
        type Deposits<'a> = &'a [&'a dyn Fn(&mut Bucket)];
        let steps: [Deposits<'_>; 4] =
            [&[&one, &other, &all], &[&all, &one, &other], &[&one, &all, &other], &[&other, &all, &one]];
        for steps in steps {
            let mut bucket = pool.take(0, 1, None);
            // What an earlier step left in the buffer is gone.
            assert!(!bucket.has(0) && matches!(take(&mut bucket), Slot::Empty));
            steps.iter().for_each(|step| step(&mut bucket));
            assert!(matches!(take(&mut bucket), Slot::Dense));
            assert_eq!(bucket.dense::<f64>(0).unwrap(), [101., 102., 110., 120., 133., 144.]);
        }
        let mut bucket = pool.take(0, 1, None);
        one(&mut bucket);
        other(&mut bucket);
        let Slot::Rows(rows) = take(&mut bucket) else { panic!("not by row") };
        assert_eq!(rows.rows, [0, 1, 2]);
        assert_eq!(rows.elements::<f64>().unwrap(), [1., 2., 10., 20., 33., 44.]);
        assert!(!bucket.has(0));
    }

    #[test]
    fn variables_of_two_dtypes_have_places_of_their_own() {
        let all = [(1, DType::F64), (3, DType::F32), (2, DType::F64), (5, DType::F32)];
        let all = all.map(|(n, dtype)| variable((n, 2), dtype));
        let mut bucket = Pool::new(all.iter(), [].into_iter(), [].into_iter(), None, None).take(0, 1, None);
        for (number, variable) in all.iter().enumerate() {
            bucket.add(number, &(variable.ones_like().unwrap() * number as f64).unwrap()).unwrap();
        }
        let bucket = Arc::new(bucket);
        for (number, variable) in all.iter().enumerate() {
            let there = Dense::Bucket(bucket.clone(), number).tensor(variable).unwrap();
            assert_eq!((there.dims(), there.dtype()), (variable.dims(), variable.dtype()));
            let there = there.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
            assert_eq!(there, vec![number as f64; variable.elem_count()]);
        }
    }

    #[test]
    fn buckets_serve_again_one_for_each_replica() {
        let weight = variable((3, 2), DType::F64);
        let pool = Pool::new([&weight].into_iter(), [].into_iter(), [].into_iter(), None, None);
        let mut places = Vec::new();
        for _ in 0..3 {
            // Both at once, as in a step.
            let mut buckets = [pool.take(0, 1, None), pool.take(1, 1, None)];
            buckets.iter_mut().for_each(|bucket| bucket.add(0, &dense(&[1.; 6])).unwrap());
            places.push(buckets.each_ref().map(|bucket| bucket.dense::<f64>(0).unwrap().as_ptr()));
        }
        assert!(places[0][0] != places[0][1] && places.iter().all(|step| *step == places[0]));
        assert_eq!(pool.counts(), [1, 1]);
    }

    #[test]
    fn what_had_a_dense_gradient_goes_into_packs_in_the_next_step() {
        let all = [variable((1, 2), DType::F64), variable((3, 2), DType::F64), variable((2, 2), DType::F64)];
        let buffers = local::groups(Default::default(), 1, 1).unwrap()[0].buffers().clone();
        let pool = Pool::new(all.iter(), [].into_iter(), [].into_iter(), Some(buffers), None);
        let found = || vec![None, Some(ReplicaGradient::Dense(Dense::Host(dense(&[5.; 6])))), None];
        let step = |pool: &Arc<Pool>| {
            let mut bucket = pool.take(0, 1, None);
            bucket.place::<f64>(0).unwrap().0.copy_from_slice(&[1., 2.]);
            bucket.into_gradients(found()).unwrap()
        };
        // Nobody knows yet which those are.
        let first = step(&pool);
        assert!(matches!(&first[0], Some(ReplicaGradient::Dense(Dense::Bucket(_, 0)))), "{first:?}");
        assert!(matches!(&first[1..], [Some(ReplicaGradient::Dense(Dense::Host(_))), None]), "{first:?}");
        let layout = pool.layout(&[true, true, true], None);
        for _ in 0..2 {
            let gradients = step(&pool);
            let [Some(ReplicaGradient::Dense(one)), Some(ReplicaGradient::Dense(other)), None] =
                &gradients[..]
            else {
                panic!("{gradients:?}");
            };
            assert_eq!((one.placed().unwrap(), other.placed().unwrap()), (&[1., 2.][..], &[5.; 6][..]));
            let packs = |at: usize| gradients[at].as_ref().and_then(ReplicaGradient::packs).unwrap();
            assert!(Arc::ptr_eq(packs(0), packs(1)) && Arc::ptr_eq(packs(0).layout(), &layout));
            assert_eq!(packs(0).dense::<f64>(2).unwrap(), [0.; 4]);
        }
        assert!(Arc::ptr_eq(&pool.layout(&[true, true, true], None), &layout));
        assert!(!pool.layout(&[true, false, true], None).has(1));
    }
}
