//! `connect`, and the class `Servers`.

use crate::arrays::{dtype_of, tensor};
use crate::calls::Calls;
use crate::errors::{Error, Result};
use crate::rules::{Initializer, Rule};
use crate::saved::SavedState;
use crate::tables::{Initial, Shards, list};
use crate::threads::without_lock;
use crate::variable::Variable;
use distribute_checkpoint::{Reader, Writer};
use distribute_cluster::{ClusterSpec, Job, Task};
use distribute_net::{Certificates, Credentials, Secret};
use distribute_ps_server::Connection;
use distribute_ps_tables::{DynamicOptions, Eviction, PartitionStrategy, variable_of};
use distribute_rpc::ClientBuilder;
use distribute_tensor::DType;
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Connections to all parameter servers of a job.
#[pyclass(frozen, module = "distribute_client")]
pub struct Servers {
    calls: Calls,
    addresses: Vec<String>,
    /// The names of variables that were created or found with a "mod" partition. The servers' tables do not record the
    /// kind of partition.
    modulo: Mutex<BTreeSet<String>>,
}

/// Connects to parameter servers.
#[pyfunction]
#[pyo3(signature = (addresses, *, secret=None, certificates=None, job=None, name="python", index=0, timeout=60.0, plain_text=false))]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
pub fn connect(
    py: Python<'_>,
    addresses: Vec<String>,
    secret: Option<String>,
    certificates: Option<(PathBuf, PathBuf, PathBuf)>,
    job: Option<String>,
    name: &str,
    index: usize,
    timeout: f64,
    plain_text: bool,
) -> PyResult<Servers> {
    let invalid = |text: String| Error::Argument(text).raise(py);
    let timeout = Duration::try_from_secs_f64(timeout).ok().filter(|timeout| !timeout.is_zero());
    let timeout = timeout.ok_or_else(|| invalid("timeout is a number of seconds greater than 0".into()))?;
    if addresses.is_empty() {
        return Err(invalid("there is no address of a server".into()));
    }
    let cluster =
        ClusterSpec::from_lists([("ps", &addresses)]).map_err(|error| invalid(error.to_string()))?;
    let mut credentials = Credentials::new();
    if let Some(secret) = secret {
        let secret = Secret::from_hex(&secret, "the argument").map_err(|error| invalid(error.to_string()))?;
        credentials = credentials.secret(secret);
    }
    if let Some((ca, certificate, key)) = certificates {
        credentials = credentials.certificates(Certificates { ca, certificate, key });
    }
    if plain_text {
        credentials = credentials.allow_plain_text_on_the_network();
    }
    credentials = match job {
        Some(job) => credentials.job(job),
        None => credentials.any_job(),
    };
    let clients = ClientBuilder::new(cluster, Task::new(name, index)).credentials(credentials);
    let channels = (0..addresses.len()).map(|server| Connection::new(clients.clone(), Job::Ps.task(server)));
    let calls = Calls::new(channels.collect(), timeout);
    let first = calls.clone();
    // The first request connects, so that wrong addresses and credentials are found here.
    without_lock(py, move || list(&first).map(drop))?;
    Ok(Servers { calls, addresses, modulo: Mutex::default() })
}

fn strategy_of(py: Python<'_>, partition: &str) -> PyResult<PartitionStrategy> {
    match partition {
        "div" => Ok(PartitionStrategy::Div),
        "mod" => Ok(PartitionStrategy::Mod),
        other => Err(Error::Argument(format!("partition is div or mod, but is {other}")).raise(py)),
    }
}

/// Returns the name in a checkpoint of a variable's tensor, such as its values.
fn saved_name(variable: &str, tensor: &str) -> String {
    format!("{variable}/{tensor}")
}

impl Servers {
    fn modulo(&self) -> BTreeSet<String> {
        self.modulo.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn variable_with(&self, shards: Shards, strategy: PartitionStrategy) -> Variable {
        let mut modulo = self.modulo.lock().unwrap_or_else(PoisonError::into_inner);
        match strategy {
            PartitionStrategy::Mod => modulo.insert(shards.name.clone()),
            PartitionStrategy::Div => modulo.remove(&shards.name),
        };
        drop(modulo);
        Variable { shards: Arc::new(shards), calls: self.calls.clone() }
    }
}

#[pymethods]
impl Servers {
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    fn variables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let calls = self.calls.clone();
        let tables = without_lock(py, move || list(&calls))?;
        let names: BTreeSet<_> =
            tables.iter().map(|(_, table)| variable_of(&table.name).0.to_owned()).collect();
        Ok(names.into_iter().collect())
    }

    #[pyo3(signature = (name, *, partition="div"))]
    fn find(&self, py: Python<'_>, name: String, partition: &str) -> PyResult<Variable> {
        let (calls, strategy) = (self.calls.clone(), strategy_of(py, partition)?);
        let found = without_lock(py, move || {
            let found = Shards::find(&name, strategy, &list(&calls)?)?;
            found.ok_or_else(|| Error::Argument(format!("find: the servers have no variable {name}")))
        })?;
        Ok(self.variable_with(found, strategy))
    }

    #[pyo3(signature = (name, shape=None, *, dtype=None, value=None, initializer=None, rule=None, shards=None, partition="div"))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn variable(
        &self,
        py: Python<'_>,
        name: String,
        shape: Option<Vec<usize>>,
        dtype: Option<&str>,
        value: Option<&Bound<'_, PyAny>>,
        initializer: Option<&Initializer>,
        rule: Option<&Rule>,
        shards: Option<usize>,
        partition: &str,
    ) -> PyResult<Variable> {
        let strategy = strategy_of(py, partition)?;
        let dtype = dtype.map(dtype_of).transpose().map_err(|error| error.raise(py))?;
        let (initial, dims, dtype) = match (value, shape) {
            (Some(_), Some(_)) => {
                return Err(Error::Argument(format!("{name}: give a shape or a value, not both")).raise(py));
            }
            (Some(value), None) => {
                let value = tensor(value, dtype)?;
                let (dims, dtype) = (value.dims().to_vec(), value.dtype());
                (Initial::Value(value), dims, dtype)
            }
            (None, Some(dims)) => {
                let initializer = initializer.copied().unwrap_or(Initializer::ZEROS).of(&name);
                (Initial::Initialized(initializer), dims, dtype.unwrap_or(DType::F32))
            }
            (None, None) => {
                return Err(Error::Argument(format!("{name}: give a shape or a value")).raise(py));
            }
        };
        let (calls, rule) = (self.calls.clone(), rule.map(|rule| rule.0.clone()));
        let made = without_lock(py, move || {
            Shards::create(&calls, (&name, &dims, dtype), (&initial, rule), (shards, strategy))
        })?;
        Ok(self.variable_with(made, strategy))
    }

    #[pyo3(signature = (name, row_shape, *, dtype="float32", initializer=None, rule=None, shards=None, admit_after=1, max_rows=None, max_age=None, evict="least_recent"))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn dynamic(
        &self,
        py: Python<'_>,
        name: String,
        row_shape: Vec<usize>,
        dtype: &str,
        initializer: Option<&Initializer>,
        rule: Option<&Rule>,
        shards: Option<usize>,
        admit_after: u32,
        max_rows: Option<usize>,
        max_age: Option<u64>,
        evict: &str,
    ) -> PyResult<Variable> {
        let eviction = match evict {
            "least_recent" => Eviction::LeastRecent,
            "least_frequent" => Eviction::LeastFrequent,
            other => {
                let text = format!("evict is least_recent or least_frequent, but is {other}");
                return Err(Error::Argument(text).raise(py));
            }
        };
        let dtype = dtype_of(dtype).map_err(|error| error.raise(py))?;
        let initializer = initializer.copied().unwrap_or(Initializer::ZEROS).of(&name);
        let options =
            DynamicOptions { admit_after, max_rows, max_age, eviction, ..DynamicOptions::default() };
        let (calls, rule) = (self.calls.clone(), rule.map(|rule| rule.0.clone()));
        let made = without_lock(py, move || {
            let initial = Initial::Ids(initializer, options);
            Shards::create(
                &calls,
                (&name, &row_shape, dtype),
                (&initial, rule),
                (shards, PartitionStrategy::Div),
            )
        })?;
        Ok(self.variable_with(made, PartitionStrategy::Div))
    }

    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        let (calls, modulo) = (self.calls.clone(), self.modulo());
        without_lock(py, move || {
            let mut writer = Writer::new();
            for shards in all(&calls, &modulo)? {
                for (tensor, value) in shards.state(&calls)? {
                    writer.insert(saved_name(&shards.name, &tensor), value)?;
                }
            }
            writer.save(folder, 1)?;
            Ok(())
        })
    }

    fn restore(&self, py: Python<'_>, folder: PathBuf) -> PyResult<Vec<String>> {
        let (calls, modulo) = (self.calls.clone(), self.modulo());
        without_lock(py, move || {
            let reader = Reader::open(&folder)?;
            let names: Vec<String> = reader.names().map(str::to_owned).collect();
            let (mut restored, mut incomplete) = (Vec::new(), Vec::new());
            for shards in all(&calls, &modulo)? {
                let prefix = saved_name(&shards.name, "");
                let of = names.iter().filter_map(|name| Some((name, name.strip_prefix(&prefix)?)));
                let of: Vec<_> = of.filter(|(_, tensor)| !tensor.contains('/')).collect();
                if of.is_empty() {
                    continue;
                }
                let read = |(name, tensor): (&String, &str)| Ok((tensor.to_owned(), reader.tensor(name)?));
                let state: SavedState = of.into_iter().map(read).collect::<Result<_>>()?;
                let left_out = shards.restore(&calls, &state)?;
                if left_out > 0 {
                    incomplete.push(format!("{left_out} rows of {}", shards.name));
                }
                restored.push(shards.name.clone());
            }
            if incomplete.is_empty() {
                return Ok(restored);
            }
            let text = format!(
                "restore: all variables are restored, but there was no place for {}: give max_rows that is greater",
                incomplete.join(", ")
            );
            Err(Error::Other(text))
        })
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.calls.close());
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("Servers({:?})", self.addresses)
    }
}

/// Finds all variables on the servers. The rows of those in `modulo` are divided round-robin.
fn all(calls: &Calls, modulo: &BTreeSet<String>) -> Result<Vec<Shards>> {
    let tables = list(calls)?;
    let names: BTreeSet<_> = tables.iter().map(|(_, table)| variable_of(&table.name).0).collect();
    let mut all = Vec::new();
    for name in names {
        let is_modulo = modulo.contains(name);
        let strategy = if is_modulo { PartitionStrategy::Mod } else { PartitionStrategy::Div };
        all.extend(Shards::find(name, strategy, &tables)?);
    }
    Ok(all)
}
