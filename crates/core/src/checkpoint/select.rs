//! Selects the tensors to restore, and reports on the others.

use crate::checkpoint::{in_common, of_replicas};
use distribute_base::{Error, Result};
use distribute_tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

type Rename<'a> = Box<dyn Fn(&str) -> Option<String> + Send + Sync + 'a>;

/// The tensors to restore from a checkpoint or file, and their names there.
///
/// Floating-point numbers of another width are converted, as candle's `VarBuilder` does: weights in bfloat16 become a
/// variable of float32. Shapes have to be the same.
///
/// ```
/// use distribute::Select;
/// // A file whose names begin with `bert.`; the head is new and stays as it was initialised.
/// let body = Select::named(|name| (!name.starts_with("head.")).then(|| format!("bert.{name}")));
/// // Whatever fits.
/// let matching = Select::all().lenient();
/// # let _ = (body, matching);
/// ```
pub struct Select<'a> {
    rename: Rename<'a>,
    lenient: bool,
}

impl<'a> Select<'a> {
    /// Selects everything, by the same names.
    pub fn all() -> Self {
        Self::named(|name| Some(name.to_string()))
    }

    /// Selects tensors by a function from their name here to the name in the checkpoint. Tensors for which it
    /// returns `None` are unchanged.
    pub fn named(there: impl Fn(&str) -> Option<String> + Send + Sync + 'a) -> Self {
        Self { rename: Box::new(there), lenient: false }
    }

    /// Keeps tensors that are missing in the checkpoint, or have another shape there, instead of failing. It is
    /// still an error if nothing at all matches.
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Decides for each tensor, by name, dtype and shape, whether it is set or kept. `there` returns the shape
    /// in the source, and the dtype if it can be read. `names` returns the names in the source, for an error.
    pub(crate) fn decide(
        &self,
        operation: &'static str,
        from: &str,
        here: impl IntoIterator<Item = (String, DType, Vec<usize>)>,
        there: impl Fn(&str) -> Option<(Option<DType>, Vec<usize>)>,
        names: impl FnOnce() -> Vec<String>,
    ) -> Result<Restored> {
        let mut decided = Restored::default();
        let mut wrong = Vec::new();
        for (name, dtype, dims) in here {
            let kept = match (self.rename)(&name) {
                None => Kept::NotSelected,
                Some(source) => match there(&source) {
                    Some((Some(found), shape)) if shape == dims && converts(found, dtype) => {
                        decided.restored.insert(name, source);
                        continue;
                    }
                    Some((found, shape)) => {
                        let found = found.map_or("of a dtype that is not read, ", DType::name);
                        let (here, there) = (format!("{dtype}{dims:?}"), format!("{found}{shape:?}"));
                        Kept::Unlike { source, here, there }
                    }
                    None => Kept::Absent { source },
                },
            };
            if !self.lenient && kept != Kept::NotSelected {
                wrong.push(format!("{name}: {kept}"));
            }
            decided.kept.insert(name, kept);
        }
        if wrong.is_empty() {
            Ok(decided)
        } else {
            Err(Error::invalid(
                operation,
                format!(
                    "{from} lacks what is selected: {}; it has {}; select other names, or what fits with Select::lenient",
                    some(&wrong, "; "),
                    names_there(names())
                ),
            ))
        }
    }
}

impl fmt::Debug for Select<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Select({})", if self.lenient { "lenient" } else { "strict" })
    }
}

/// Whether elements of dtype `from` can be converted for a variable of dtype `to`.
fn converts(from: DType, to: DType) -> bool {
    let is_float = |dtype| matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    from == to || is_float(from) && is_float(to)
}

/// The result of a restore by [`Select`]. It displays as one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The restored tensors: for each name here, the name in the checkpoint.
    pub restored: BTreeMap<String, String>,
    /// The unchanged tensors: for each name here, the reason.
    pub kept: BTreeMap<String, Kept>,
    /// The names in the checkpoint that were not used.
    pub unused: Vec<String>,
}

/// The reason why a tensor is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// It was not selected.
    NotSelected,
    /// The checkpoint has nothing of this name.
    Absent {
        /// The name looked for.
        source: String,
    },
    /// The tensor in the checkpoint does not match.
    Unlike {
        /// The name looked for.
        source: String,
        /// Dtype and shape here.
        here: String,
        /// Dtype and shape there.
        there: String,
    },
}

impl Restored {
    /// Adds the result of another component.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.restored.append(&mut other.restored);
        self.kept.append(&mut other.kept);
    }

    /// Records the names that were not used. Returns an error if nothing was restored.
    pub(crate) fn finish(
        mut self,
        operation: &'static str,
        from: &str,
        there: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let used: BTreeSet<&str> = self.restored.values().map(String::as_str).collect();
        // Next to the mean of running statistics the checkpoint has the values that it is computed from.
        let is_beside = |name: &str| {
            let whole = name.rsplit_once('/').map(|(whole, _)| whole).filter(|whole| used.contains(whole));
            whole.is_some_and(|whole| name == of_replicas(whole) || name == in_common(whole))
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

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} set", self.restored.len(), self.restored.len() + self.kept.len())?;
        let kept: Vec<_> = self.kept.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        for (what, names) in [("kept", &kept), ("not used", &self.unused)] {
            if !names.is_empty() {
                write!(f, "; {what}: {}", some(names, ", "))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::NotSelected => f.write_str("not selected"),
            Kept::Absent { source } => write!(f, "there is no {source}"),
            Kept::Unlike { source, here, there } => write!(f, "{source} is {there}, but here it is {here}"),
        }
    }
}

/// Returns the names that a file or checkpoint has, for an error.
pub(crate) fn names_there(mut names: Vec<String>) -> String {
    names.sort();
    if names.is_empty() { "no tensors".into() } else { some(&names, ", ") }
}

/// Returns the first names of a list.
pub(crate) fn some(names: &[String], between: &str) -> String {
    const SHOWN: usize = 20;
    if names.len() > SHOWN {
        format!("{} and {} more", names[..SHOWN].join(between), names.len() - SHOWN)
    } else {
        names.join(between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(select: &Select<'_>) -> Result<Restored> {
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
    fn names_shapes_and_dtypes_decide_and_each_reason_is_told() {
        let all = decide(&Select::all()).unwrap_err().to_string();
        assert!(
            all.contains("file lacks what is selected: b: b is float32[4], but here it is float32[3]"),
            "{all}"
        );
        assert!(all.contains("c: there is no c; it has a, b, x.c; select other names"), "{all}");
        let lenient = decide(&Select::all().lenient()).unwrap();
        assert_eq!(lenient.restored, BTreeMap::from([("a".to_string(), "a".to_string())]));
        assert_eq!(lenient.kept["c"], Kept::Absent { source: "c".into() });
        let there = ["a", "a/common", "a/other", "a/per_replica", "b", "z"].map(String::from);
        let finished = lenient.finish("load_some", "file", there.clone()).unwrap();
        assert_eq!(finished.unused, ["a/other", "b", "z"]);
        let text = "1 of 3 set; kept: b (b is float32[4], but here it is float32[3]), c (there is no c); not used: a/other, b, z";
        assert_eq!(finished.to_string(), text);
        // Integers are not converted to floats, or floats to integers.
        let renamed = Select::named(|name| (name == "c").then(|| "x.c".to_string()));
        assert!(
            decide(&renamed).unwrap_err().to_string().contains("c: x.c is float32[], but here it is int64[]")
        );
        let none = decide(&renamed.lenient()).unwrap();
        assert_eq!(none.kept["a"], Kept::NotSelected);
        let error = none.finish("load_some", "file", there).unwrap_err().to_string();
        assert!(error.contains("nothing of file is restored: 0 of 3 set; kept: a (not selected)"), "{error}");
    }
}
