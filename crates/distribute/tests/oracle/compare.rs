//! Comparison of an outcome with the expected one, both as JSON.

use super::arithmetic::add;
use super::case::Tolerance;
use super::errors::Kind;
use super::tensors::{leaf, leaf_json};
use distribute::HostTensor;
use distribute::tensor::{IndexedSlices, Leaf};
use serde_json::Value;
use std::collections::BTreeMap;

/// Compares the actual value with the expected one. The error names the location and both values.
pub fn compare(place: &str, got: &Value, want: &Value, tolerance: Tolerance) -> Result<(), String> {
    let differ = || Err(format!("{place}: got {got}, want {want}"));
    match (got, want) {
        (Value::Object(g), Value::Object(w)) if g.contains_key("dtype") && w.contains_key("dtype") => {
            let equal = g.len() == w.len()
                && g["dtype"] == w["dtype"]
                && g.get("shape") == w.get("shape")
                && data_match(g.get("data"), w.get("data"), &g["dtype"], tolerance);
            if equal { Ok(()) } else { differ() }
        }
        (Value::Object(g), Value::Object(w))
            if g.contains_key("indexed_slices") && w.contains_key("indexed_slices") =>
        {
            let want = merged(want).map_err(|e| format!("{place}: {e}"))?;
            // A MEAN of TensorFlow's divides each row; ours the sums, and so rounds elsewhere.
            let tolerance = Tolerance { rtol: tolerance.rtol.max(1e-6), atol: tolerance.atol.max(1e-6) };
            let fields = [&got["values"], &got["indices"], &got["dense_shape"]];
            let wanted = [&want["values"], &want["indices"], &want["dense_shape"]];
            let equal = fields.iter().zip(wanted).all(|(g, w)| compare(place, g, w, tolerance).is_ok());
            if equal { Ok(()) } else { Err(format!("{place}: got {got}, want {want}")) }
        }
        (Value::Object(g), Value::Object(w)) if g.contains_key("error") && w.contains_key("error") => {
            // Either the name of a class, or an object that contains it.
            let class = |error: &Value| error.get("type").unwrap_or(error).as_str().map(String::from);
            let kind = |error: &Value| class(error).as_deref().and_then(Kind::of_type);
            match (kind(&g["error"]), kind(&w["error"])) {
                (Some(got), Some(want)) if got == want => Ok(()),
                _ => differ(),
            }
        }
        (Value::Object(g), Value::Object(w)) => {
            if !g.keys().eq(w.keys()) {
                return differ();
            }
            g.iter()
                .zip(w.values())
                .try_for_each(|((key, g), w)| compare(&format!("{place}.{key}"), g, w, tolerance))
        }
        (Value::Array(g), Value::Array(w)) => {
            if g.len() != w.len() {
                return differ();
            }
            let item = |(i, (g, w))| compare(&format!("{place}[{i}]"), g, w, tolerance);
            g.iter().zip(w).enumerate().try_for_each(item)
        }
        _ if got == want => Ok(()),
        _ => differ(),
    }
}

/// Returns indexed slices with each index once, ascending (SPARSE-1): TensorFlow joins the rows of replicas, whereas
/// this crate merges them.
fn merged(slices: &Value) -> Result<Value, String> {
    let Leaf::Slices(slices) = leaf(slices)? else { return Err("these are no indexed slices".into()) };
    let merge = || -> distribute::Result<Leaf> {
        let mut rows: BTreeMap<usize, Leaf> = BTreeMap::new();
        for (i, index) in slices.to_rows()?.into_iter().enumerate() {
            let row = Leaf::Host(slices.values.row(i)?);
            let sum = match rows.remove(&index) {
                Some(sum) => add(&sum, &row)?,
                None => row,
            };
            rows.insert(index, sum);
        }
        let indices = HostTensor::vector(rows.keys().map(|row| *row as i64).collect());
        let values = if rows.is_empty() {
            slices.values.clone()
        } else {
            Leaf::stack(&rows.into_values().collect::<Vec<_>>())?.to_host()?
        };
        let indices = indices.cast(slices.indices.dtype())?;
        Ok(IndexedSlices::new(values, indices, slices.dense_shape.clone())?.into())
    };
    merge().map(|merged| leaf_json(&merged)).map_err(|e| e.to_string())
}

fn data_match(got: Option<&Value>, want: Option<&Value>, dtype: &Value, tolerance: Tolerance) -> bool {
    let (Some(Value::Array(got)), Some(Value::Array(want))) = (got, want) else { return false };
    let float = |got: &Value, want: &Value| matches!((float(got), float(want)), (Some(g), Some(w)) if near(g, w, tolerance));
    let datum = |got: &Value, want: &Value| match (dtype.as_str().unwrap_or_default(), got, want) {
        ("float16" | "bfloat16" | "float32" | "float64", _, _) => float(got, want),
        ("complex64" | "complex128", Value::Array(g), Value::Array(w)) => {
            g.len() == 2 && w.len() == 2 && g.iter().zip(w).all(|(g, w)| float(g, w))
        }
        _ => got == want,
    };
    got.len() == want.len() && got.iter().zip(want).all(|(g, w)| datum(g, w))
}

/// Compares two floats. NaN matches NaN, and 0.0 matches -0.0.
fn near(got: f64, want: f64, tolerance: Tolerance) -> bool {
    let close = (got - want).abs() <= tolerance.atol + tolerance.rtol * want.abs();
    got == want || (got.is_nan() && want.is_nan()) || (want.is_finite() && close)
}

/// Reads a float, whose JSON form may be `"NaN"`, `"Infinity"` or `"-Infinity"`.
pub fn float(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        number => number.as_f64(),
    }
}
