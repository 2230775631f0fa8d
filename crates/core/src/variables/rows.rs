//! The variables on servers that are used only by layers that look up rows.

use super::variable::Variable;
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_log::heard;
use distribute_ps_client::internal::{EachOnce, id_of_row};
use distribute_ps_tables::DynamicOptions;
use std::cell::RefCell;

thread_local! {
    /// Set while a layer that looks up rows asks for its table.
    static ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// The request of a layer that looks up rows.
#[derive(Default)]
struct Asked {
    /// The variables that it got whose rows, or complete value, are elsewhere than in its tensor; each with the
    /// local replica.
    variables: Vec<(Variable, usize)>,
    /// The options of the table, if its rows are ids.
    ids: Option<DynamicOptions>,
}

/// The source of a layer's rows, if that is not the layer's tensor: parameter servers return the rows of a
/// batch's ids. It can also return the complete table, as its replica computes with it.
#[derive(Clone, Debug)]
pub struct RowSource(Variable, usize);

/// Runs `build`, in which a layer that looks up rows asks for its table. Also returns the source of the rows,
/// if it is not the layer's tensor.
pub fn for_rows<T>(build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    asking(None, build)
}

/// Runs `build`, in which a layer asks for one row that represents those of all ids. Also returns the source of
/// the rows: `None` if the strategy has no parameter servers.
pub fn for_ids<T>(options: DynamicOptions, build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    asking(Some(options), build)
}

fn asking<T>(ids: Option<DynamicOptions>, build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    /// Restores the thread's previous request, even after a panic.
    struct Back(Option<Asked>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKED.set(self.0.take());
        }
    }
    let _back = Back(ASKED.replace(Some(Asked { ids, ..Asked::default() })));
    let built = build();
    let source = ASKED.with_borrow_mut(|asked| asked.as_mut()?.variables.pop());
    let source = source.map(|(variable, replica)| RowSource(variable, replica));
    (built, source)
}

/// Whether the variable that is requested now will be looked up by row.
pub(super) fn are_asked_for() -> bool {
    ASKED.with_borrow(Option::is_some)
}

/// Returns the options of the table that is requested now, if its rows are ids.
pub(super) fn ids_are_asked_for() -> Option<DynamicOptions> {
    ASKED.with_borrow(|asked| asked.as_ref()?.ids)
}

/// Records that a variable was requested. On servers its rows can be looked up there, but any other use fetches
/// it completely. If the replica computes with a copy on its own device, rows are looked up in that copy.
pub(super) fn asked(variable: &Variable, replica: usize, on_device: bool) -> Result<()> {
    let got = || {
        ASKED.with_borrow_mut(|asked| {
            asked.iter_mut().for_each(|all| all.variables.push((variable.clone(), replica)))
        })
    };
    match (variable.dynamic_options(), ids_are_asked_for()) {
        (None, None) => {}
        (Some(options), Some(asked)) if options == asked => {
            got();
            return Ok(());
        }
        (options, asked) => {
            let kind = |options: Option<DynamicOptions>| {
                options.map_or("of numbered rows".to_owned(), |options| format!("of ids, by {options:?}"))
            };
            let reason = format!(
                "variable {} is a table {}, and is asked for as one {}; give each layer a path of its own, vb.pp(\"…\"), and build \
                 the same model on every replica",
                variable.name(),
                kind(options),
                kind(asked)
            );
            // Without servers, the layer returns the error.
            if variable.strategy().extended().parameter_servers().is_some() {
                return Err(Error::invalid("replicate", reason));
            }
        }
    }
    let Some(cache) = variable.remote().and_then(|remote| remote.cache()) else {
        if !on_device && variable.device_copies().is_some() && ids_are_asked_for().is_none() {
            got();
        }
        return Ok(());
    };
    if are_asked_for() && !cache.is_whole() {
        got();
        return Ok(());
    }
    cache.load("replicate")
}

impl RowSource {
    /// Returns the rows of some ids; `None` if the complete table is in memory.
    pub fn fetch(&self, operation: &'static str, ids: &[usize]) -> Result<Option<EachOnce>> {
        let Some(remote) = self.0.remote() else { return Ok(None) };
        if let Some(rows) = remote.ids() {
            let ids: Vec<i64> = ids.iter().copied().map(id_of_row).collect();
            return rows.read_each(operation, &ids).map(Some);
        }
        if remote.cache().is_none_or(|cache| cache.is_here()) {
            return Ok(None);
        }
        let ids: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
        remote.tables().read_each(operation, &ids).map(Some)
    }

    /// Returns the complete table, as the replica computes with it: a copy on its device, if that has separate
    /// memory.
    pub fn whole<'a>(&'a self, table: &'a Tensor) -> &'a Tensor {
        self.use_whole();
        match self.0.of_replica(self.1) {
            Ok(whole) => whole.as_tensor(),
            Err(error) => {
                // A layer that computes with the tensor gets a warning that the rows are elsewhere.
                heard(|| {
                    tracing::error!("variable {} has no copy on its replica's device: {error}", self.0.name())
                });
                table
            }
        }
    }

    /// Keeps the complete table in memory from now on, because it is not only looked up by row. If it cannot be
    /// fetched, the current step fails.
    fn use_whole(&self) {
        let fail = |error| match self.0.strategy().session() {
            Some(session) => session.fail_step(error),
            None => Some(error),
        };
        let lost = self.0.load("embeddings").err().and_then(fail);
        if let Some(error) = lost {
            heard(|| {
                tracing::error!("variable {} has not been fetched, and is zeros: {error}", self.0.name())
            });
        }
    }
}
