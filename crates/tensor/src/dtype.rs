//! The element types of tensors, and the corresponding Rust types.

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
            /// All dtypes, in the order of declaration.
            pub const ALL: [DType; 16] = [$(DType::$variant,)*];

            /// Returns the name that TensorFlow and numpy use: `float32`, `int64`, `bool`, …
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Returns the size of an element in bytes; `None` for strings, which have no fixed size.
            pub const fn bytes(self) -> Option<usize> {
                match self { $(DType::$variant => if $bytes == 0 { None } else { Some($bytes) },)* }
            }
        }

        /// The elements of a tensor, in row-major order. The variant is the dtype.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Buffer {
            $(#[doc = concat!("Elements of dtype `", $name, "`.")] $variant(Vec<$ty>),)*
        }

        impl Buffer {
            /// Creates a buffer of `len` elements that are zero, false or empty.
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

            /// Returns whether there are no elements.
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

/// Evaluates an expression with the elements of a [`Buffer`] of any dtype.
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

/// Evaluates one expression with the elements of a [`Buffer`] if sums of its dtype have the same type. Evaluates
/// another expression for all other dtypes: bool, string, and 16-bit floats.
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

/// A Rust type that can be the element type of a tensor.
pub trait Element: Clone + Send + Sync + std::fmt::Debug + PartialEq + Default + 'static {
    /// The dtype that corresponds to this type.
    const DTYPE: DType;
    /// Converts elements to a buffer of this type.
    fn into_buffer(elements: Vec<Self>) -> Buffer;
    /// Returns the elements of a buffer of this type; `None` for other dtypes.
    fn slice(buffer: &Buffer) -> Option<&[Self]>;
    /// Returns the elements of a buffer of this type for modification; `None` for other dtypes.
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
    /// Returns the dtype of a MEAN over values of this dtype. It is the same dtype for floats and complex numbers,
    /// `float32` for integers of 8 and 16 bits, and `float64` for wider integers. Returns `None` for bool and
    /// string, which have no mean.
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
    /// Floats of 16 bits are accumulated as `float32`. In a MEAN, integers must not wrap, because the result is a
    /// float. Integers of up to 32 bits are therefore accumulated as `int64`, and integers of 64 bits as `float64`.
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
