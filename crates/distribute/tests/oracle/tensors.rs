//! Conversion of tensors and nests from and to the JSON of the files.

use super::case::Inputs;
use super::compare::float;
use distribute::tensor::dtype::Buffer;
use distribute::tensor::{DType, IndexedSlices, Leaf, Tree};
use distribute::values::Distributed;
use distribute::{HostTensor, PerReplica};
use half::{bf16, f16};
use num_complex::Complex;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, String>;

/// Reads a dense tensor.
pub fn tensor(value: &Value) -> Result<HostTensor> {
    let fields = Inputs::new(value.as_object().ok_or_else(|| format!("{value} is no tensor"))?);
    let dtype: DType = fields.text("dtype")?.parse().map_err(|e| format!("{e}"))?;
    let shape = fields.list("shape")?.iter().map(dimension).collect::<Result<Vec<_>>>()?;
    let data = fields.list("data")?;
    fields.finish()?;
    let floats = || data.iter().map(real).collect::<Result<Vec<f64>>>();
    macro_rules! integers {
        ($t:ty, $as:ident) => {{
            let one = |v: &Value| {
                v.$as().and_then(|v| <$t>::try_from(v).ok()).ok_or_else(|| format!("{v} is no {dtype}"))
            };
            data.iter().map(one).collect::<Result<Vec<$t>>>()?
        }};
    }
    let buffer = match dtype {
        DType::F16 => Buffer::F16(floats()?.into_iter().map(f16::from_f64).collect()),
        DType::Bf16 => Buffer::Bf16(floats()?.into_iter().map(bf16::from_f64).collect()),
        DType::F32 => Buffer::F32(floats()?.into_iter().map(|x| x as f32).collect()),
        DType::F64 => Buffer::F64(floats()?),
        DType::I8 => Buffer::I8(integers!(i8, as_i64)),
        DType::U8 => Buffer::U8(integers!(u8, as_u64)),
        DType::I16 => Buffer::I16(integers!(i16, as_i64)),
        DType::U16 => Buffer::U16(integers!(u16, as_u64)),
        DType::I32 => Buffer::I32(integers!(i32, as_i64)),
        DType::U32 => Buffer::U32(integers!(u32, as_u64)),
        DType::I64 => Buffer::I64(integers!(i64, as_i64)),
        DType::U64 => Buffer::U64(integers!(u64, as_u64)),
        DType::Bool => {
            let one = |v: &Value| v.as_bool().ok_or_else(|| format!("{v} is no bool"));
            Buffer::Bool(data.iter().map(one).collect::<Result<_>>()?)
        }
        DType::String => {
            let one = |v: &Value| {
                v.as_str().map(|s| s.as_bytes().to_vec()).ok_or_else(|| format!("{v} is no string"))
            };
            Buffer::String(data.iter().map(one).collect::<Result<_>>()?)
        }
        DType::C64 => {
            let one = |v: &Value| complex(v).map(|c| Complex::new(c.re as f32, c.im as f32));
            Buffer::C64(data.iter().map(one).collect::<Result<_>>()?)
        }
        DType::C128 => Buffer::C128(data.iter().map(complex).collect::<Result<_>>()?),
    };
    HostTensor::from_buffer(buffer, shape).map_err(|e| e.to_string())
}

fn dimension(value: &Value) -> Result<usize> {
    value.as_u64().and_then(|d| usize::try_from(d).ok()).ok_or_else(|| format!("{value} is no dimension"))
}

fn real(value: &Value) -> Result<f64> {
    float(value).ok_or_else(|| format!("{value} is no float"))
}

fn complex(value: &Value) -> Result<Complex<f64>> {
    match value.as_array().map(Vec::as_slice) {
        Some([re, im]) => Ok(Complex::new(real(re)?, real(im)?)),
        _ => Err(format!("{value} is no complex number")),
    }
}

/// Reads a tensor or indexed slices.
pub fn leaf(value: &Value) -> Result<Leaf> {
    if value.get("indexed_slices").is_none() {
        return tensor(value).map(Leaf::Host);
    }
    let fields = Inputs::new(value.as_object().ok_or("indexed slices are no object")?);
    if !fields.flag("indexed_slices")? {
        return Err("indexed_slices is false".into());
    }
    let dense_shape = match fields.get("dense_shape")? {
        Value::Null => None,
        Value::Array(shape) => Some(shape.iter().map(dimension).collect::<Result<_>>()?),
        other => return Err(format!("{other} is no shape")),
    };
    let slices = IndexedSlices {
        values: tensor(fields.get("values")?)?,
        indices: tensor(fields.get("indices")?)?,
        dense_shape,
    };
    fields.finish()?;
    Ok(Leaf::Slices(slices))
}

/// Reads a nest. `leaf` reads each of its leaves.
pub fn nest<L>(value: &Value, leaf: &impl Fn(&Value) -> Result<L>) -> Result<Tree<L>> {
    let container =
        value.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
    let items = |items: &Value| {
        let items = items.as_array().ok_or_else(|| format!("{items} is no list"))?;
        items.iter().map(|item| nest(item, leaf)).collect::<Result<Vec<_>>>()
    };
    Ok(match container.map(|(key, inner)| (key.as_str(), inner)) {
        Some(("list", inner)) => Tree::List(items(inner)?),
        Some(("tuple", inner)) => Tree::Tuple(items(inner)?),
        Some(("dict", inner)) => {
            let inner = inner.as_object().ok_or_else(|| format!("{inner} is no object"))?;
            Tree::Dict(
                inner
                    .iter()
                    .map(|(key, item)| Ok((key.clone(), nest(item, leaf)?)))
                    .collect::<Result<_>>()?,
            )
        }
        _ => Tree::Leaf(leaf(value)?),
    })
}

/// Reads a nest of tensors or indexed slices.
pub fn leaves(value: &Value) -> Result<Tree<Leaf>> {
    nest(value, &leaf)
}

/// Reads the values of replicas. Returns an error if their number is not `replicas`.
pub fn each<T>(values: &[Value], replicas: usize, read: impl Fn(&Value) -> Result<T>) -> Result<Vec<T>> {
    if values.len() == replicas {
        values.iter().map(read).collect()
    } else {
        Err(format!("{} values for {replicas} replicas", values.len()))
    }
}

/// An argument of `run`, or a part of one.
#[derive(Clone)]
pub enum Argument {
    Plain(Leaf),
    PerReplica(PerReplica<Leaf>),
}

/// Reads a nest of arguments: `{"tensor": t}` or `{"per_replica": [t...]}` at the leaves.
pub fn argument(value: &Value) -> Result<Tree<Argument>> {
    nest(value, &|value| {
        let object = value.as_object().filter(|object| object.len() == 1);
        match object.and_then(|object| object.iter().next()).map(|(key, inner)| (key.as_str(), inner)) {
            Some(("tensor", inner)) => Ok(Argument::Plain(leaf(inner)?)),
            Some(("per_replica", Value::Array(parts))) => Ok(Argument::PerReplica(PerReplica::from_values(
                parts.iter().map(leaf).collect::<Result<_>>()?,
            ))),
            _ => Err(format!("{value} is no argument")),
        }
    })
}

impl Distributed for Argument {
    type Local = Leaf;
    fn split(self, replicas: usize) -> distribute::Result<Vec<Leaf>> {
        match self {
            Argument::Plain(leaf) => leaf.split(replicas),
            Argument::PerReplica(parts) => parts.split(replicas),
        }
    }
    fn local_results(&self, replicas: usize) -> usize {
        match self {
            Argument::Plain(leaf) => leaf.local_results(replicas),
            Argument::PerReplica(parts) => parts.local_results(replicas),
        }
    }
}

/// Writes a tensor as JSON.
pub fn to_json(tensor: &HostTensor) -> Value {
    let real = |x: f64| match x {
        x if x.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        x => json!(x),
    };
    macro_rules! all {
        ($elements:ident, $one:expr) => {
            $elements.iter().map($one).collect::<Vec<Value>>()
        };
    }
    let data = match tensor.buffer() {
        Buffer::F16(v) => all!(v, |x| real(x.to_f64())),
        Buffer::Bf16(v) => all!(v, |x| real(x.to_f64())),
        Buffer::F32(v) => all!(v, |x| real(f64::from(*x))),
        Buffer::F64(v) => all!(v, |x| real(*x)),
        Buffer::I8(v) => all!(v, |x| json!(x)),
        Buffer::U8(v) => all!(v, |x| json!(x)),
        Buffer::I16(v) => all!(v, |x| json!(x)),
        Buffer::U16(v) => all!(v, |x| json!(x)),
        Buffer::I32(v) => all!(v, |x| json!(x)),
        Buffer::U32(v) => all!(v, |x| json!(x)),
        Buffer::I64(v) => all!(v, |x| json!(x)),
        Buffer::U64(v) => all!(v, |x| json!(x)),
        Buffer::Bool(v) => all!(v, |x| json!(x)),
        Buffer::String(v) => all!(v, |x| json!(String::from_utf8_lossy(x))),
        Buffer::C64(v) => all!(v, |x| json!([real(f64::from(x.re)), real(f64::from(x.im))])),
        Buffer::C128(v) => all!(v, |x| json!([real(x.re), real(x.im)])),
    };
    json!({"dtype": tensor.dtype().name(), "shape": tensor.dims(), "data": data})
}

/// Writes a leaf as JSON.
pub fn leaf_json(leaf: &Leaf) -> Value {
    match leaf {
        Leaf::Host(tensor) => to_json(tensor),
        Leaf::Slices(slices) => json!({
            "indexed_slices": true,
            "values": to_json(&slices.values),
            "indices": to_json(&slices.indices),
            "dense_shape": slices.dense_shape,
        }),
        other => match other.to_host() {
            Ok(tensor) => to_json(&tensor),
            Err(error) => json!(error.to_string()),
        },
    }
}

/// Writes a candle tensor as JSON.
pub fn candle_json(tensor: &candle_core::Tensor) -> Value {
    leaf_json(&Leaf::Candle(tensor.clone()))
}

/// Writes a nest as JSON. `leaf` writes each of its leaves.
pub fn nest_json<L>(tree: &Tree<L>, leaf: &impl Fn(&L) -> Value) -> Value {
    let all = |items: &[Tree<L>]| items.iter().map(|item| nest_json(item, leaf)).collect::<Vec<_>>();
    match tree {
        Tree::Leaf(l) => leaf(l),
        Tree::None => json!({"none": true}),
        Tree::List(items) => json!({"list": all(items)}),
        Tree::Tuple(items) => json!({"tuple": all(items)}),
        Tree::Dict(items) => {
            let items = items.iter().map(|(key, item)| (key.clone(), nest_json(item, leaf)));
            json!({"dict": items.collect::<serde_json::Map<_, _>>()})
        }
    }
}

/// Writes a nest of tensors or indexed slices as JSON.
pub fn leaves_json(tree: &Tree<Leaf>) -> Value {
    nest_json(tree, &leaf_json)
}

/// Writes the nest of each replica as JSON.
pub fn all_json<'a>(trees: impl IntoIterator<Item = &'a Tree<Leaf>>) -> Value {
    trees.into_iter().map(leaves_json).collect()
}
