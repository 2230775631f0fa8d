//! Whether an outcome is the expected one: both in the form of the files.

use super::case::Tolerance;
use serde_json::Value;

/// Compares what was got with what is wanted. An error names the place and both.
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

/// NaN matches NaN, 0.0 matches -0.0.
fn near(got: f64, want: f64, tolerance: Tolerance) -> bool {
    let close = (got - want).abs() <= tolerance.atol + tolerance.rtol * want.abs();
    got == want || (got.is_nan() && want.is_nan()) || (want.is_finite() && close)
}

/// A float as files write it.
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
