//! Arithmetic on leaves, for the functions that the cases describe.

use super::errors::raise;
use distribute::tensor::Leaf;
use distribute::tensor::dtype::Buffer;
use distribute::{HostTensor, Result};

fn zip<T: Clone>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> Vec<T> {
    a.iter().zip(b).map(|(a, b)| f(a.clone(), b.clone())).collect()
}

macro_rules! arithmetic {
    ($a:expr, $b:expr, $wrapping:ident, $op:tt) => {{
        use Buffer::*;
        match ($a.buffer(), $b.buffer()) {
            (F16(a), F16(b)) => F16(zip(a, b, |a, b| a $op b)),
            (Bf16(a), Bf16(b)) => Bf16(zip(a, b, |a, b| a $op b)),
            (F32(a), F32(b)) => F32(zip(a, b, |a, b| a $op b)),
            (F64(a), F64(b)) => F64(zip(a, b, |a, b| a $op b)),
            (C64(a), C64(b)) => C64(zip(a, b, |a, b| a $op b)),
            (C128(a), C128(b)) => C128(zip(a, b, |a, b| a $op b)),
            (I8(a), I8(b)) => I8(zip(a, b, i8::$wrapping)),
            (U8(a), U8(b)) => U8(zip(a, b, u8::$wrapping)),
            (I16(a), I16(b)) => I16(zip(a, b, i16::$wrapping)),
            (U16(a), U16(b)) => U16(zip(a, b, u16::$wrapping)),
            (I32(a), I32(b)) => I32(zip(a, b, i32::$wrapping)),
            (U32(a), U32(b)) => U32(zip(a, b, u32::$wrapping)),
            (I64(a), I64(b)) => I64(zip(a, b, i64::$wrapping)),
            (U64(a), U64(b)) => U64(zip(a, b, u64::$wrapping)),
            _ => return Err(raise("TypeError")),
        }
    }};
}

fn elementwise(a: &Leaf, b: &Leaf, f: impl Fn(&HostTensor, &HostTensor) -> Result<Buffer>) -> Result<Leaf> {
    let (a, b) = (a.to_host()?, b.to_host()?);
    if a.dims() != b.dims() {
        return Err(raise("InvalidArgumentError"));
    }
    Ok(Leaf::Host(HostTensor::from_buffer(f(&a, &b)?, a.dims())?))
}

/// Returns `a + b`, of equal shapes and dtypes.
pub fn add(a: &Leaf, b: &Leaf) -> Result<Leaf> {
    elementwise(a, b, |a, b| Ok(arithmetic!(a, b, wrapping_add, +)))
}

/// Returns `a - b`, of equal shapes and dtypes.
pub fn subtract(a: &Leaf, b: &Leaf) -> Result<Leaf> {
    elementwise(a, b, |a, b| Ok(arithmetic!(a, b, wrapping_sub, -)))
}

/// Returns `a * factor`, in the dtype of `a`.
pub fn times(a: &Leaf, factor: usize) -> Result<Leaf> {
    let factors =
        HostTensor::new(vec![factor as u64; a.dims().iter().product()], a.dims())?.cast(a.dtype()?)?;
    elementwise(a, &Leaf::Host(factors), |a, b| Ok(arithmetic!(a, b, wrapping_mul, *)))
}
