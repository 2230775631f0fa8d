//! Access to the elements of several variables, which are locked at the same time and written in place.

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Var};
use distribute_base::Result;
use std::cell::RefCell;

/// The elements of a locked variable.
pub(crate) enum Locked<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}

/// The maximum number of variables that are locked at the same time. candle's calls are nested, and each needs stack
/// space.
pub(crate) const LOCKED: usize = 64;

type Then<'f> = Box<dyn FnOnce(Vec<Locked<'_>>) -> Result<()> + 'f>;

/// Locks all variables for writing, and calls `then` with their elements.
///
/// candle provides access to the elements of a variable only inside a call, so there is one nested call for each
/// variable. No variable may occur twice.
pub(crate) fn with_locked<'f>(
    variables: &[&Var],
    then: impl FnOnce(Vec<Locked<'_>>) -> Result<()> + 'f,
) -> Result<()> {
    lock_next(variables, Vec::with_capacity(variables.len()), Box::new(then))
}

fn lock_next<'a>(variables: &[&Var], above: Vec<Locked<'a>>, then: Then<'_>) -> Result<()> {
    let Some((first, rest)) = variables.split_first() else { return then(above) };
    // candle treats rows without columns as repeated elements.
    if first.elem_count() == 0 {
        let mut all: Vec<Locked<'_>> = above;
        all.push(if first.dtype() == DType::F32 { Locked::F32(&mut []) } else { Locked::F64(&mut []) });
        return lock_next(rest, all, then);
    }
    let level = Level { rest, state: RefCell::new(Some((above, then))), result: RefCell::new(Ok(())) };
    first.inplace_op1(&level)?;
    level.result.into_inner()
}

struct Level<'a, 'f> {
    rest: &'a [&'a Var],
    state: RefCell<Option<(Vec<Locked<'a>>, Then<'f>)>>,
    result: RefCell<Result<()>>,
}

impl InplaceOp1 for Level<'_, '_> {
    fn name(&self) -> &'static str {
        "optimizer update"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("the variable is not contiguous")
        };
        let mine = match storage {
            CpuStorage::F32(v) => Locked::F32(&mut v[start..end]),
            CpuStorage::F64(v) => Locked::F64(&mut v[start..end]),
            _ => candle_core::bail!("the variable is neither f32 nor f64"),
        };
        let Some((above, then)) = self.state.take() else { candle_core::bail!("called twice") };
        let mut all: Vec<Locked<'_>> = above;
        all.push(mine);
        *self.result.borrow_mut() = lock_next(self.rest, all, then);
        Ok(())
    }
}
