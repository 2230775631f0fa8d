//! The element types of tensors, and the Rust types behind them.

use crate::ReduceOp;
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

macro_rules! dtypes {
    ($($variant:ident $ty:ty, $name:literal, $bytes:literal;)*) => {
        /// The type of a tensor's elements.
        #[doc(alias = "tf.dtypes.DType")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl DType {
            /// Every dtype.
            pub const ALL: [DType; 16] = [$(DType::$variant,)*];

            /// Returns the usual name: `float32`, `int64`, `bool`, …
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Returns the size of an element in bytes. `None` for strings, whose elements differ in length.
            pub const fn bytes(self) -> Option<usize> {
                match self { $(DType::$variant => if $bytes == 0 { None } else { Some($bytes) },)* }
            }
        }

        /// Elements of one dtype, in row-major order.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Buffer {
            $(#[doc = concat!("Elements of dtype `", $name, "`.")] $variant(Vec<$ty>),)*
        }

        impl Buffer {
            /// Creates `len` elements that are zero, false or empty.
            pub fn zeros(dtype: DType, len: usize) -> Self {
                match dtype { $(DType::$variant => Buffer::$variant(vec![<$ty>::default(); len]),)* }
            }

            /// Returns the dtype of the elements.
            pub fn dtype(&self) -> DType {
                match self { $(Buffer::$variant(_) => DType::$variant,)* }
            }

            /// Returns the number of elements.
            pub fn len(&self) -> usize {
                match self { $(Buffer::$variant(v) => v.len(),)* }
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }

        $(impl Element for $ty {
            const DTYPE: DType = DType::$variant;
            fn into_buffer(elements: Vec<Self>) -> Buffer { Buffer::$variant(elements) }
            fn slice(buffer: &Buffer) -> Option<&[Self]> {
                match buffer { Buffer::$variant(v) => Some(v), _ => None }
            }
            fn vec_mut(buffer: &mut Buffer) -> Option<&mut Vec<Self>> {
                match buffer { Buffer::$variant(v) => Some(v), _ => None }
            }
        })*
    };
}

/// Runs an expression with the elements of a [`Buffer`] of any dtype.
#[macro_export]
macro_rules! with_buffer {
    ($buffer:expr, $elements:ident => $body:expr) => {
        match $buffer {
            $crate::dtype::Buffer::F16($elements) => $body,
            $crate::dtype::Buffer::Bf16($elements) => $body,
            $crate::dtype::Buffer::F32($elements) => $body,
            $crate::dtype::Buffer::F64($elements) => $body,
            $crate::dtype::Buffer::I8($elements) => $body,
            $crate::dtype::Buffer::U8($elements) => $body,
            $crate::dtype::Buffer::I16($elements) => $body,
            $crate::dtype::Buffer::U16($elements) => $body,
            $crate::dtype::Buffer::I32($elements) => $body,
            $crate::dtype::Buffer::U32($elements) => $body,
            $crate::dtype::Buffer::I64($elements) => $body,
            $crate::dtype::Buffer::U64($elements) => $body,
            $crate::dtype::Buffer::Bool($elements) => $body,
            $crate::dtype::Buffer::String($elements) => $body,
            $crate::dtype::Buffer::C64($elements) => $body,
            $crate::dtype::Buffer::C128($elements) => $body,
        }
    };
}

/// Runs one expression with the elements of a [`Buffer`] whose sums have the same type, or another for other
/// dtypes: bool, string, and 16-bit floats.
macro_rules! with_summable {
    ($buffer:expr, $elements:ident => $body:expr, else $other:expr) => {
        match $buffer {
            $crate::dtype::Buffer::F32($elements) => $body,
            $crate::dtype::Buffer::F64($elements) => $body,
            $crate::dtype::Buffer::I8($elements) => $body,
            $crate::dtype::Buffer::U8($elements) => $body,
            $crate::dtype::Buffer::I16($elements) => $body,
            $crate::dtype::Buffer::U16($elements) => $body,
            $crate::dtype::Buffer::I32($elements) => $body,
            $crate::dtype::Buffer::U32($elements) => $body,
            $crate::dtype::Buffer::I64($elements) => $body,
            $crate::dtype::Buffer::U64($elements) => $body,
            $crate::dtype::Buffer::C64($elements) => $body,
            $crate::dtype::Buffer::C128($elements) => $body,
            $crate::dtype::Buffer::F16(_)
            | $crate::dtype::Buffer::Bf16(_)
            | $crate::dtype::Buffer::Bool(_)
            | $crate::dtype::Buffer::String(_) => $other,
        }
    };
}
pub(crate) use with_summable;

/// A Rust type of tensor elements.
pub trait Element: Clone + Send + Sync + std::fmt::Debug + PartialEq + Default + 'static {
    /// The dtype of this Rust type.
    const DTYPE: DType;
    /// Moves elements into a buffer.
    fn into_buffer(elements: Vec<Self>) -> Buffer;
    /// Returns the elements, if they have this type.
    fn slice(buffer: &Buffer) -> Option<&[Self]>;
    /// Returns the elements for modification, if they have this type.
    fn vec_mut(buffer: &mut Buffer) -> Option<&mut Vec<Self>>;
}

dtypes! {
    F16 f16, "float16", 2;
    Bf16 bf16, "bfloat16", 2;
    F32 f32, "float32", 4;
    F64 f64, "float64", 8;
    I8 i8, "int8", 1;
    U8 u8, "uint8", 1;
    I16 i16, "int16", 2;
    U16 u16, "uint16", 2;
    I32 i32, "int32", 4;
    U32 u32, "uint32", 4;
    I64 i64, "int64", 8;
    U64 u64, "uint64", 8;
    Bool bool, "bool", 1;
    String Vec<u8>, "string", 0;
    C64 Complex32, "complex64", 8;
    C128 Complex64, "complex128", 16;
}

impl DType {
    /// Returns the dtype of a MEAN over values of this dtype. Floats and complex numbers keep theirs,
    /// integers of 8 and 16 bits become `float32`, wider integers `float64`. `None` if there is no mean
    /// (bool, string).
    pub const fn mean(self) -> Option<DType> {
        match self {
            DType::F16 | DType::Bf16 | DType::F32 | DType::F64 | DType::C64 | DType::C128 => Some(self),
            DType::I8 | DType::U8 | DType::I16 | DType::U16 => Some(DType::F32),
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => Some(DType::F64),
            DType::Bool | DType::String => None,
        }
    }

    /// Returns the dtype in which a reduction accumulates values of this dtype.
    ///
    /// Floats of 16 bits are accumulated as `float32`. The result of a MEAN is a float, so its sum must not
    /// wrap as an integer: integers of up to 32 bits are accumulated as `int64`, integers of 64 bits as
    /// `float64`.
    pub const fn of_sum(self, op: ReduceOp) -> DType {
        match (self, op) {
            (DType::F16 | DType::Bf16, _) => DType::F32,
            (DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32, ReduceOp::Mean) => {
                DType::I64
            }
            (DType::I64 | DType::U64, ReduceOp::Mean) => DType::F64,
            (other, _) => other,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
