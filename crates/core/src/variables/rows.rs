//! Which variables on servers are used by layers that look up rows alone.

use super::variable::Variable;
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_log::heard;
use distribute_ps_client::internal::{EachOnce, id_of_row};
use distribute_ps_tables::DynamicOptions;
use std::cell::RefCell;

thread_local! {
    /// While a layer that looks up rows asks for its table.
    static ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// What a layer that looks up rows asks for.
#[derive(Default)]
struct Asked {
    /// The variables that it has got whose rows, or whose whole, are elsewhere than in its tensor; each with the local replica.
    variables: Vec<(Variable, usize)>,
    /// Which ids get rows, if rows are ids.
    ids: Option<DynamicOptions>,
}

/// Where a layer gets rows of its table, if not from the tensor: from parameter servers, those of a batch's ids. And all of it, as its
/// replica computes with it.
#[derive(Clone, Debug)]
pub struct RowSource(Variable, usize);

/// Runs `build`, in which a layer that looks up rows asks for its table. Gives where its rows come from, if that is elsewhere than in
/// the tensor that it gets.
pub fn for_rows<T>(build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    asking(None, build)
}

/// Runs `build`, in which a layer asks for a row that stands for those of all ids. Gives where these come from: `None` where the
/// strategy has no parameter servers.
pub fn for_ids<T>(options: DynamicOptions, build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    asking(Some(options), build)
}

fn asking<T>(ids: Option<DynamicOptions>, build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    /// The thread goes on as before, also after a panic.
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

/// Whether what is asked for now will be looked up by row.
pub(super) fn are_asked_for() -> bool {
    ASKED.with_borrow(Option::is_some)
}

/// Which ids get rows, where what is asked for now are those of ids.
pub(super) fn ids_are_asked_for() -> Option<DynamicOptions> {
    ASKED.with_borrow(|asked| asked.as_ref()?.ids)
}

/// Tells of a variable on servers that was asked for, whose rows can be looked up there; any other use takes all of it. Of one that the replica
/// computes with on its own device, rows are looked up there.
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
            // Where there are no servers, the layer says so.
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
    /// The rows of some ids; `None` where all of the table is in memory.
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

    /// All of the table, as the replica computes with it: where its device has memory of its own, a copy there.
    pub fn whole<'a>(&'a self, table: &'a Tensor) -> &'a Tensor {
        self.use_whole();
        match self.0.of_replica(self.1) {
            Ok(whole) => whole.as_tensor(),
            Err(error) => {
                // Who computes with it is told that it is elsewhere.
                heard(|| {
                    tracing::error!("variable {} has no copy on its replica's device: {error}", self.0.name())
                });
                table
            }
        }
    }

    /// From now on all of the table is in memory: something else than rows is asked for. Where it cannot be fetched, the step that is
    /// being made fails.
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
