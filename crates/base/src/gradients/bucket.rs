//! Buckets: a replica's gradients of one step, in memory that later steps reuse.

use super::overlap::OverlapSender;
use super::ready::ReadyTracker;
use super::{Dense, Layout, PackCoding, PackWriter, PackedGradients, Ranges, ReplicaGradient, Rows};
use crate::lock::lock;
use crate::number::{Elements, Number, with_elements};
use candle_core::{DType, Result, Tensor, TensorId, Var};
use distribute_collective::group::EarlySend;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// A pool of an optimizer's buckets, which each step reuses.
#[derive(Debug)]
pub struct BucketPool {
    /// The index of the variable to which each candle tensor belongs.
    numbers: HashMap<TensorId, usize>,
    /// The frozen variables. Their gradients are not computed.
    frozen: HashSet<TensorId>,
    /// The dtype and the number of elements of each variable.
    sizes: Vec<(DType, usize)>,
    /// The idle buckets, by replica. A replica reuses its own buckets, because their memory is close to its core.
    idle: Mutex<Vec<Vec<BucketMemory>>>,
    /// The encoding of packs, with the buffers for packs; `None` if the replicas' gradients are summed before anything
    /// is sent.
    packs: Option<PackCoding>,
    /// The ranges of each variable that each worker receives; `None` if each worker receives everything or an equal
    /// range of each pack.
    ranges: Option<Ranges>,
    /// The layout of the large variables, which is used until the workers have agreed on one. `None` if there are no
    /// large variables or no packs.
    large: Option<Arc<Layout>>,
    /// The generation of the group, and the layout of packs on which its workers agreed in the last step.
    layout: Mutex<(u64, Option<Arc<Layout>>)>,
    /// The order in which the first replica of this process completed its gradients in the last step.
    order: Mutex<Vec<u32>>,
}

impl BucketPool {
    /// Creates the pool for an optimizer's variables. `copies` are the copies on devices, each with the index of its
    /// variable. Gradients of the variables in `frozen` are dropped. If `packs` is given, gradients are written into
    /// packs for other workers; with `ranges`, each worker receives only its ranges of them.
    pub fn new<'v>(
        variables: impl Iterator<Item = &'v Var>,
        copies: impl Iterator<Item = (usize, &'v Var)>,
        frozen: impl Iterator<Item = &'v Var>,
        packs: Option<PackCoding>,
        ranges: Option<Ranges>,
    ) -> Arc<Self> {
        let (mut numbers, mut sizes) = (HashMap::new(), Vec::new());
        for (number, variable) in variables.enumerate() {
            numbers.insert(variable.as_tensor().id(), number);
            sizes.push((variable.dtype(), variable.elem_count()));
        }
        numbers.extend(copies.map(|(number, copy)| (copy.as_tensor().id(), number)));
        let frozen = frozen.map(|variable| variable.as_tensor().id()).collect();
        let large = packs.as_ref().and_then(|_| Layout::of_large(&sizes, ranges.as_ref())).map(Arc::new);
        let (idle, layout, order) = Default::default();
        Arc::new(Self { numbers, frozen, sizes, idle, packs, ranges, large, layout, order })
    }

    /// Returns the number of idle buckets of each replica.
    pub fn counts(&self) -> Vec<usize> {
        lock(&self.idle).iter().map(Vec::len).collect()
    }

    /// Returns an empty bucket for a replica of this process. If `early` is given, complete packs are sent before the
    /// call in which they are reduced. If the generation of the group has changed, discards the layout and the order,
    /// because the previous generation's workers agreed on them.
    pub fn take(self: &Arc<Self>, replica: usize, generation: u64, early: Option<EarlySend>) -> Bucket {
        let mut known = lock(&self.layout);
        if known.0 != generation {
            *known = (generation, None);
            lock(&self.order).clear();
        }
        let agreed = known.1.clone();
        drop(known);
        let idle = lock(&self.idle).get_mut(replica).and_then(Vec::pop);
        let mut memory = idle.unwrap_or_default();
        if memory.elements.is_empty() {
            memory.elements = self.sizes.iter().map(|(dtype, _)| Elements::none(*dtype)).collect();
        }
        memory.slots.clear();
        memory.slots.resize_with(self.sizes.len(), Slot::default);
        if self.packs.is_some() {
            memory.ready.begin(self.sizes.len());
        }
        let is_agreed = agreed.is_some();
        let packs = self.packs.as_ref().zip(agreed.or_else(|| self.large.clone()));
        if let Some((_, layout)) = &packs {
            memory.leave_to(layout);
        }
        let packs = packs.map(|(coding, layout)| (PackWriter::new(layout, coding.buffers()), coding));
        let overlap = early.zip(packs.as_ref()).filter(|_| is_agreed);
        let overlap = overlap.map(|(early, (packs, coding))| packs.overlap_sender(early, replica, coding));
        let packs = packs.map(|(packs, _)| packs);
        Bucket { pool: self.clone(), replica, memory, packs, is_agreed, overlap, on_device: Vec::new() }
    }

    /// Returns the layout of packs for the gradients of the variables that are `dense`. The next buckets use the same
    /// layout. If an `order` is given, packs are filled in this order. Otherwise the previous layout is returned if the
    /// same variables are dense; if not, a new one is filled in the order of the variables' indices.
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

    /// Returns `true` if gradients are written into packs for other workers.
    pub fn has_packs(&self) -> bool {
        self.packs.is_some()
    }

    /// Returns the order in which the first replica of this process completed its gradients in the last step. Variables
    /// with an unknown order come last. Returns `None` if the group's current generation has not completed a step, or
    /// if gradients are not written into packs.
    pub fn order(&self) -> Option<Vec<u32>> {
        Some(lock(&self.order).clone()).filter(|order| !order.is_empty())
    }
}

/// The memory of a bucket, which is reused from step to step.
#[derive(Debug, Default)]
struct BucketMemory {
    /// The elements of each variable's gradient. They are empty until the variable has a dense gradient outside packs.
    /// For a table that only has gradients by row, they stay empty.
    elements: Vec<Elements>,
    /// The state of each variable's gradient.
    slots: Vec<Slot>,
    ready: ReadyTracker,
    /// The digest of the layout for whose variables this bucket has no memory; 0 before there is a layout.
    left_to: u64,
}

impl BucketMemory {
    /// Frees the elements of the variables in a layout, whose gradients are written into packs from now on.
    fn leave_to(&mut self, layout: &Layout) {
        if std::mem::replace(&mut self.left_to, layout.digest()) != layout.digest() {
            let all = self.elements.iter_mut().enumerate();
            all.filter(|(number, _)| layout.has(*number)).for_each(|(_, elements)| elements.release());
        }
    }
}

/// The state of a variable's gradient in a bucket.
#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    /// A dense gradient: all elements of the variable, in the bucket's memory or in a pack.
    Dense,
    Rows(Rows),
}

/// The gradients of an optimizer's variables that the layers of one replica have written in a step.
#[derive(Debug)]
pub struct Bucket {
    pool: Arc<BucketPool>,
    replica: usize,
    memory: BucketMemory,
    /// The packs for other workers, for the variables that had a dense gradient in the last step, or for large
    /// variables in the first step; `None` if gradients are not written into packs, or if there is no layout yet.
    packs: Option<PackWriter>,
    /// Whether the workers have agreed on the layout of the packs.
    is_agreed: bool,
    /// The sender of packs that are complete before the others.
    overlap: Option<OverlapSender>,
    /// The rows of tables on the replica's device, in the order in which they were added. Each item contains the
    /// table's index.
    on_device: Vec<(usize, Rows)>,
}

impl Bucket {
    /// Returns the index of a variable, or `None` if the variable does not belong to the optimizer.
    pub(super) fn number(&self, variable: &Tensor) -> Option<usize> {
        self.pool.numbers.get(&variable.id()).copied()
    }

    /// Returns `true` if a variable is frozen.
    pub(super) fn is_frozen(&self, variable: &Tensor) -> bool {
        self.pool.frozen.contains(&variable.id())
    }

    /// Returns `true` if the bucket contains a gradient of variable `number`.
    fn has(&self, number: usize) -> bool {
        !matches!(self.memory.slots[number], Slot::Empty)
    }

    /// Returns `true` if a dense gradient of variable `number` is written into the packs for other workers.
    fn is_in_packs(&self, number: usize) -> bool {
        self.packs.as_ref().is_some_and(|packs| packs.layout().has(number))
    }

    /// Ends the step for the packs, and returns all of them. Returns `None` if gradients are not written into packs, or
    /// if there is no layout yet.
    ///
    /// First sets all variables in the packs to zero except those in `filled`, which must be sorted. `joined` contains
    /// the variables whose gradients have contributions that no layer wrote. If packs are sent early, sends the rest,
    /// unless a pack has changed after it was sent: the caller must then send all packs. The first replica records the
    /// order in which its gradients were completed.
    fn take_packs(&mut self, filled: &[usize], joined: Vec<usize>) -> Option<Arc<PackedGradients>> {
        self.pool.packs.as_ref()?;
        self.memory.ready.end(joined);
        if self.replica == 0 {
            *lock(&self.pool.order) = self.memory.ready.order();
        }
        let mut packs = self.packs.take()?;
        // Other workers receive no packs of a layout that was not agreed, so gaps in those need no zeros.
        let all = if self.is_agreed { 0..self.memory.slots.len() } else { 0..0 };
        all.filter(|number| filled.binary_search(number).is_err()).for_each(|number| packs.clear(number));
        let overlap = self.overlap.take().filter(|_| !packs.was_reopened());
        let flat = packs.freeze();
        Some(Arc::new(match overlap.map(|overlap| overlap.finish(flat.packs())) {
            Some(call) => flat.sent_early(call),
            None => flat,
        }))
    }

    /// Records that the gradient of a variable was written, or that values were added to [its
    /// elements](Self::dense_mut). If packs are sent early and all gradients in the variable's pack are probably
    /// complete, sends the pack.
    pub(super) fn mark_written(&mut self, number: usize) {
        if self.pool.packs.is_none() || !self.memory.ready.record_write(number) {
            return;
        }
        if let Some((overlap, packs)) = self.overlap.as_mut().zip(self.packs.as_mut())
            && let Some(pack) = packs.layout().pack(number)
            && overlap.complete(pack)
        {
            overlap.send(pack, &packs.close(pack));
        }
    }

    /// Makes the gradient of a variable dense, including the rows that were added before. Returns its elements, and
    /// whether the caller must add to them instead of setting them. Returns `None` if the variable has a different
    /// dtype.
    pub(super) fn dense_mut<T: Number>(&mut self, number: usize) -> Option<(&mut [T], bool)> {
        let Self { pool, memory: BucketMemory { elements, slots, .. }, packs, .. } = self;
        let dense: &mut [T] = match packs.as_mut().and_then(|packs| packs.elements_mut(number)) {
            Some(dense) => dense,
            None => {
                let dense = T::vec_of_mut(&mut elements[number])?;
                if dense.is_empty() {
                    *dense = vec![T::of(0.); pool.sizes[number].1];
                }
                dense
            }
        };
        let add = match std::mem::replace(&mut slots[number], Slot::Dense) {
            Slot::Empty => false,
            Slot::Dense => true,
            Slot::Rows(rows) => {
                dense.fill(T::of(0.));
                rows.add_to(dense);
                true
            }
        };
        Some((dense, add))
    }

    /// Adds rows to the gradient of the table with index `number`.
    pub fn add_rows(&mut self, number: usize, rows: Rows) {
        match self.pool.sizes[number].0 {
            DType::F32 => self.add_rows_of::<f32>(number, rows),
            _ => self.add_rows_of::<f64>(number, rows),
        }
    }

    /// Adds rows on the replica's device to the gradient of the table with index `number`.
    pub(super) fn add_device_rows(&mut self, number: usize, rows: Rows) {
        self.on_device.push((number, rows));
    }

    /// Removes the rows on the replica's device from the bucket, and returns them.
    pub fn take_device_rows(&mut self) -> Vec<(usize, Rows)> {
        std::mem::take(&mut self.on_device)
    }

    fn add_rows_of<T: Number>(&mut self, number: usize, rows: Rows) {
        let slot = &mut self.memory.slots[number];
        match std::mem::take(slot) {
            Slot::Empty => *slot = Slot::Rows(rows),
            Slot::Rows(before) => *slot = Slot::Rows(before.add::<T>(rows)),
            Slot::Dense => {
                *slot = Slot::Dense;
                if let Some((dense, _)) = self.dense_mut::<T>(number) {
                    rows.add_to(dense);
                    self.mark_written(number);
                }
            }
        }
    }

    /// Adds a tensor to the dense gradient of a variable.
    fn add(&mut self, number: usize, gradient: &Tensor) -> Result<()> {
        match gradient.dtype() {
            DType::F32 => self.add_of::<f32>(number, gradient),
            _ => self.add_of::<f64>(number, gradient),
        }
    }

    fn add_of<T: Number>(&mut self, number: usize, gradient: &Tensor) -> Result<()> {
        with_elements(gradient, |gradient: &[T]| {
            let Some((place, add)) = self.dense_mut::<T>(number) else { return };
            if add {
                place.iter_mut().zip(gradient).for_each(|(sum, x)| *sum = sum.plus(*x))
            } else {
                place.copy_from_slice(gradient)
            }
        })
    }

    /// Returns the gradients of all variables. Each is the sum of the gradient that layers have written into the bucket
    /// and the one in `found`, which candle has computed. Gradients in `found` must be on the host. If packs are sent
    /// early, sends the rest of them, unless a pack has changed after it was sent.
    ///
    /// # Errors
    /// Returns candle's error if a gradient in `found` cannot be read.
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
            match std::mem::take(&mut self.memory.slots[number]) {
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

    /// Returns the elements of a dense gradient that is stored in the bucket and not in a pack; `None` if they do not
    /// have type `T`.
    pub(super) fn dense<T: Number>(&self, number: usize) -> Option<&[T]> {
        T::slice_of(self.memory.elements.get(number)?)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let mut idle = lock(&self.pool.idle);
        if idle.len() <= self.replica {
            idle.resize_with(self.replica + 1, Vec::new);
        }
        idle[self.replica].push(std::mem::take(&mut self.memory));
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
        Rows::new(rows.to_vec(), f64::into_elements(values.to_vec()))
    }

    fn dense(values: &[f64]) -> Tensor {
        Tensor::from_slice(values, (3, 2), &Device::Cpu).unwrap()
    }

    fn take(bucket: &mut Bucket) -> Slot {
        std::mem::take(&mut bucket.memory.slots[0])
    }

    #[test]
    fn of_rows_and_dense_gradients_of_one_table_the_sum_is_there_in_any_order() {
        let table = variable((3, 2), DType::F64);
        let pool = BucketPool::new([&table].into_iter(), [].into_iter(), [].into_iter(), None, None);
        let one = |bucket: &mut Bucket| bucket.add_rows(0, rows(&[0, 2], &[1., 2., 3., 4.]));
        let other = |bucket: &mut Bucket| bucket.add_rows(0, rows(&[1, 2], &[10., 20., 30., 40.]));
        let all = |bucket: &mut Bucket| bucket.add(0, &dense(&[100.; 6])).unwrap();
        type Writes<'a> = &'a [&'a dyn Fn(&mut Bucket)];
        let steps: [Writes<'_>; 4] =
            [&[&one, &other, &all], &[&all, &one, &other], &[&one, &all, &other], &[&other, &all, &one]];
        for steps in steps {
            let mut bucket = pool.take(0, 1, None);
            // The values that an earlier step left in the buffer are gone.
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
    fn variables_of_two_dtypes_have_separate_places() {
        let all = [(1, DType::F64), (3, DType::F32), (2, DType::F64), (5, DType::F32)];
        let all = all.map(|(n, dtype)| variable((n, 2), dtype));
        let mut bucket =
            BucketPool::new(all.iter(), [].into_iter(), [].into_iter(), None, None).take(0, 1, None);
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
        let pool = BucketPool::new([&weight].into_iter(), [].into_iter(), [].into_iter(), None, None);
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
    fn a_variable_with_a_dense_gradient_is_packed_in_the_next_step() {
        let all = [variable((1, 2), DType::F64), variable((3, 2), DType::F64), variable((2, 2), DType::F64)];
        let group = local::groups(Default::default(), 1, 1).unwrap().remove(0);
        let coding = PackCoding::new(Default::default(), group.buffers());
        let pool = BucketPool::new(all.iter(), [].into_iter(), [].into_iter(), Some(coding), None);
        let found = || vec![None, Some(ReplicaGradient::Dense(Dense::Host(dense(&[5.; 6])))), None];
        let step = |pool: &Arc<BucketPool>| {
            let mut bucket = pool.take(0, 1, None);
            bucket.dense_mut::<f64>(0).unwrap().0.copy_from_slice(&[1., 2.]);
            bucket.into_gradients(found()).unwrap()
        };
        // It is not known yet which variables have dense gradients.
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
            assert_eq!(
                (one.stored_elements().unwrap(), other.stored_elements().unwrap()),
                (&[1., 2.][..], &[5.; 6][..])
            );
            let packs = |at: usize| gradients[at].as_ref().and_then(ReplicaGradient::packs).unwrap();
            assert!(Arc::ptr_eq(packs(0), packs(1)) && Arc::ptr_eq(packs(0).layout(), &layout));
            assert_eq!(packs(0).dense::<f64>(2).unwrap(), [0.; 4]);
        }
        assert!(Arc::ptr_eq(&pool.layout(&[true, true, true], None), &layout));
        assert!(!pool.layout(&[true, false, true], None).has(1));
    }
}
