//! Which variables on servers are used by layers that look up rows alone.

use super::variable::Variable;
use crate::Result;
use distribute_log::heard;
use distribute_tensor::HostTensor;
use std::cell::RefCell;

thread_local! {
    /// While a layer that looks up rows asks for its table: the variables on servers that it has got.
    static ASKED: RefCell<Option<Vec<Variable>>> = const { RefCell::new(None) };
}

/// Where a layer gets rows of its table: from parameter servers, those of a batch's ids.
#[derive(Clone, Debug)]
pub(crate) struct RowSource(Variable);

/// Runs `build`, in which a layer that looks up rows asks for its table. Gives where its rows come from, if that is elsewhere than in
/// the tensor that it gets.
pub(crate) fn for_rows<T>(build: impl FnOnce() -> T) -> (T, Option<RowSource>) {
    /// The thread goes on as before, also after a panic.
    struct Back(Option<Vec<Variable>>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKED.set(self.0.take());
        }
    }
    let _back = Back(ASKED.replace(Some(Vec::new())));
    let built = build();
    let source = ASKED.with_borrow_mut(|asked| asked.as_mut().and_then(Vec::pop)).map(RowSource);
    (built, source)
}

/// Whether what is asked for now will be looked up by row.
pub(super) fn are_asked_for() -> bool {
    ASKED.with_borrow(Option::is_some)
}

/// Tells of a variable on servers that was asked for, whose rows can be looked up there; any other use takes all of it.
pub(super) fn asked(variable: &Variable) -> Result<()> {
    let Some(staged) = variable.servers().and_then(|on| on.staged.as_ref()) else { return Ok(()) };
    if are_asked_for() && !staged.is_whole() {
        ASKED.with_borrow_mut(|asked| asked.iter_mut().for_each(|all| all.push(variable.clone())));
        return Ok(());
    }
    staged.become_whole(|| variable.copy(0)?.pull("replicate"))
}

impl RowSource {
    /// The rows of some ids, in this order; `None` where all of the table is in memory.
    pub(crate) fn fetch(&self, operation: &'static str, ids: &[usize]) -> Result<Option<HostTensor>> {
        let by_row = self.0.servers().filter(|on| on.staged.as_ref().is_some_and(|staged| !staged.is_here()));
        let Some(on) = by_row else { return Ok(None) };
        let ids: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
        on.rows.read_rows(operation, &ids).map(Some)
    }

    /// From now on all of the table is in memory: something else than rows is asked for. Where it cannot be fetched, the step that is
    /// being made fails.
    pub(crate) fn use_whole(&self) {
        let lost = self.0.bring("embeddings").err().and_then(|error| self.0.strategy().lose(error));
        if let Some(error) = lost {
            heard(|| {
                tracing::error!("variable {} has not been fetched, and is zeros: {error}", self.0.name())
            });
        }
    }
}
