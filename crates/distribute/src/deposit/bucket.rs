//! A replica's gradients of one step, one after another in one place for each dtype.

use super::Rows;
use crate::lock::lock;
use crate::number::{Number, Vectors, with_elements};
use candle_core::{DType, Result, Tensor, TensorId, Var};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The buckets of one optimizer, which serve again in each step.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Which variable a tensor is.
    numbers: HashMap<TensorId, usize>,
    /// Where the gradient of each variable lies among those of its dtype.
    places: Vec<Place>,
    /// For each replica those that it doesn't use: the memory is near to its core.
    idle: Mutex<Vec<Vec<Buffers>>>,
}

/// Of which dtype a variable is, and its elements among all of that dtype.
#[derive(Debug)]
struct Place {
    dtype: DType,
    range: Range<usize>,
}

/// Places begin at cache lines, so that products written there are as fast as elsewhere, and no two cores write one line.
const ALIGNED: usize = 16;

impl Pool {
    pub(crate) fn new<'v>(variables: impl Iterator<Item = &'v Var>) -> Arc<Self> {
        let (mut numbers, mut places) = (HashMap::new(), Vec::<Place>::new());
        for (number, variable) in variables.enumerate() {
            let dtype = variable.dtype();
            let before = places.iter().rfind(|place| place.dtype == dtype).map_or(0, |place| place.range.end);
            let start = before.next_multiple_of(ALIGNED);
            numbers.insert(variable.as_tensor().id(), number);
            places.push(Place { dtype, range: start..start + variable.elem_count() });
        }
        Arc::new(Self { numbers, places, idle: Mutex::default() })
    }

    /// How many elements there are of a dtype.
    fn size(&self, dtype: DType) -> usize {
        self.places.iter().rfind(|place| place.dtype == dtype).map_or(0, |place| place.range.end)
    }

    /// An empty one.
    pub(crate) fn take(self: &Arc<Self>, replica: usize) -> Bucket {
        let idle = lock(&self.idle).get_mut(replica).and_then(Vec::pop);
        let mut buffers = idle.unwrap_or_default();
        buffers.filled.clear();
        buffers.filled.resize_with(self.places.len(), || Filled::Nothing);
        Bucket { pool: self.clone(), replica, buffers }
    }
}

/// What is kept from step to step.
#[derive(Debug, Default)]
struct Buffers {
    elements: Vectors,
    /// For each variable.
    filled: Vec<Filled>,
}

#[derive(Debug)]
enum Filled {
    Nothing,
    Dense,
    Rows(Rows),
}

/// The gradients that a replica's layers have put here, for an optimizer's variables.
#[derive(Debug)]
pub(crate) struct Bucket {
    pool: Arc<Pool>,
    replica: usize,
    buffers: Buffers,
}

/// What a bucket has of a variable.
pub(crate) enum Deposit {
    Dense,
    Rows(Rows),
}

impl Bucket {
    pub(super) fn pool(&self) -> Arc<Pool> {
        self.pool.clone()
    }

    /// Which of the optimizer's variables this is, if it is one.
    pub(super) fn number(&self, variable: &Tensor) -> Option<usize> {
        self.pool.numbers.get(&variable.id()).copied()
    }

    /// Whether there is something of a variable.
    pub(crate) fn has(&self, number: usize) -> bool {
        !matches!(self.buffers.filled[number], Filled::Nothing)
    }

    /// Where the dense gradient of a variable goes, and whether there is something to add to. None for another dtype.
    pub(super) fn place<T: Number>(&mut self, number: usize) -> Option<(&mut [T], bool)> {
        let Self { pool, buffers: Buffers { elements, filled }, .. } = self;
        let place = pool.places.get(number).filter(|place| place.dtype == T::CANDLE)?;
        let all = T::among_mut(elements);
        if all.is_empty() {
            // Zeros fresh from the system: what is never written, as the place of a table of which only rows come, takes
            // no memory.
            *all = vec![T::of(0.); pool.size(T::CANDLE)];
        }
        let place = &mut all[place.range.clone()];
        let add = match std::mem::replace(&mut filled[number], Filled::Dense) {
            Filled::Nothing => false,
            Filled::Dense => true,
            Filled::Rows(rows) => {
                place.fill(T::of(0.));
                rows.add_to(place);
                true
            }
        };
        Some((place, add))
    }

    /// Adds rows of a table.
    pub(crate) fn add_rows(&mut self, number: usize, rows: Rows) {
        match self.pool.places[number].dtype {
            DType::F32 => self.add_rows_of::<f32>(number, rows),
            _ => self.add_rows_of::<f64>(number, rows),
        }
    }

    fn add_rows_of<T: Number>(&mut self, number: usize, rows: Rows) {
        let filled = &mut self.buffers.filled[number];
        match std::mem::replace(filled, Filled::Nothing) {
            Filled::Nothing => *filled = Filled::Rows(rows),
            Filled::Rows(before) => *filled = Filled::Rows(before.plus::<T>(rows)),
            Filled::Dense => {
                *filled = Filled::Dense;
                if let Some((place, _)) = self.place::<T>(number) {
                    rows.add_to(place);
                }
            }
        }
    }

    /// Adds a variable's dense gradient.
    pub(crate) fn add(&mut self, number: usize, gradient: &Tensor) -> Result<()> {
        match gradient.dtype() {
            DType::F32 => self.add_of::<f32>(number, gradient),
            _ => self.add_of::<f64>(number, gradient),
        }
    }

    fn add_of<T: Number>(&mut self, number: usize, gradient: &Tensor) -> Result<()> {
        with_elements(gradient, |gradient: &[T]| {
            let Some((place, add)) = self.place::<T>(number) else { return };
            match add {
                true => place.iter_mut().zip(gradient).for_each(|(sum, x)| *sum = sum.plus(*x)),
                false => place.copy_from_slice(gradient),
            }
        })
    }

    /// Takes what is there of a variable: rows are given away, dense elements stay for [`dense`](Self::dense).
    pub(crate) fn take(&mut self, number: usize) -> Option<Deposit> {
        match std::mem::replace(&mut self.buffers.filled[number], Filled::Nothing) {
            Filled::Nothing => None,
            Filled::Rows(rows) => Some(Deposit::Rows(rows)),
            Filled::Dense => {
                self.buffers.filled[number] = Filled::Dense;
                Some(Deposit::Dense)
            }
        }
    }

    /// A copy of a dense gradient that is there, of the variable's shape.
    pub(crate) fn tensor(&self, number: usize, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        match variable.dtype() {
            DType::F32 => Tensor::from_slice(self.dense::<f32>(number).unwrap_or_default(), shape, device),
            _ => Tensor::from_slice(self.dense::<f64>(number).unwrap_or_default(), shape, device),
        }
    }

    /// The elements of a dense gradient that is there.
    pub(crate) fn dense<T: Number>(&self, number: usize) -> Option<&[T]> {
        let place = self.pool.places.get(number).filter(|place| place.dtype == T::CANDLE)?;
        T::among(&self.buffers.elements).get(place.range.clone())
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let mut idle = lock(&self.pool.idle);
        if idle.len() <= self.replica {
            idle.resize_with(self.replica + 1, Vec::new);
        }
        idle[self.replica].push(std::mem::take(&mut self.buffers));
    }
}
