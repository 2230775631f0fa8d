//! Access to the operation that created a tensor, which candle keeps private.

use candle_core::op::{BackpropOp, BinaryOp, Op};
use candle_core::{DType, Device, Layout, Result, Tensor, TensorId, Var};
use std::mem::offset_of;
use std::sync::{Arc, OnceLock};

/// A struct with the same fields as candle's `Tensor_`, in the same order. The compiler is expected to lay out both in
/// the same way, and [`find`] verifies it.
#[expect(dead_code, reason = "only the position of a field counts")]
struct TensorFields {
    id: TensorId,
    storage: Arc<()>,
    layout: Layout,
    op: BackpropOp,
    is_variable: bool,
    dtype: DType,
    device: Device,
}

// A struct with one field of the same size has it at its start, so an `Option<Op>` is laid out like the `BackpropOp`
// that contains it.
const _: () = assert!(size_of::<BackpropOp>() == size_of::<Option<Op>>());

/// A handle to the operations of candle's graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Graph {
    /// The offset in bytes of the operation from the start of a tensor's fields.
    offset: usize,
}

impl Graph {
    /// Returns a handle to the graph, or `None` if this build lays out candle's tensors in an unexpected way. Only the
    /// first call checks the layout.
    pub(super) fn get() -> Option<Self> {
        static GRAPH: OnceLock<Option<Graph>> = OnceLock::new();
        *GRAPH.get_or_init(|| find(offset_of!(TensorFields, op)).ok().flatten())
    }

    /// Returns the operation that created a tensor, or `None` if the tensor is a variable or does not depend on one.
    #[inline]
    pub(super) fn op(self, tensor: &Tensor) -> Option<&Op> {
        let fields = &raw const **tensor;
        // SAFETY: only `find` makes a `Graph`. It has seen at this offset, which is aligned and within the fields, the
        // operations that had made tensors of this program, and all tensors are of one type, which has one layout. The
        // pointer is made of a reference to all fields, which are initialised behind the `Arc` of `tensor`, and candle
        // never writes to them again. The reference that is returned lives no longer than the one to `tensor`.
        let op = unsafe { &*fields.cast::<u8>().add(self.offset).cast::<BackpropOp>() };
        (**op).as_ref()
    }
}

/// Checks, for two tensors, that their operations are at `offset` from the start of their fields. Returns a handle to
/// the graph if they are.
///
/// The operation is the only field of a result that contains the address of an argument, at a position that the type
/// [`Op`] determines. Finding the address there therefore proves that the operation is at `offset`.
fn find(offset: usize) -> Result<Option<Graph>> {
    const ALPHA: f64 = 0.8125;
    let (x, other) = (Var::new(&[1f32, -1.], &Device::Cpu)?, Var::new(&[2f32, -2.], &Device::Cpu)?);
    let fields = &**x.as_tensor();
    let alike = size_of_val(fields) == size_of::<TensorFields>()
        && align_of_val(fields) == align_of::<TensorFields>();
    let fits = offset.is_multiple_of(align_of::<BackpropOp>())
        && offset.checked_add(size_of::<BackpropOp>()).is_some_and(|end| end <= size_of_val(fields));
    if !alike || !fits {
        return Ok(None);
    }
    let elu = (x.elu(ALPHA)?, Some(Op::Elu(x.as_tensor().clone(), ALPHA)));
    let sum = (
        (x.as_tensor() + other.as_tensor())?,
        Some(Op::Binary(x.as_tensor().clone(), other.as_tensor().clone(), BinaryOp::Add)),
    );
    let found = match (&elu.1, &sum.1) {
        (Some(Op::Elu(argument, alpha)), Some(Op::Binary(left, right, _))) => {
            is_at(&elu, offset, argument)
                && is_at(&elu, offset, alpha)
                && is_at(&sum, offset, left)
                && is_at(&sum, offset, right)
        }
        _ => false,
    };
    let graph = Graph { offset };
    let reads = found
        && graph.op(&x).is_none()
        && matches!(graph.op(&elu.0), Some(Op::Elu(..)))
        && matches!(graph.op(&sum.0), Some(Op::Binary(_, _, BinaryOp::Add)));
    Ok(reads.then_some(graph))
}

/// Returns `true` if the fields of the tensor contain the bytes of `part` at the position that `part` has if an
/// operation starts at `offset`. `part` is a part of the operation `op`. There must be enough space for an operation.
fn is_at<T>((tensor, op): &(Tensor, Option<Op>), offset: usize, part: &T) -> bool {
    let inside = std::ptr::from_ref(part).addr() - std::ptr::from_ref(op).addr();
    let fields = (&raw const **tensor).cast::<u8>();
    let part = std::ptr::from_ref(part).cast::<u8>();
    (0..size_of::<T>()).all(|byte| {
        // SAFETY: both bytes are in bounds: that of the fields because `part` is inside of an operation, and an
        // operation fits there. `part` is a number or an address, so all its bytes are set. Those of the fields are,
        // too, if the operation is there. If it is not, padding may be: its bytes are arbitrary, and a volatile read
        // keeps the compiler from concluding anything from that.
        unsafe { fields.add(offset + inside + byte).read_volatile() == part.add(byte).read() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-74
    #[test]
    fn operations_of_this_build_can_be_read() {
        let graph = Graph::get().unwrap();
        let x = Var::new(&[[1f64, 2.], [3., 4.]], &Device::Cpu).unwrap();
        let y = x.narrow(1, 1, 1).unwrap();
        let Some(Op::Narrow(of, 1, 1, 1)) = graph.op(&y) else { panic!("another operation") };
        assert_eq!(of.id(), x.id());
        assert!(graph.op(&x).is_none() && graph.op(&x.detach().neg().unwrap()).is_none());
        let cat = Tensor::cat(&[&y, x.as_tensor()], 1).unwrap();
        assert!(matches!(graph.op(&cat), Some(Op::Cat(all, 1)) if all.len() == 2 && all[0].id() == y.id()));
        let sum = cat.sum_keepdim(0).unwrap();
        assert!(
            matches!(graph.op(&sum), Some(Op::Reduce(_, candle_core::op::ReduceOp::Sum, dims)) if *dims == [1, 3])
        );
    }

    // INV-74
    #[test]
    fn operations_are_found_at_no_other_offset() {
        let right = offset_of!(TensorFields, op);
        for offset in 0..=size_of::<TensorFields>() {
            assert_eq!(find(offset).unwrap().is_some(), offset == right, "{offset}");
        }
        assert!(find(usize::MAX).unwrap().is_none());
    }
}
