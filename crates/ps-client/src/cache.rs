//! What of a variable on servers is in the memory of this process, for candle to compute with.

use candle_core::Var;
use distribute_base::internal::{DeviceCopies, lock};
use distribute_base::{Error, Result};
use distribute_params::Version;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A candle variable that stands for one on servers. It has that one's values as they were when they were last fetched; or, where
/// only layers that look up rows use it, none, and takes no memory but addresses.
pub struct Staged {
    var: Var,
    /// The version of each shard that it has. Locked while it is written.
    pub(super) known: Mutex<Vec<Option<Version>>>,
    /// Whether all of it is fetched.
    whole: AtomicBool,
    /// Whether it has been, once at least.
    filled: AtomicBool,
    /// Held while it is for the first time, because something else than rows is asked for.
    becoming: Mutex<()>,
    /// Copies of it for replicas whose devices have memory of their own.
    copies: OnceLock<Arc<DeviceCopies>>,
}

impl Staged {
    /// For a variable of this shape. It is fetched as a whole, unless `by_row`.
    ///
    /// # Errors
    /// Where this process has no addresses for so many elements.
    pub fn new(shape: &candle_core::Shape, dtype: candle_core::DType, by_row: bool) -> Result<Self> {
        let bytes =
            shape.dims().iter().try_fold(dtype.size_in_bytes(), |bytes, size| bytes.checked_mul(*size));
        // candle would end the process. Memory is taken when it is written, and tables of rows never are.
        if bytes.is_none_or(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_err()) {
            let reason = format!("there is no memory for {dtype:?}{:?}", shape.dims());
            return Err(Error::invalid("creating a variable", reason));
        }
        let var = Var::zeros(shape, dtype, &candle_core::Device::Cpu)?;
        Ok(Self {
            var,
            known: Mutex::default(),
            whole: AtomicBool::new(!by_row),
            filled: AtomicBool::new(false),
            becoming: Mutex::default(),
            copies: OnceLock::new(),
        })
    }

    /// The variable of candle.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// These are copies of it. They are told of what is fetched.
    pub fn has_copies(&self, copies: Arc<DeviceCopies>) {
        // A variable is made once, and gets them then.
        let _ = self.copies.set(copies);
    }

    /// What has come was written.
    pub(super) fn written(&self) {
        self.copies.get().into_iter().for_each(|copies| copies.written());
    }

    /// Whether all of it is fetched at the beginning of a step.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    /// From now on all of it is; `pull` does so for the first time. Who comes meanwhile waits.
    ///
    /// # Errors
    /// Those of `pull`. It is done with the next step then, and nobody can compute with it before.
    pub fn become_whole(&self, pull: impl FnOnce() -> Result<()>) -> Result<()> {
        let _first = lock(&self.becoming);
        if self.is_here() {
            return Ok(());
        }
        self.whole.store(true, Ordering::Relaxed);
        pull()
    }

    /// It has been fetched as a whole.
    pub(super) fn fill(&self) {
        self.filled.store(true, Ordering::Release);
    }

    /// Whether all of it is here.
    pub fn is_here(&self) -> bool {
        self.is_whole() && self.filled.load(Ordering::Acquire)
    }

    /// Whether it can be computed with: as a whole, if it is used so.
    pub fn is_ready(&self) -> bool {
        !self.is_whole() || self.is_here()
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staged({:?}, whole: {})", self.var.shape(), self.is_whole())
    }
}
