//! [`RestoreFilter`], which selects the tensors to restore, and [`RestoreReport`], which lists the tensors that were
//! restored and those that were not.

use crate::names::{common_name, copies_name, first_names, list_names};
use distribute_base::{Error, Result};
use distribute_tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

type Rename<'a> = Box<dyn Fn(&str) -> Option<String> + Send + Sync + 'a>;

/// A filter that selects the tensors to restore from a checkpoint or file, and maps each name in the model to a name in
/// this source.
///
/// Floating-point numbers of a different width are converted, as in candle's `VarBuilder`: bfloat16 weights
/// can be restored into a float32 variable. Shapes must be equal.
///
/// ```
/// use distribute::checkpoint::RestoreFilter;
/// // A file whose names begin with `bert.`; the head is new and stays as it was initialised.
/// let body = RestoreFilter::named(|name| (!name.starts_with("head.")).then(|| format!("bert.{name}")));
/// // Whatever fits.
/// let matching = RestoreFilter::all().lenient();
/// # let _ = (body, matching);
/// ```
pub struct RestoreFilter<'a> {
    rename: Rename<'a>,
    lenient: bool,
}

impl<'a> RestoreFilter<'a> {
    /// Selects all tensors, under the same names.
    pub fn all() -> Self {
        Self::named(|name| Some(name.to_string()))
    }

    /// Selects tensors with a function from the name in the model to the name in the checkpoint. Tensors for
    /// which it returns `None` are not restored.
    pub fn named(there: impl Fn(&str) -> Option<String> + Send + Sync + 'a) -> Self {
        Self { rename: Box::new(there), lenient: false }
    }

    /// Skips tensors that are missing in the checkpoint or do not match, instead of failing. It is still an error if no
    /// tensor matches.
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Decides for each tensor in `here` (name, dtype and shape) whether it is restored. `there` returns the shape of a
    /// tensor in the source, and its dtype if the dtype is supported. `names` returns all names in the source, for
    /// error messages.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the filter is not lenient, and a selected tensor is missing or does not match.
    #[doc(hidden)]
    pub fn decide(
        &self,
        operation: &'static str,
        from: &str,
        here: impl IntoIterator<Item = (String, DType, Vec<usize>)>,
        there: impl Fn(&str) -> Option<(Option<DType>, Vec<usize>)>,
        names: impl FnOnce() -> Vec<String>,
    ) -> Result<RestoreReport> {
        let mut decided = RestoreReport::default();
        let mut wrong = Vec::new();
        for (name, dtype, dims) in here {
            let kept = match (self.rename)(&name) {
                None => Unrestored::NotSelected,
                Some(source) => match there(&source) {
                    Some((Some(found), shape)) if shape == dims && converts(found, dtype) => {
                        decided.restored.insert(name, source);
                        continue;
                    }
                    Some((found, shape)) => {
                        let found = found.map_or("of a dtype that cannot be read, ", DType::name);
                        let (here, there) = (format!("{dtype}{dims:?}"), format!("{found}{shape:?}"));
                        Unrestored::Mismatch { source, here, there }
                    }
                    None => Unrestored::Absent { source },
                },
            };
            if !self.lenient && kept != Unrestored::NotSelected {
                wrong.push(format!("{name}: {kept}"));
            }
            decided.unrestored.insert(name, kept);
        }
        if wrong.is_empty() {
            Ok(decided)
        } else {
            Err(Error::invalid(
                operation,
                format!(
                    "{from} lacks selected tensors: {}; it has {}; select other names, or all that match with RestoreFilter::lenient",
                    first_names(&wrong, "; "),
                    list_names(names())
                ),
            ))
        }
    }
}

impl fmt::Debug for RestoreFilter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RestoreFilter({})", if self.lenient { "lenient" } else { "strict" })
    }
}

/// Returns `true` if elements of dtype `from` can be restored into a variable of dtype `to`.
fn converts(from: DType, to: DType) -> bool {
    let is_float = |dtype| matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    from == to || is_float(from) && is_float(to)
}

/// The result of a restore with a [`RestoreFilter`]. It is displayed on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The restored tensors. Maps each name in the model to the name in the checkpoint.
    pub restored: BTreeMap<String, String>,
    /// The tensors that were not restored. Maps each name in the model to the reason.
    pub unrestored: BTreeMap<String, Unrestored>,
    /// The names in the checkpoint from which no tensor was restored, except the copies that belong to a restored
    /// running statistic.
    pub unused: Vec<String>,
}

/// The reason why a tensor was not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unrestored {
    /// The filter did not select the tensor.
    NotSelected,
    /// The checkpoint has no tensor named `source`.
    Absent {
        /// The name that was expected in the checkpoint.
        source: String,
    },
    /// The tensor in the checkpoint has a different shape, or a dtype that cannot be converted.
    Mismatch {
        /// The name of the tensor in the checkpoint.
        source: String,
        /// The dtype and shape in the model.
        here: String,
        /// The dtype and shape in the checkpoint.
        there: String,
    },
}

impl RestoreReport {
    /// Adds the report of another component.
    #[doc(hidden)]
    pub fn append(&mut self, mut other: Self) {
        self.restored.append(&mut other.restored);
        self.unrestored.append(&mut other.unrestored);
    }

    /// Completes the report with the names in `there` that were not used, except the values from which the mean
    /// of a running statistic was computed. `operation` and `from` name the call and the checkpoint in errors.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: nothing was restored.
    #[doc(hidden)]
    pub fn finish(
        mut self,
        operation: &'static str,
        from: &str,
        there: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let used: BTreeSet<&str> = self.restored.values().map(String::as_str).collect();
        // Next to the mean of running statistics the checkpoint has the values that it is computed from.
        let is_beside = |name: &str| {
            let whole = name.rsplit_once('/').map(|(whole, _)| whole).filter(|whole| used.contains(whole));
            whole.is_some_and(|whole| name == copies_name(whole) || name == common_name(whole))
        };
        let is_used = |name: &str| used.contains(name) || is_beside(name);
        self.unused = there.into_iter().filter(|name| !is_used(name)).collect();
        if self.restored.is_empty() {
            Err(Error::invalid(operation, format!("nothing of {from} is restored: {self}")))
        } else {
            Ok(self)
        }
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} set", self.restored.len(), self.restored.len() + self.unrestored.len())?;
        let kept: Vec<_> = self.unrestored.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        for (what, names) in [("kept", &kept), ("not used", &self.unused)] {
            if !names.is_empty() {
                write!(f, "; {what}: {}", first_names(names, ", "))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Unrestored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unrestored::NotSelected => f.write_str("not selected"),
            Unrestored::Absent { source } => write!(f, "there is no {source}"),
            Unrestored::Mismatch { source, here, there } => {
                write!(f, "{source} is {there}, but here it is {here}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(select: &RestoreFilter<'_>) -> Result<RestoreReport> {
        let here = [("a", DType::F32, vec![2]), ("b", DType::F32, vec![3]), ("c", DType::I64, vec![])];
        let here = here.map(|(name, dtype, dims)| (name.to_string(), dtype, dims));
        let there = |name: &str| match name {
            "a" => Some((Some(DType::Bf16), vec![2])),
            "b" => Some((Some(DType::F32), vec![4])),
            "x.c" => Some((Some(DType::F32), vec![])),
            _ => None,
        };
        select.decide("load_some", "file", here, there, || vec!["x.c".into(), "a".into(), "b".into()])
    }

    #[test]
    fn names_shapes_and_dtypes_decide_and_each_reason_is_reported() {
        let all = decide(&RestoreFilter::all()).unwrap_err().to_string();
        assert!(
            all.contains("file lacks selected tensors: b: b is float32[4], but here it is float32[3]"),
            "{all}"
        );
        assert!(all.contains("c: there is no c; it has a, b, x.c; select other names"), "{all}");
        let lenient = decide(&RestoreFilter::all().lenient()).unwrap();
        assert_eq!(lenient.restored, BTreeMap::from([("a".to_string(), "a".to_string())]));
        assert_eq!(lenient.unrestored["c"], Unrestored::Absent { source: "c".into() });
        let there = ["a", "a/common", "a/other", "a/per_replica", "b", "z"].map(String::from);
        let finished = lenient.finish("load_some", "file", there.clone()).unwrap();
        assert_eq!(finished.unused, ["a/other", "b", "z"]);
        let text = "1 of 3 set; kept: b (b is float32[4], but here it is float32[3]), c (there is no c); not used: \
                    a/other, b, z";
        assert_eq!(finished.to_string(), text);
        // Integers are not converted to floats, or floats to integers.
        let renamed = RestoreFilter::named(|name| (name == "c").then(|| "x.c".to_string()));
        assert!(
            decide(&renamed).unwrap_err().to_string().contains("c: x.c is float32[], but here it is int64[]")
        );
        let none = decide(&renamed.lenient()).unwrap();
        assert_eq!(none.unrestored["a"], Unrestored::NotSelected);
        let error = none.finish("load_some", "file", there).unwrap_err().to_string();
        assert!(error.contains("nothing of file is restored: 0 of 3 set; kept: a (not selected)"), "{error}");
    }
}
