//! Saves that read ranges of rows while files are written. Other copies of the state contain complete values.

use std::cell::Cell;

thread_local! {
    /// Whether components on this thread may add tensors whose rows are read during the save.
    static BY_RANGE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `collect`, in which components may add tensors whose rows are read when the checkpoint is written. No step may
/// be made before it is written.
pub(super) fn by_range<T>(collect: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BY_RANGE.set(self.0);
        }
    }
    let _before = Restore(BY_RANGE.replace(true));
    collect()
}

/// Returns `true` if components may add tensors whose rows are read when the checkpoint is written.
pub fn saves_by_range() -> bool {
    BY_RANGE.get()
}
