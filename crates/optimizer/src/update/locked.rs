//! The elements of several variables at once, to be written in place.

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Var};
use distribute_base::Result;
use std::cell::RefCell;

/// The elements of a variable, or of something of its dtype.
pub(crate) enum Locked<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}

type Then<'f> = Box<dyn FnOnce(Vec<Locked<'_>>) -> Result<()> + 'f>;

/// Locks all variables for writing and calls `then` with their elements.
///
/// candle gives out the elements of one variable inside of a call only: the calls are nested, one for each variable.
/// The variables must be distinct.
pub(crate) fn with_locked<'f>(
    variables: &[&Var],
    then: impl FnOnce(Vec<Locked<'_>>) -> Result<()> + 'f,
) -> Result<()> {
    descend(variables, Vec::with_capacity(variables.len()), Box::new(then))
}

fn descend<'a>(variables: &[&Var], above: Vec<Locked<'a>>, then: Then<'_>) -> Result<()> {
    let Some((first, rest)) = variables.split_first() else { return then(above) };
    // candle takes rows of no columns for repeated elements.
    if first.elem_count() == 0 {
        let mut all: Vec<Locked<'_>> = above;
        all.push(if first.dtype() == DType::F32 { Locked::F32(&mut []) } else { Locked::F64(&mut []) });
        return descend(rest, all, then);
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
        *self.result.borrow_mut() = descend(self.rest, all, then);
        Ok(())
    }
}
