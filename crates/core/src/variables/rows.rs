//! Tables: variables on parameter servers that are only used by layers that look up rows.

use super::variable::Variable;
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_log::warn_or_stderr;
use distribute_ps_client::internal::{RemoteVariable, RowRead, Session, UniqueRows, id_of_row};
use distribute_ps_tables::DynamicOptions;
use distribute_tensor::DType;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// The request of the layer that is being built on this thread, if the layer looks up rows.
    static REQUEST: RefCell<Option<TableRequest>> = const { RefCell::new(None) };
}

/// A request for a table, made by a layer that looks up rows, while the layer is being built.
#[derive(Default)]
struct TableRequest {
    /// The variables that the layer requested and whose current values are not in the returned tensor. Each is paired
    /// with the index of the local replica.
    variables: Vec<(Variable, usize)>,
    /// The options of the table, if its rows are identified by ids.
    ids: Option<DynamicOptions>,
}

/// The source of a layer's rows if they are not read from the layer's own tensor. The source fetches the rows for a
/// batch's ids from parameter servers, or returns the complete table that the replica computes with.
#[derive(Clone, Debug)]
pub struct RowSource(Variable, usize);

/// Calls `build`, in which a layer that looks up rows requests its table. Also returns the source of the rows; `None`
/// if the rows are read from the layer's own tensor.
pub fn request_rows<T>(build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    with_request(None, build)
}

/// Calls `build`, in which a layer requests a single row in place of a table with one row per id. Also returns the
/// source of the rows, or `None` if the strategy has no parameter servers.
pub fn request_ids<T>(options: DynamicOptions, build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    with_request(Some(options), build)
}

fn with_request<T>(ids: Option<DynamicOptions>, build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    /// A guard that restores the thread's previous request, even after a panic.
    struct RestoreOnDrop(Option<TableRequest>);
    impl Drop for RestoreOnDrop {
        fn drop(&mut self) {
            REQUEST.set(self.0.take());
        }
    }
    let _back = RestoreOnDrop(REQUEST.replace(Some(TableRequest { ids, ..TableRequest::default() })));
    let built = build();
    let source = REQUEST.with_borrow_mut(|request| request.as_mut()?.variables.pop());
    let source = source.map(|(variable, replica)| RowSource(variable, replica));
    (built, source)
}

/// Returns `true` if the layer that is being built looks up its variable by row.
pub(super) fn rows_are_requested() -> bool {
    REQUEST.with_borrow(Option::is_some)
}

/// Returns the size in bytes of the table that is being requested; `usize::MAX` if its rows are ids. Returns `None` if
/// no layer requests its variable by row, or if rows of this dtype are not looked up in shards.
pub(super) fn requested_bytes(elements: usize, dtype: DType) -> Option<usize> {
    match dtype {
        _ if !rows_are_requested() => None,
        _ if requested_ids().is_some() => Some(usize::MAX),
        DType::F32 | DType::F64 => Some(elements.saturating_mul(dtype.bytes().unwrap_or(1))),
        _ => None,
    }
}

/// Returns the options of the table that is being requested, if its rows are identified by ids.
pub(super) fn requested_ids() -> Option<DynamicOptions> {
    REQUEST.with_borrow(|request| request.as_ref()?.ids)
}

/// Records that a variable was requested. If it is on parameter servers, its rows can be looked up there, and any other
/// use fetches the complete value. If the replica computes with a copy on its own device (`on_device`), rows are looked
/// up in that copy.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the strategy has parameter servers, and the variable was created with a different kind
///   of rows (numbered rows or ids) or with different options.
/// - [`Error::Server`]: the complete value cannot be fetched.
pub(super) fn record_request(variable: &Variable, replica: usize, on_device: bool) -> Result<()> {
    let got = || {
        REQUEST.with_borrow_mut(|request| {
            request.iter_mut().for_each(|all| all.variables.push((variable.clone(), replica)))
        })
    };
    match (variable.dynamic_options(), requested_ids()) {
        (None, None) => {}
        (Some(options), Some(request)) if options == request => {
            got();
            return Ok(());
        }
        (options, request) => {
            let kind = |options: Option<DynamicOptions>| {
                options.map_or("of numbered rows".to_owned(), |options| format!("of ids, by {options:?}"))
            };
            let reason = format!(
                "variable {} is a table {}, but is requested as one {}; give each layer a separate path, \
                 vb.pp(\"…\"), and build \
                 the same model on every replica",
                variable.name(),
                kind(options),
                kind(request)
            );
            // Without servers, the layer returns the error.
            if variable.strategy().extended().parameter_servers().is_some() {
                return Err(Error::invalid("replicate", reason));
            }
        }
    }
    let Some(cache) = variable.remote().and_then(|remote| remote.cache()) else {
        if !on_device && variable.device_copies().is_some() && requested_ids().is_none() {
            got();
        }
        return Ok(());
    };
    if rows_are_requested() && !cache.fetches_all() {
        got();
        return Ok(());
    }
    cache.load("replicate")
}

impl RowSource {
    /// Fetches the rows with the given ids. Returns `None` if the complete table is in memory.
    pub fn fetch(&self, operation: &'static str, ids: &[usize]) -> Result<Option<UniqueRows>> {
        Ok(Self::fetch_together(operation, &[(self, ids)])?.pop().flatten())
    }

    /// Acts like [`fetch`](Self::fetch) for the ids of several tables. Each server gets one message for all of them.
    pub fn fetch_together(
        operation: &'static str,
        tables: &[(&Self, &[usize])],
    ) -> Result<Vec<Option<UniqueRows>>> {
        let reads = tables.iter().map(|(table, ids)| table.row_read(operation, ids));
        RowRead::together(operation, reads.collect::<Result<_>>()?)
    }

    /// Prepares a read of the rows with the given ids. Returns `None` if the complete table is in memory.
    fn row_read(&self, operation: &'static str, ids: &[usize]) -> Result<Option<RowRead<'_>>> {
        let Some((remote, ids)) = self.remote_ids(ids) else { return Ok(None) };
        // Outside runs, the age of a cached row is unknown.
        let is_running = self.0.strategy().session().is_some_and(Session::is_running);
        remote.row_read(operation, &ids, is_running).map(Some)
    }

    /// Makes this process request the rows with the given ids after the current or the next step, so that the step
    /// after that does not wait for them. Does nothing if the complete table is in memory, or if other processes may
    /// change the table at any time.
    pub fn prefetch(&self, ids: &[usize]) {
        let session = self.0.strategy().session().filter(|session| session.lock_step().is_some());
        if let Some((session, (remote, ids))) = session.zip(self.remote_ids(ids)) {
            session.prefetch_rows(remote, &ids);
        }
    }

    /// Returns the variable on the servers, and its ids for the given row numbers. Returns `None` if the complete table
    /// is in memory.
    fn remote_ids(&self, rows: &[usize]) -> Option<(&Arc<RemoteVariable>, Vec<i64>)> {
        let remote = self.0.remote()?;
        let is_dynamic = remote.ids().is_some();
        if !is_dynamic && remote.cache().is_none_or(|cache| cache.is_complete()) {
            return None;
        }
        let id = |id: &usize| if is_dynamic { id_of_row(*id) } else { *id as i64 };
        Some((remote, rows.iter().map(id).collect()))
    }

    /// Returns the complete table with which the replica computes: the copy on its device if the device has separate
    /// memory, otherwise `table`. From now on, the complete table is kept in memory. If the copy cannot be used, logs
    /// an error and returns `table`.
    pub fn complete<'a>(&'a self, table: &'a Tensor) -> &'a Tensor {
        self.keep_complete();
        match self.0.replica_var(self.1) {
            Ok(complete) => complete.as_tensor(),
            Err(error) => {
                // A layer that computes with the tensor gets a warning that the rows are elsewhere.
                warn_or_stderr(|| {
                    tracing::error!("variable {} has no copy on its replica's device: {error}", self.0.name())
                });
                table
            }
        }
    }

    /// Keeps the complete table in memory from now on, because it is used by more than lookups. If the table cannot be
    /// fetched, the current step fails. If no step is running, logs an error.
    fn keep_complete(&self) {
        let fail = |error| match self.0.strategy().session() {
            Some(session) => session.fail_step(error),
            None => Some(error),
        };
        let lost = self.0.load("embeddings").err().and_then(fail);
        if let Some(error) = lost {
            warn_or_stderr(|| {
                tracing::error!("variable {} was not fetched, and is all zeros: {error}", self.0.name())
            });
        }
    }
}
