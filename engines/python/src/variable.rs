//! The Python class `Variable`.

use crate::arrays::{array, ids, tensor};
use crate::calls::Calls;
use crate::errors::Error;
use crate::rules::Rule;
use crate::tables::{Rows, Shards};
use crate::threads::without_lock;
use distribute_optim::Step;
use distribute_ps_tables::Push;
use distribute_tensor::Write;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// A variable on the servers.
#[pyclass(frozen, module = "distribute_client")]
pub struct Variable {
    pub shards: Arc<Shards>,
    pub calls: Calls,
}

/// Parses the name of a write operation.
fn write_of(py: Python<'_>, how: &str) -> PyResult<Write> {
    Ok(match how {
        "assign" => Write::Assign,
        "add" => Write::Add,
        "sub" => Write::Sub,
        "mul" => Write::Mul,
        "div" => Write::Div,
        "min" => Write::Min,
        "max" => Write::Max,
        other => {
            let text = format!("how is one of assign, add, sub, mul, div, min and max, but is {other}");
            return Err(Error::Argument(text).raise(py));
        }
    })
}

/// Returns the options of a push. Without `step`, the servers count the steps.
fn push_of(py: Python<'_>, learning_rate: f64, step: Option<u64>, finite: bool) -> PyResult<Push> {
    let push = match step {
        None => Push::at(Step::after(0, learning_rate)).counted(),
        Some(0) => return Err(Error::Argument("step: the first step is 1".into()).raise(py)),
        Some(step) => Push::at(Step::after(step - 1, learning_rate)),
    };
    Ok(if finite { push.finite() } else { push })
}

impl Variable {
    /// Does `work` with the variable's shards on another thread, without Python's lock.
    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Shards, &Calls) -> crate::errors::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (shards, calls) = (self.shards.clone(), self.calls.clone());
        without_lock(py, move || work(&shards, &calls))
    }

    /// Converts ids of any shape, and values with one row for each of them. Returns the ids in one dimension, and the
    /// values.
    fn rows_of(
        &self,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<(Vec<i64>, distribute_tensor::HostTensor)> {
        let (ids, dims) = ids(rows)?;
        let values = tensor(values, Some(self.shards.dtype))?;
        let expected: Vec<usize> = dims.iter().chain(self.shards.row_dims()).copied().collect();
        if values.dims() != expected {
            let text = format!(
                "rows of {} for ids of shape {dims:?} have the shape {expected:?}, and these {:?}",
                self.shards.name,
                values.dims()
            );
            return Err(Error::Argument(text).raise(rows.py()));
        }
        let flat: Vec<usize> = [ids.len()].iter().chain(self.shards.row_dims()).copied().collect();
        let values = values.reshape(flat).map_err(|error| Error::from(error).raise(rows.py()))?;
        Ok((ids, values))
    }
}

#[pymethods]
impl Variable {
    #[getter]
    fn name(&self) -> &str {
        &self.shards.name
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shards.dims)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.shards.dtype.name()
    }

    #[getter]
    fn is_dynamic(&self) -> bool {
        matches!(self.shards.rows, Rows::Dynamic(_))
    }

    #[getter]
    fn shards(&self) -> usize {
        self.shards.shards()
    }

    fn set_rule(&self, py: Python<'_>, rule: &Rule) -> PyResult<()> {
        let rule = rule.0.clone();
        self.work(py, move |shards, calls| shards.set_rule(calls, &rule))
    }

    fn pull<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.work(py, |shards, calls| shards.pull(calls))?)
    }

    #[pyo3(signature = (value, *, how="assign"))]
    fn assign(&self, py: Python<'_>, value: &Bound<'_, PyAny>, how: &str) -> PyResult<()> {
        let (how, value) = (write_of(py, how)?, tensor(value, Some(self.shards.dtype))?);
        self.work(py, move |shards, calls| shards.assign(calls, how, &value))
    }

    #[pyo3(signature = (gradient, learning_rate, *, step=None, finite=false))]
    fn push(
        &self,
        py: Python<'_>,
        gradient: &Bound<'_, PyAny>,
        learning_rate: f64,
        step: Option<u64>,
        finite: bool,
    ) -> PyResult<()> {
        let push = push_of(py, learning_rate, step, finite)?;
        let gradient = tensor(gradient, Some(self.shards.dtype))?;
        self.work(py, move |shards, calls| shards.push(calls, push, &gradient))
    }

    fn look_up<'py>(&self, py: Python<'py>, rows: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (ids, dims) = ids(rows)?;
        let dims: Vec<usize> = dims.iter().chain(self.shards.row_dims()).copied().collect();
        let rows = self.work(py, move |shards, calls| Ok(shards.look_up(calls, &ids)?.reshape(dims)?))?;
        array(py, rows)
    }

    #[pyo3(signature = (rows, values, *, how="assign"))]
    fn scatter(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        how: &str,
    ) -> PyResult<()> {
        let (how, (ids, values)) = (write_of(py, how)?, self.rows_of(rows, values)?);
        self.work(py, move |shards, calls| shards.scatter(calls, how, &ids, &values))
    }

    #[pyo3(signature = (rows, gradient, learning_rate, *, step=None, finite=false))]
    fn push_rows<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
        learning_rate: f64,
        step: Option<u64>,
        finite: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let push = push_of(py, learning_rate, step, finite)?;
        let (ids, gradient) = self.rows_of(rows, gradient)?;
        let pushed = self.work(py, move |shards, calls| shards.push_rows(calls, push, &ids, &gradient))?;
        let counts = PyDict::new(py);
        counts.set_item("rows", pushed.rows)?;
        counts.set_item("created", pushed.created)?;
        counts.set_item("waiting", pushed.waiting)?;
        counts.set_item("full", pushed.full)?;
        counts.set_item("evicted", pushed.evicted)?;
        Ok(counts)
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        for (name, tensor) in self.work(py, |shards, calls| shards.state(calls))? {
            state.set_item(name, array(py, tensor)?)?;
        }
        Ok(state)
    }

    fn __repr__(&self) -> String {
        let Shards { name, dims, dtype, .. } = &*self.shards;
        format!("Variable({name:?}, shape={dims:?}, dtype={}, shards={})", dtype.name(), self.shards.shards())
    }
}
