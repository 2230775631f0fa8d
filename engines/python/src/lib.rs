//! The client of parameter servers for Python, with numpy in and out.
//!
//! | module | contents |
//! |---|---|
//! | `servers` | `connect` and `Servers`: the connections, variables by name, checkpoints |
//! | `variable` | `Variable`: values and rows of a variable, whose shards are on the servers |
//! | `tables` | the shards of a variable, found by their names or created: without Python |
//! | `saved` | values and slots, saved and restored |
//! | `calls` | requests to several servers at once, and their responses |
//! | `rules` | `Rule` and `Initializer` |
//! | `arrays` | numpy's arrays from tensors, and tensors from arrays |
//! | `errors` | the exceptions |
//! | `threads` | work without Python's lock, and waits that Ctrl-C ends |
//!
//! Requests are sent by threads that do not hold Python's lock. The classes, and the meaning of all arguments, are
//! documented in `python/distribute_client/__init__.pyi`.

#![forbid(unsafe_code)]

mod arrays;
mod calls;
mod errors;
mod rules;
mod saved;
mod servers;
mod tables;
mod threads;
mod variable;

use pyo3::prelude::*;

/// An allocator that keeps the memory of rows that were looked up or pushed for the next call. The system's allocator
/// returns such blocks to the kernel, whose page faults took a third of a push.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The compiled part of the package `distribute_client`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<servers::Servers>()?;
    module.add_class::<variable::Variable>()?;
    module.add_class::<rules::Rule>()?;
    module.add_class::<rules::Initializer>()?;
    module.add_function(wrap_pyfunction!(servers::connect, module)?)
}
