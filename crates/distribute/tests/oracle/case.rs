//! Reading the cases of the JSON files.

use distribute::{MirroredStrategy, OneDeviceStrategy, Strategy};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

/// One operation on concrete inputs, and its outcome.
pub struct Case {
    pub id: String,
    pub area: String,
    pub replicas: usize,
    pub inputs: Map<String, Value>,
    pub expect: Expect,
    pub tolerance: Tolerance,
    /// Whether TensorFlow's outcome is an accident of its implementation, so that another sensible one is acceptable.
    pub quirk: bool,
    /// The result that an array would have, if that of TensorFlow's variable differs.
    pub array_result: Option<Value>,
}

/// The expected outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// An outcome with at least these fields.
    Outcome(Value),
    /// An error that TensorFlow would raise as this type.
    Error(String),
}

/// The tolerance of floats: `atol + rtol * abs(want)`.
#[derive(Clone, Copy, Default)]
pub struct Tolerance {
    pub rtol: f64,
    pub atol: f64,
}

/// The reason why a case has no outcome.
pub enum Stop {
    /// An error of the library, which may be the expected one.
    Library(distribute::Error),
    /// A case that the runner cannot run, which is always a failure.
    Runner(String),
}

/// The result of an operation.
pub type Ran = Result<Value, Stop>;

/// The runner of an area.
pub type Run = fn(&Case, &Inputs<'_>) -> Ran;

impl From<distribute::Error> for Stop {
    fn from(error: distribute::Error) -> Self {
        Stop::Library(error)
    }
}

impl From<distribute::tensor::Error> for Stop {
    fn from(error: distribute::tensor::Error) -> Self {
        Stop::Library(error.into())
    }
}

impl From<distribute::data::Error> for Stop {
    fn from(error: distribute::data::Error) -> Self {
        Stop::Library(error.into())
    }
}

impl From<String> for Stop {
    fn from(error: String) -> Self {
        Stop::Runner(error)
    }
}

impl From<&str> for Stop {
    fn from(error: &str) -> Self {
        Stop::Runner(error.into())
    }
}

/// A case in a file: its area and id, and its contents or the reason why it cannot be read.
pub struct Entry {
    pub area: String,
    pub id: String,
    pub case: Result<Case, String>,
}

/// Reads all cases of the JSON files in a folder, in the order of file names.
pub fn read(folder: &Path) -> Result<Vec<Entry>, String> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let entries = std::fs::read_dir(folder).map_err(|e| wrong(folder, &e))?;
    let mut paths =
        entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>().map_err(|e| wrong(folder, &e))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut cases = Vec::new();
    for path in &paths {
        let text = std::fs::read(path).map_err(|e| wrong(path, &e))?;
        let list: Vec<Value> = serde_json::from_slice(&text).map_err(|e| wrong(path, &e))?;
        for value in &list {
            let text =
                |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("unnamed").to_string();
            cases.push(Entry { area: text("area"), id: text("id"), case: Case::parse(value) });
        }
    }
    if cases.is_empty() { Err(wrong(folder, &"no cases")) } else { Ok(cases) }
}

impl Case {
    /// Reads a case. Returns an error if fields are missing or unknown.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let fields = Inputs::new(value.as_object().ok_or("a case is no object")?);
        let id = fields.text("id")?.to_string();
        let expect = match (fields.optional("expect"), fields.optional("expect_error")) {
            (Some(outcome), None) => Expect::Outcome(outcome.clone()),
            (None, Some(error)) => {
                let error = Inputs::new(error.as_object().ok_or("expect_error is no object")?);
                error.ignore("why");
                let kind = error.text("type")?.to_string();
                error.finish()?;
                Expect::Error(kind)
            }
            _ => return Err(format!("{id}: one of expect and expect_error is needed")),
        };
        let tolerance = match fields.optional("tolerance") {
            None => Tolerance::default(),
            Some(tolerance) => {
                let tolerance = Inputs::new(tolerance.as_object().ok_or("tolerance is no object")?);
                let read = Tolerance { rtol: tolerance.float("rtol")?, atol: tolerance.float("atol")? };
                tolerance.finish()?;
                read
            }
        };
        fields.ignore("doc");
        let case = Case {
            area: fields.text("area")?.to_string(),
            replicas: fields.count("replicas")?,
            inputs: fields.get("inputs")?.as_object().ok_or("inputs are no object")?.clone(),
            expect,
            tolerance,
            quirk: fields.optional("quirk").is_some(),
            array_result: fields.optional("array_result").cloned(),
            id,
        };
        fields.finish().map_err(|e| format!("{}: {e}", case.id))?;
        Ok(case)
    }

    /// Creates the strategy that the case names.
    pub fn strategy(&self, inputs: &Inputs<'_>) -> Result<Strategy, Stop> {
        let name = inputs.text("strategy")?;
        match (name, self.replicas) {
            ("mirrored", replicas) => Ok(MirroredStrategy::cpus(replicas)?),
            ("one_device", 1) => Ok(OneDeviceStrategy::new("cpu:0")?),
            ("default", 1) => Ok(distribute::context::get_strategy()),
            (other, replicas) => Err(Stop::Runner(format!("no strategy {other:?} of {replicas} replicas"))),
        }
    }
}

/// The fields of a JSON object, with a record of those that were read.
pub struct Inputs<'a> {
    fields: &'a Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Inputs<'a> {
    pub fn new(fields: &'a Map<String, Value>) -> Self {
        Self { fields, asked: RefCell::default() }
    }

    pub fn optional(&self, name: &str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(name.to_string());
        self.fields.get(name)
    }

    /// Marks a field without effect here as read.
    pub fn ignore(&self, name: &str) {
        self.optional(name);
    }

    pub fn get(&self, name: &str) -> Result<&'a Value, String> {
        self.optional(name).ok_or_else(|| format!("no field {name:?}"))
    }

    pub fn text(&self, name: &str) -> Result<&'a str, String> {
        self.get(name)?.as_str().ok_or_else(|| format!("{name} is no string"))
    }

    pub fn list(&self, name: &str) -> Result<&'a Vec<Value>, String> {
        self.get(name)?.as_array().ok_or_else(|| format!("{name} is no list"))
    }

    pub fn object(&self, name: &str) -> Result<Inputs<'a>, String> {
        self.get(name)?.as_object().map(Inputs::new).ok_or_else(|| format!("{name} is no object"))
    }

    pub fn flag(&self, name: &str) -> Result<bool, String> {
        self.get(name)?.as_bool().ok_or_else(|| format!("{name} is no bool"))
    }

    pub fn int(&self, name: &str) -> Result<i64, String> {
        self.get(name)?.as_i64().ok_or_else(|| format!("{name} is no integer"))
    }

    pub fn float(&self, name: &str) -> Result<f64, String> {
        self.get(name)?.as_f64().ok_or_else(|| format!("{name} is no number"))
    }

    pub fn count(&self, name: &str) -> Result<usize, String> {
        usize::try_from(self.int(name)?).map_err(|_| format!("{name} is negative"))
    }

    /// Returns an error that names the unread fields.
    pub fn finish(&self) -> Result<(), String> {
        let asked = self.asked.borrow();
        let unknown: Vec<_> = self.fields.keys().filter(|name| !asked.contains(*name)).collect();
        if unknown.is_empty() { Ok(()) } else { Err(format!("unknown fields {unknown:?}")) }
    }
}
